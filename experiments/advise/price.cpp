// SPDX-License-Identifier: MIT
#include "experiments/advise/price.h"

#include <algorithm>
#include <vector>

#include "analysis/bytes.h"
#include "core/select/cost.h"
#include "core/select/lightning.h"

namespace msa::experiments::advise {
namespace {

using analysis::Pipeline, analysis::real;

Price price_of(const Pipeline& pipeline, int64_t order, const analysis::Hardware& on) {
    return {pipeline.total(on), pipeline.seconds(on), order};
}

}  // namespace

Pricer::Pricer(const io::LayerInfo& layer, int64_t context, bool decode,
               const analysis::Hardware& on)
    : layer_(layer), context_(context), decode_(decode), on_(on) {}

analysis::LayerSizes Pricer::sizes(int64_t block_size, int64_t top_k) const {
    analysis::LayerSizes s;
    s.tokens = context_;
    s.query_heads = layer_.query_heads;
    s.kv_heads = layer_.kv_heads;
    s.head_dim = layer_.head_dim;
    s.index_dim = std::max<int64_t>(1, layer_.index_dim);  // read for an Index Branch alone
    s.block_size = block_size;
    s.top_k = top_k;
    return s;
}

Price Pricer::dense() const {
    const analysis::LayerSizes s = sizes(1, 1);
    return price_of((decode_ ? decode_pipelines(s) : prefill_pipelines(s)).front(), 0, on_);
}

analysis::Cost Pricer::scores(const Setting& setting) const {
    const auto [at, is_new] = known_.insert({{setting.selector, setting.block_size}, {}});
    if (!is_new) return at->second;
    io::ActivationsInfo whole;
    whole.cu_seqlens = {0, context_};
    const Problem all = io::layer_problem(whole, layer_, setting.block_size);
    const std::vector<int64_t> newest{context_ - 1};
    const Problem last = all.with_query_rows(newest);
    const Problem& asked = decode_ ? last : all;
    const std::unique_ptr<Selector> selector = make_selector(setting.selector);
    at->second = {selector->cost(asked, 0).flops, selector->cost(last, 0).bytes};
    if (at->second.bytes > 0) {  // else its scores know neither keys nor queries
        const int64_t width = selector->needs().lightning ? lightning_query_width(all)
                                                          : all.query_heads * all.head_dim;
        at->second.bytes += kCostElementBytes * real(asked.queries()) * real(width);
    }
    return at->second;
}

/// The scores and the ids.
analysis::Cost Pricer::selection(const Setting& setting) const {
    analysis::Cost cost = scores(setting);
    const int64_t queries = decode_ ? 1 : context_;
    cost.bytes += analysis::kIdBytes * real(layer_.kv_heads * queries * setting.rule.top_k);
    return cost;
}

Price Pricer::fastest(const Setting& setting, std::optional<double> tile_union,
                      const std::optional<analysis::Cost>& selection) const {
    analysis::LayerSizes s = sizes(setting.block_size, setting.rule.top_k);
    s.tile_union = tile_union;
    s.validate();
    std::vector<Pipeline> pipelines = decode_ ? decode_pipelines(s) : prefill_pipelines(s);
    Price best;
    for (size_t n = 1; n < pipelines.size(); ++n) {
        if (selection) pipelines[n].stages.front().cost = *selection;
        const Price price = price_of(pipelines[n], static_cast<int64_t>(n), on_);
        if (n == 1 || price.seconds < best.seconds) best = price;
    }
    return best;
}

Price Pricer::operator()(const Setting& setting, std::optional<double> tile_union) const {
    if (make_selector(setting.selector)->needs().index) return fastest(setting, tile_union, {});
    return fastest(setting, tile_union, selection(setting));
}

Price Pricer::of_given_ids(const Setting& setting, std::optional<double> tile_union) const {
    return fastest(setting, tile_union, analysis::Cost{});
}

}  // namespace msa::experiments::advise
