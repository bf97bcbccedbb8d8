// SPDX-License-Identifier: MIT
#include "experiments/bench/captured.h"

#include <string>

#include "experiments/driver/options.h"
#include "experiments/fit/indexer_file.h"
#include "experiments/fit/options.h"
#include "experiments/fit/state.h"

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
        read_indexer();
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

void Captured::read_indexer() {
    const io::ResultsReader results(indexer_);
    const std::string name = indexer_.string();
    const std::vector<std::string> fitted =
        results.has("/fit") ? results.list("/fit") : std::vector<std::string>();
    require(!fitted.empty(), name, ": has no /fit, must be the results.h5 of msa-fit-indexer");
    if (layers_.empty())
        for (const std::string& layer : fitted) layers_.push_back(std::stoll(layer));
    for (int64_t layer : layers_) {
        require(results.has(concat("/fit/", layer)), name, ": has no layer ", layer,
                ", must be one of: ", join(fitted));
        const io::LayerInfo& info = file_.layer(layer);
        const std::string at = concat(file_.name(), ": /layers/", layer);
        require(info.has(Field::x), at, " has no x, which the Index Branch of ", name, " projects");
        const IndexWeights& weights =
            weights_.emplace(layer, fit::read_weights(results, layer)).first->second;
        const auto same = [&](const char* what, int64_t value, int64_t wanted) {
            require(value == wanted, at, " has ", what, " ", value, ", ", name, " is for ", wanted);
        };
        require(weights.form().architecture == Architecture::msa, name, ": /fit/", layer,
                " is an indexer of --architecture ", weights.form().traits().name,
                ", must be of msa");
        same("d_model", info.model_dim, weights.form().model_dim);
        same("key-value heads", info.kv_heads, weights.form().groups);
    }
    fitted_to_ = recorded_options<fit::FitOptions>(results.run().options);
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
    if (!fitted_to_) return;
    sizes.block_size = fitted_to_->block_size;
    sizes.top_k = fitted_to_->rule.top_k;
}

Problem Captured::problem(int64_t layer, int64_t block_size) const {
    const io::LayerInfo& info = file_.layer(layer);
    Problem p = io::layer_problem(file_.info(), info, block_size);
    p.window.reset();  // what is timed is plain causal attention
    p.softcap.reset();
    if (!weights_.empty()) p.index_dim = weights_.at(layer).form().index_dim;
    require_index(p.index_dim > 0, file_.captures().front().path, concat(" /layers/", layer));
    return p;
}

Tensor<float, 3> Captured::read(int64_t layer, Field field, QueryRange range) const {
    if (!weights_.empty() && (field == Field::index_q || field == Field::index_k))
        return fit::fitted_index(file_, layer, weights_.at(layer), field, range);
    return file_.read(layer, field, range);
}

}  // namespace msa::experiments::bench
