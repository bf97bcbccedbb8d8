// SPDX-License-Identifier: MIT
#include "experiments/driver/price.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "analysis/bytes.h"
#include "core/cu_seqlens.h"
#include "core/error.h"
#include "core/select/cost.h"
#include "core/select/lightning.h"
#include "core/select/selector.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/options.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

using analysis::Pipeline, analysis::real;

constexpr int64_t kMostContext = int64_t{1} << 24;
const std::vector<std::string> kPhases{"prefill", "decode"}, kCeilings{"peak", "measured"};

Price price_of(const Pipeline& pipeline, int64_t order, const analysis::Hardware& on) {
    return {pipeline.total(on), pipeline.seconds(on), order};
}

/// Those of list_hardware() that read_hardware(PricingOptions) takes.
std::vector<std::string> priced_hardware() {
    std::vector<std::string> names = list_hardware();
    std::erase_if(names, [](const std::string& name) {
        return !read_hardware(name, Ceilings::peak).flops_per_second.contains(Element::bf16);
    });
    return names;
}

}  // namespace

void add_pricing(OptionTable& table, PricingOptions& o, const std::string& not_priced) {
    table.count(
        "context", "N", o.context,
        "tokens of the sequence for which costs are computed; default: the longest sequence of "
        "FILE. Costs of a longer one are extrapolated" +
            not_priced,
        between(1, static_cast<double>(kMostContext)));
    add_model_layers(table, o.model_layers);
    table.choice("phase", "PHASE", o.decode, kPhases,
                 "phase for which costs are computed: prefill of the context, or decode of one "
                 "token after it");
    table
        .text("hardware", "CHIP", o.hardware,
              "a JSON file like those of data/hardware, or " + join(priced_hardware()))
        .offers(priced_hardware());
    table.choice("ceilings", "WHICH", o.ceilings, kCeilings,
                 "rates of the roofline: peak (published) or measured");
}

nlohmann::ordered_json TargetOptions::target() const {
    nlohmann::ordered_json target = nlohmann::ordered_json::object();
    if (keep) target["keep"] = *keep;
    if (lose) target["lose"] = *lose;
    if (error) target["error"] = *error;
    if (budget) target["budget"] = *budget;
    return target;
}

std::string TargetOptions::target_text(const std::string& of_error) const {
    if (keep) return concat("mass kept of at least ", *keep);
    if (lose) return concat("mass lost of at most ", *lose);
    if (error) return concat(of_error, " of at most ", *error);
    return concat("budget of at most ", budget.value(), " tokens");
}

void TargetOptions::check_target(std::optional<double> TargetOptions::*otherwise, double value) {
    const nlohmann::ordered_json all = target();
    std::vector<std::string> given;
    for (const auto& [name, bound] : all.items()) given.push_back("--" + name);
    require(given.size() <= 1, join(given, " and "), " exclude each other");
    if (given.empty()) this->*otherwise = value;
}

std::string pricing_text(const PricingOptions& o, int64_t measured, int64_t longest) {
    const int64_t layers = o.model_layers.value();
    std::string of = concat(layers, layers == 1 ? " layer" : " layers");
    if (layers > measured)
        of = concat(measured, measured == 1 ? " layer" : " layers", " for the ", layers,
                    " of the model");
    if (*o.context > longest)
        of += concat(", EXTRAPOLATED from sequences of at most ", count_text(longest), " tokens");
    return concat(kPhases[o.decode ? 1 : 0], " of ", count_text(*o.context), " tokens on ",
                  o.hardware, " (", kCeilings[static_cast<size_t>(o.ceilings)], " rates), ", of);
}

void resolve_pricing(PricingOptions& o, const io::ActivationsInfo& captured, int64_t measured,
                     int64_t all) {
    if (!o.context) o.context = longest_sequence(captured.cu_seqlens);
    if (!o.model_layers) o.model_layers = std::max(all, measured);
    require(*o.model_layers >= measured, "--model-layers is ", *o.model_layers,
            ", must be at least the ", measured, " layers measured");
}

double layers_share(const PricingOptions& o, int64_t measured) {
    return real(o.model_layers.value()) / real(measured);
}

analysis::Hardware read_hardware(const PricingOptions& o) {
    analysis::Hardware on = read_hardware(o.hardware, o.ceilings);
    require(on.flops_per_second.contains(Element::bf16), "--hardware is ", o.hardware,
            ", which has no rate for bf16, and costs are of bf16; msa-cost --element has others");
    return on;
}

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
    analysis::LayerSizes s = sizes(1, 1);
    s.window = layer_.window();
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
    at->second = {selector->cost({asked, 0, layer_.learned}).flops,
                  selector->cost({last, 0, layer_.learned}).bytes};
    if (at->second.bytes > 0) {  // else its scores know neither keys nor queries
        const PolicyNeeds needs = selector->needs();
        const int64_t width = needs.lightning ? lightning_query_width(all, layer_.learned)
                              : needs.qsa     ? qsa_query_width(all, layer_.learned)
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

Price Pricer::fastest(const Setting& setting, std::optional<double> union_blocks,
                      const std::optional<analysis::Cost>& selection) const {
    analysis::LayerSizes s = sizes(setting.block_size, setting.rule.top_k);
    s.given_union_blocks = union_blocks;
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

Price Pricer::operator()(const Setting& setting, std::optional<double> union_blocks) const {
    const std::unique_ptr<Selector> selector = make_selector(setting.selector);
    if (selector->takes_ids(layer_.learned)) return of_given_ids(setting, union_blocks);
    if (selector->needs().index) return fastest(setting, union_blocks, {});
    return fastest(setting, union_blocks, selection(setting));
}

Price Pricer::of_given_ids(const Setting& setting, std::optional<double> union_blocks) const {
    return fastest(setting, union_blocks, analysis::Cost{});
}

void write_price(io::UnitWriter& to, const std::string& group, const std::string& name,
                 const Price& price) {
    to.attribute(group, name + "_seconds", price.seconds);
    to.attribute(group, name + "_flops", price.work.flops);
    to.attribute(group, name + "_bytes", price.work.bytes);
}

Cost read_cost(const io::ResultsReader& results, const std::string& group,
               const std::string& name) {
    return {results.number(group, name + "_seconds"), results.number(group, name + "_flops"),
            results.number(group, name + "_bytes")};
}

}  // namespace msa::experiments
