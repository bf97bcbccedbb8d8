// SPDX-License-Identifier: MIT
#include "experiments/fit/indexer_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "experiments/fit/data.h"
#include "experiments/fit/state.h"

namespace msa::experiments::fit {
namespace {

using io::Field;

constexpr int64_t kChunkTokens = 4096;

constexpr Field kOfMsa[] = {Field::index_q, Field::index_k};
constexpr Field kOfDsa[] = {Field::dsa_q, Field::dsa_k, Field::dsa_w};

/// The fields that the weights make.
std::span<const Field> made_by(const IndexForm& form) {
    if (form.head_weights) return kOfDsa;
    return kOfMsa;
}

/// The layer in the new file: the operands of another architecture stay.
io::LayerInfo new_layer(io::LayerInfo info, const IndexForm& form, const nlohmann::json& options) {
    if (!options.value("keep_x", false)) info.model_dim = 0;
    if (form.head_weights) {
        info.dsa_heads = form.groups;
        info.dsa_dim = form.index_dim;
    } else {
        info.index_dim = form.index_dim;
    }
    info.own_block_size = options.at("block_size").get<int64_t>();
    info.own_top_k = options.at("top_k").get<int64_t>();
    return info;
}

void write_tokens(io::ActivationsWriter& to, const io::ActivationsReader& file,
                  const io::LayerInfo& layer, const IndexWeights& weights, QueryRange range,
                  int threads) {
    const std::span<const Field> made = made_by(weights.form());
    for (Field field : io::kFields) {
        if (!layer.has(field)) continue;
        const bool fitted = std::find(made.begin(), made.end(), field) != made.end();
        to.write(layer.layer, field, range.begin, 0,
                 fitted ? fitted_index(file, layer.layer, weights, field, range, threads)
                        : file.read(layer.layer, field, range));
    }
}

}  // namespace

Tensor<float, 3> fitted_index(const io::ActivationsReader& file, int64_t layer,
                              const IndexWeights& weights, Field field, QueryRange range,
                              int threads) {
    const std::span<const Field> made = made_by(weights.form());
    MSA_CHECK(std::find(made.begin(), made.end(), field) != made.end());
    const Tensor<float, 3> x = file.read(layer, Field::x, range);
    const View<const float, 2> hidden(x.data(), {x.extent(0), x.extent(2)});
    const Problem queries =
        io::layer_problem(file.info(), file.layer(layer), kMaxBlockSize).with_queries(range);
    std::vector<int64_t> positions;
    for (const KeyRange& keys : visible_keys(queries)) positions.push_back(keys.count - 1);
    if (field == Field::dsa_w) return index_head_weights(weights, hidden, threads);
    return field == made.front() ? index_queries(weights, hidden, positions, threads)
                                 : index_keys(weights, hidden, positions, threads);
}

void write_indexer_file(const std::filesystem::path& path, const io::ActivationsReader& file,
                        const io::ResultsReader& results, std::span<const int64_t> layers,
                        int threads) {
    io::ActivationsInfo info = file.info();
    info.has_tokens = false;
    info.layers.clear();
    const auto options = nlohmann::json::parse(results.run().options);
    bool dsa = false;
    for (int64_t layer : layers) {
        const IndexForm form = read_weights(results, layer).form();
        info.layers.push_back(new_layer(file.layer(layer), form, options));
        dsa = form.head_weights;
    }
    info.producer += dsa ? ", dsa_q, dsa_k and dsa_w by msa-fit-indexer"
                         : ", index_q and index_k by msa-fit-indexer";
    io::ActivationsWriter to(path, info, true);
    for (const io::LayerInfo& layer : info.layers) {
        const IndexWeights weights = read_weights(results, layer.layer);
        const int64_t n = info.tokens();
        for (int64_t begin = 0; begin < n; begin += kChunkTokens)
            write_tokens(to, file, layer, weights, {begin, std::min(begin + kChunkTokens, n)},
                         threads);
    }
    to.finish();
}

}  // namespace msa::experiments::fit
