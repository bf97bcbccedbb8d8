// SPDX-License-Identifier: MIT
#include "experiments/fit/indexer_file.h"

#include <nlohmann/json.hpp>

#include "experiments/fit/data.h"
#include "experiments/fit/state.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

constexpr int64_t kChunkTokens = 4096;

void write_tokens(io::ActivationsWriter& to, const io::ActivationsReader& file, int64_t layer,
                  const IndexWeights& weights, QueryRange range, int threads) {
    for (Field field : {Field::q, Field::k, Field::v})
        to.write(layer, field, range.begin, 0, file.read(layer, field, range));
    for (Field field : {Field::index_q, Field::index_k})
        to.write(layer, field, range.begin, 0,
                 fitted_index(file, layer, weights, field, range, threads));
}

}  // namespace

Tensor<float, 3> fitted_index(const io::ActivationsReader& file, int64_t layer,
                              const IndexWeights& weights, Field field, QueryRange range,
                              int threads) {
    MSA_CHECK(field == Field::index_q || field == Field::index_k);
    const Tensor<float, 3> x = file.read(layer, Field::x, range);
    const View<const float, 2> hidden(x.data(), {x.extent(0), x.extent(2)});
    const Problem queries =
        io::layer_problem(file.info(), file.layer(layer), kMaxBlockSize).with_queries(range);
    std::vector<int64_t> positions;
    for (const KeyRange& keys : visible_keys(queries)) positions.push_back(keys.count - 1);
    return field == Field::index_q ? index_queries(weights, hidden, positions, threads)
                                   : index_keys(weights, hidden, positions, threads);
}

void write_indexer_file(const std::filesystem::path& path, const io::ActivationsReader& file,
                        const io::ResultsReader& results, std::span<const int64_t> layers,
                        int threads) {
    io::ActivationsInfo info = file.info();
    info.producer += ", index_q and index_k by msa-fit-indexer";
    info.has_tokens = false;
    info.layers.clear();
    const auto options = nlohmann::json::parse(results.run().options);
    for (int64_t layer : layers) {
        info.layers.push_back(file.layer(layer));
        info.layers.back().model_dim = 0;  // no x: the weights are in the results
        info.layers.back().index_dim = read_weights(results, layer).form().index_dim;
        info.layers.back().own_block_size = options.at("block_size").get<int64_t>();
        info.layers.back().own_top_k = options.at("top_k").get<int64_t>();
    }
    io::ActivationsWriter to(path, info, true);
    for (int64_t layer : layers) {
        const IndexWeights weights = read_weights(results, layer);
        const int64_t n = info.tokens();
        for (int64_t begin = 0; begin < n; begin += kChunkTokens)
            write_tokens(to, file, layer, weights, {begin, std::min(begin + kChunkTokens, n)},
                         threads);
    }
    to.finish();
}

}  // namespace msa::experiments::fit
