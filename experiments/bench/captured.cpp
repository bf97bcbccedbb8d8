// SPDX-License-Identifier: MIT
#include "experiments/bench/captured.h"

#include <string>

namespace msa::experiments::bench {
namespace {

using io::Field;

void require_index(bool there, const std::filesystem::path& file, const std::string& where) {
    require(there, file.string(), ":", where, " has no index_q and index_k; msa-fit-indexer ",
            file.string(), " --out DIR fits them, and --indexer DIR/results.h5 takes the fit");
}

}  // namespace

Captured::Captured(const std::filesystem::path& input, const std::filesystem::path& indexer,
                   std::vector<int64_t> layers)
    : file_(input), indexer_(indexer), layers_(std::move(layers)) {
    if (!indexer_.empty()) {
        fitted_ = fit::read_branches(indexer_, file_, layers_);
    } else if (layers_.empty()) {
        for (const io::LayerInfo& info : file_.info().layers)
            if (info.has(Field::index_q)) layers_.push_back(info.layer);
        require_index(!layers_.empty(), input, "");
    }
    const Problem first = problem(layers_.front(), kMaxBlockSize);
    for (int64_t layer : layers_) {
        io::require_post_rope(file_, layer);
        const Problem p = problem(layer, kMaxBlockSize);
        const auto same = [&](const char* what, int64_t value, int64_t wanted) {
            require(value == wanted, input.string(), ": /layers/", layer, " has ", what, " ", value,
                    ", layer ", layers_.front(), " has ", wanted,
                    "; they must agree: choose with --layers");
        };
        same("query heads", p.query_heads, first.query_heads);
        same("key-value heads", p.kv_heads, first.kv_heads);
        same("head dim", p.head_dim, first.head_dim);
        same("index dim", p.index_dim, first.index_dim);
    }
}

std::vector<std::filesystem::path> Captured::inputs() const {
    std::vector<std::filesystem::path> paths{file_.captures().front().path};
    if (!indexer_.empty()) paths.push_back(indexer_);
    return paths;
}

void Captured::take_sizes(analysis::LayerSizes& sizes) const {
    const Problem p = problem(layers_.front(), kMaxBlockSize);
    sizes.query_heads = p.query_heads;
    sizes.kv_heads = p.kv_heads;
    sizes.head_dim = p.head_dim;
    sizes.index_dim = p.index_dim;
    if (indexer_.empty()) return;
    sizes.block_size = fitted_.sizes.block_size;
    sizes.top_k = fitted_.sizes.rule.top_k;
}

Problem Captured::problem(int64_t layer, int64_t block_size) const {
    const io::LayerInfo& info = file_.layer(layer);
    Problem p = io::layer_problem(file_.info(), info, block_size);
    p.window.reset();  // what is timed is plain causal attention
    p.softcap.reset();
    if (!indexer_.empty()) p.index_dim = fitted_.weights.at(layer).form().index_dim;
    require_index(p.index_dim > 0, file_.captures().front().path, concat(" /layers/", layer));
    return p;
}

Tensor<float, 3> Captured::read(int64_t layer, Field field, QueryRange range) const {
    if (!indexer_.empty() && (field == Field::index_q || field == Field::index_k))
        return fit::fitted_index(file_, layer, fitted_.weights.at(layer), field, range);
    return file_.read(layer, field, range);
}

}  // namespace msa::experiments::bench
