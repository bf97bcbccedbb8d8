// SPDX-License-Identifier: MIT
#include "experiments/driver/selected_blocks.h"

#include "core/selection.h"
#include "core/utf8.h"
#include "experiments/driver/options.h"

namespace msa::experiments {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 40;

/// A fault of a layer or dataset, with the file and the place in front.
template <typename Read>
auto naming(const std::string& file, const std::string& place, Read&& read) {
    try {
        return read();
    } catch (const InputError& fault) {
        throw InputError(concat(file, ": ", place, ": ", fault.what()));
    }
}

Problem sizes_of(const io::ResultsReader& results, const std::string& layer) {
    const auto size = [&](const char* name) {
        return static_cast<int64_t>(results.number("/layers/" + layer, name));
    };
    Problem p;
    p.query_heads = size("query_heads");
    p.kv_heads = size("kv_heads");
    p.head_dim = size("head_dim");
    p.index_dim = size("index_dim");
    p.block_size = size("block_size");
    if (results.has("/layers/" + layer, "window")) p.window = size("window");
    return p;
}

Problem read(const io::ResultsReader& results, const std::string& layer,
             const std::string& why_neighbours) {
    Problem p = sizes_of(results, layer);
    const std::string at = "/queries/" + layer;
    const auto token = results.read<int64_t, 1>(at + "/token");
    const auto position = results.read<int64_t, 1>(at + "/position");
    const auto sequence = results.read<int64_t, 1>(at + "/sequence");
    const int64_t queries = token.size();
    require(position.size() == queries && sequence.size() == queries,
            "token, position and "
            "sequence have ",
            queries, ", ", position.size(), " and ", sequence.size(),
            " entries, must have as many");
    std::vector<int64_t> cu_seqlens_q{0}, cu_seqlens_k{0}, positions;
    for (int64_t i = 0; i < queries; ++i) {
        const bool first = i == 0 || sequence(i) != sequence(i - 1);
        if (i > 0) {
            require(sequence(i) >= sequence(i - 1), "sequence[", i, "] is ", sequence(i),
                    ", must not be below the one before it");
            require(first || token(i) == token(i - 1) + 1, "its analysed queries have gaps (", at,
                    "/token[", i, "] is ", token(i), " and follows ", token(i - 1),
                    ", must be one more); ", why_neighbours);
            require(first || position(i) > position(i - 1), "position[", i, "] is ", position(i),
                    ", must be above the one before it in its sequence");
        }
        require(position(i) >= 0 && position(i) < kMostTokens, "position[", i, "] is ", position(i),
                ", must be from 0 to ", kMostTokens - 1);
        if (first) {
            cu_seqlens_q.push_back(i);
            cu_seqlens_k.push_back(cu_seqlens_k.back());
        }
        cu_seqlens_q.back() = i + 1;
        cu_seqlens_k.back() = *(cu_seqlens_k.end() - 2) + position(i) + 1;
        positions.push_back(position(i));
    }
    p.batch = PackedBatch(std::move(cu_seqlens_q), std::move(cu_seqlens_k), std::move(positions));
    p.validate();
    return p;
}

}  // namespace

void require_of_analyze(const std::string& file, const io::ResultsReader& results) {
    const std::string program = results.run().program;
    require(program == "msa-analyze", file, ": was written by ", printable(program),
            ", must be results of msa-analyze");
}

std::vector<int64_t> pick_layers(const io::ResultsReader& results,
                                 const std::vector<int64_t>& asked) {
    const std::vector<std::string> all = results.list("/layers");
    for (int64_t layer : asked) choice("layers", std::to_string(layer), all);
    if (!asked.empty()) return asked;
    std::vector<int64_t> layers;
    for (const std::string& layer : all) layers.push_back(integer_list("layers", layer).front());
    return layers;
}

std::vector<std::string> pick_selectors(const io::ResultsReader& results,
                                        const std::vector<std::string>& asked) {
    const std::vector<std::string> all = results.list("/select");
    for (const std::string& selector : asked) choice("selectors", selector, all);
    return asked.empty() ? all : asked;
}

Problem read_queries(const std::string& file, const io::ResultsReader& results, int64_t layer,
                     const std::string& why_neighbours) {
    return naming(file, concat("layer ", layer),
                  [&] { return read(results, std::to_string(layer), why_neighbours); });
}

std::string ids_dataset(const std::string& selector, int64_t layer) {
    return concat("/select/", selector, "/", layer, "/ids");
}

Tensor<int32_t, 3> read_ids(const std::string& file, const io::ResultsReader& results,
                            const Problem& p, const std::string& selector, int64_t layer) {
    const std::string dataset = ids_dataset(selector, layer);
    return naming(file, dataset, [&] {
        Tensor<int32_t, 3> ids = results.read<int32_t, 3>(dataset);
        require(ids.extent(0) == p.queries() && ids.extent(1) == p.kv_heads && ids.extent(2) > 0,
                "shape is [", ids.extent(0), ", ", ids.extent(1), ", ", ids.extent(2),
                "], must be [Nq, Hkv, k] = [", p.queries(), ", ", p.kv_heads, ", at least 1]");
        check_selection(p, ids);
        return ids;
    });
}

}  // namespace msa::experiments
