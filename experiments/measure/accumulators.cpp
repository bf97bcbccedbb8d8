// SPDX-License-Identifier: MIT
#include "experiments/measure/accumulators.h"

#include <string_view>

#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "analysis/sink.h"

namespace msa::experiments::measure {
namespace {

using analysis::State;

std::span<const analysis::RowKind> kinds_of(const ChosenRows& of) {
    return of.rows.of(of.chunk.kinds);
}

std::optional<State> add_recall(const ChosenRows& of) {
    if (!of.oracle) return std::nullopt;
    analysis::Recall recall(of.rows.problem.kv_heads, {of.task.oracle_without_local});
    recall.add(of.rows.problem, kinds_of(of), of.ids, of.oracle, of.rows.of(of.chunk.mass));
    return recall.state();
}

std::optional<State> add_mass(const ChosenRows& of) {
    if (of.oracle) return std::nullopt;
    KeptMass mass(of.rows.problem.kv_heads);
    mass.add(kinds_of(of), of.ids, of.rows.of(of.chunk.mass));
    return mass.state();
}

std::optional<State> add_error(const ChosenRows& of) {
    if (!of.out) return std::nullopt;
    analysis::OutputError error(of.rows.problem.query_heads);
    error.add(kinds_of(of), of.out, of.rows.of(of.chunk.dense.out));
    return error.state();
}

std::optional<State> add_group_error(const ChosenRows& of) {
    if (of.out) return std::nullopt;
    analysis::OutputError error(of.rows.problem.kv_heads);
    error.add(kinds_of(of), of.squared, of.rows.of(of.chunk.norm));
    return error.state();
}

std::optional<State> add_sink(const ChosenRows& of) {
    analysis::SinkMass sink(of.rows.problem.query_heads, of.task.sink_tokens);
    sink.add(of.rows.problem, of.rows.of(of.chunk.first_logits), of.lse, of.ids, kinds_of(of));
    return sink.state();
}

/// The mean of all columns.
Numbers mean(const LayerNumbers& of, const std::string& sums) { return of.mean(sums); }
/// Of the first half of the columns: the first token, not the first tokens.
Numbers first_token(const LayerNumbers& of, const std::string& sums) {
    return of.mean_of_heads(sums, 0, 2);
}
template <int64_t Part>
Numbers third(const LayerNumbers& of, const std::string& sums) {
    return of.mean_of_heads(sums, Part, 3);
}
Numbers of_heads(const LayerNumbers& of, const std::string& sums) {
    return of.mean_of_heads(sums, 0, 1);
}
Numbers error(const LayerNumbers& of, const std::string& sums) { return of.error(sums); }
template <size_t Column>
Numbers recall(const LayerNumbers& of, const std::string& sums) {
    return of.recall(sums, analysis::Recall::kColumns[Column]);
}
template <size_t Column>
constexpr ChoiceNumber of_recall() {
    return {analysis::Recall::kColumns[Column], recall<Column>};
}

/// Made on first use, as tables are made of it before main().
const std::vector<Accumulator>& all() {
    static const std::vector<Accumulator> list{
        {"recall",
         [](const Measured& of) { return of.recalls; },
         {of_recall<0>(), of_recall<1>(), of_recall<2>(), of_recall<3>()},
         add_recall},
        {"mass", [](const Measured& of) { return !of.recalls; }, {{"mass_kept", mean}}, add_mass},
        {"output_error",
         [](const Measured& of) { return of.attention && of.error_of == ErrorOf::head; },
         {{"output_error", error}},
         add_error},
        {"group_output_error",
         [](const Measured& of) { return of.attention && of.error_of == ErrorOf::group; },
         {{"group_output_error", error}},
         add_group_error},
        {"dense/sink", [](const Measured&) { return true; }, {{"sink_mass_dense", first_token}}},
        {"sink",
         [](const Measured& of) { return of.attention; },
         {{"sink_mass_sparse", first_token}},
         add_sink},
        {"dense/entropy",
         [](const Measured& of) { return of.entropies; },
         {{"entropy_dense", of_heads}}},
        {"entropy",
         [](const Measured& of) { return of.entropies; },
         {{"entropy_sparse", of_heads}}},
        {"ties",
         [](const Measured& of) { return of.ties; },
         {{"tied", third<0>}, {"tied_by_rounding", third<1>}, {"all_tied", third<2>}}},
    };
    return list;
}

}  // namespace

std::string Accumulator::sums_of(const std::string& choice) const {
    return std::string_view(sums).starts_with("dense/") ? sums : concat(choice, "/", sums);
}

std::span<const Accumulator> list_accumulators() { return all(); }

}  // namespace msa::experiments::measure
