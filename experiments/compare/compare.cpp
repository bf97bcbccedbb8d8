// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iostream>
#include <map>

#include "core/cu_seqlens.h"
#include "core/select/token_selector.h"
#include "experiments/compare/layer.h"
#include "experiments/compare/plan.h"
#include "experiments/compare/rows.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/run.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::compare {
namespace {

/// The nearest layer before `layer` in the file, if it has the same sizes.
const io::LayerInfo* layer_before(const io::ActivationsReader& file, const io::LayerInfo& layer) {
    const io::LayerInfo* before = nullptr;
    for (const io::LayerInfo& other : file.info().layers)
        if (other.layer < layer.layer) before = &other;
    return before != nullptr && same_sizes(*before, layer) ? before : nullptr;
}

/// The selectors that run on a layer: those chosen, or all that can.
std::vector<std::string> selectors_for(const CompareOptions& o, const io::ActivationsReader& file,
                                       const io::LayerInfo& layer) {
    const bool has_before = layer_before(file, layer) != nullptr;
    std::vector<std::string> names = o.selectors.empty() ? list_policies() : o.selectors;
    std::erase_if(names, [&](const std::string& name) {
        const std::string why = why_unusable(o, layer, has_before, name);
        require(why.empty() || o.selectors.empty(), file.name(), ": selector ", name,
                " cannot run on layer ", layer.layer, ": ", why);
        return !why.empty();
    });
    return names;
}

/// Where all selectors are asked for, a line for each reason that some do not run.
void note_left_out(const CompareOptions& o, const io::ActivationsReader& file,
                   const std::vector<io::LayerInfo>& layers, std::ostream& err) {
    if (!o.selectors.empty()) return;
    std::map<std::pair<std::string, std::vector<int64_t>>, std::vector<std::string>> left_out;
    for (const std::string& name : list_policies()) {
        std::map<std::string, std::vector<int64_t>> reasons;
        for (const io::LayerInfo& layer : layers)
            reasons[why_unusable(o, layer, layer_before(file, layer) != nullptr, name)].push_back(
                layer.layer);
        reasons.erase("");
        for (const auto& reason : reasons) left_out[reason].push_back(name);
    }
    for (const auto& [reason, names] : left_out)
        err << "note: without " << join(names) << " on " << layers_text(reason.second) << ": "
            << reason.first << '\n';
}

/// Budgets that nobody named are of at most half of the longest sequence: queries that see no more
/// than the largest one choose nothing.
void fit_budgets(CompareOptions& o, std::span<const std::string> args,
                 const io::ActivationsInfo& info, std::ostream& err) {
    if (given(args, "budgets")) return;
    const int64_t longest = longest_sequence(info.cu_seqlens);
    const auto large = [&](const Budget& budget) {
        return 2 * budget.value > static_cast<double>(longest);
    };
    if (std::ranges::none_of(o.budgets, large)) return;
    std::erase_if(o.budgets, large);
    if (o.budgets.empty()) o.budgets.push_back(parse_budget(concat(ceil_div(longest, 4))));
    o.asked.clear();
    for (const Budget& budget : o.budgets) o.asked.push_back(budget.asked);
    err << "note: --budgets is " << join(o.asked, ",") << " for a longest sequence of " << longest
        << " tokens\n";
}

/// One line where budgets are more than the longest sequence.
void note_large_budgets(const CompareOptions& o, const io::ActivationsInfo& info,
                        std::ostream& err) {
    const int64_t longest = longest_sequence(info.cu_seqlens);
    for (const Budget& budget : o.budgets)
        if (!budget.is_share && budget.value > static_cast<double>(longest))
            err << "note: --budgets has " << budget.asked << ", more than the " << longest
                << " tokens of the longest sequence; " << longest << " are used\n";
}

/// One line for each budget that leaves a selector of blocks nothing to choose: the rows of such a
/// budget are alike.
void note_forced_budgets(const CompareOptions& o, const Problem& sizes, std::ostream& err) {
    if (o.ablation == Ablation::forced) return;  // its table says what is forced
    const std::string selector = "oracle";
    for (const Config& config : make_plan(o, {selector}, sizes, {}).configs)
        if (config.selector == selector &&
            config.rule.top_k <= config.rule.forced_first + config.rule.forced_local)
            err << "note: a budget of " << config.budget << " is " << config.rule.top_k
                << (config.rule.top_k == 1 ? " block of " : " blocks of ") << config.block_size
                << ", forced: no selector of blocks has one to choose\n";
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<CompareOptions> parsed = parse_compare_options(args, out);
    if (!parsed) return 0;
    CompareOptions& o = *parsed;
    const io::ActivationsReader file(o.files);
    const std::vector<io::LayerInfo> layers = pick_full_layers(o, file, err);
    for (const io::LayerInfo& layer : layers) selectors_for(o, file, layer);  // can throw
    if (o.ablation != Ablation::block_size) take_own_block_size(o.block_size, args, layers, err);
    note_left_out(o, file, layers, err);
    fit_budgets(o, args, file.info(), err);
    note_large_budgets(o, file.info(), err);
    for (const io::LayerInfo& layer : layers)
        compared_queries(o, file, layer, selectors_for(o, file, layer));  // can throw
    note_forced_budgets(o, io::layer_problem(file.info(), layers.front(), o.block_size), err);
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_own_backend(o);

    UnitRun job(kProgram.name, args, o, inputs_of(o, o),
                {"summary.json", "metrics.csv", "timing.json", "compare.txt", "tables"}, err);
    job.describe(option_table(o), report::definitions(tables()), *backend, file, o.element);
    const auto queries = [&](const io::LayerInfo& layer) {
        return compared_queries(o, file, layer, selectors_for(o, file, layer));
    };
    return job.run(query_units(
                       file, o.layers, o.unit_queries,
                       [&](const io::LayerInfo& layer) { return queries(layer).blocks.begins; },
                       [&](const LayerPart& part, const Worker& worker, io::UnitWriter& to) {
                           const io::LayerInfo& layer = part.layer;
                           compare_part(o, file, part, layer_before(file, layer),
                                        selectors_for(o, file, layer), queries(layer), worker, to);
                       }),
                   o, *backend, answer, out, join_layer);
}

RunAnswer answer(const io::ResultsReader& results) {
    const std::vector<LayerRows> rows = read_rows(results);
    check_compare_order(results, rows);
    return {make_report(results, rows), "compare.txt",
            [csv = compare_csv(results, rows)](const Completed& run) {
                write_text(run.out / "metrics.csv", csv);
                write_text(run.out / "timing.json", compare_timing(run.out / "run.json"));
            }};
}

}  // namespace msa::experiments::compare
