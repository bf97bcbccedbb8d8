// SPDX-License-Identifier: MIT
#include "python/analysis.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

#include "analysis/entropy.h"
#include "analysis/metrics.h"
#include "analysis/output_error.h"
#include "analysis/overlap.h"
#include "analysis/popularity.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "core/selection.h"
#include "python/views.h"

namespace nb = nanobind;

namespace msa {
namespace {

using Doubles = std::vector<double>;
using Ids = View<const int32_t, 3>;
using Floats = View<const float, 3>;

constexpr int64_t kChunkQueries = 4096;  // bounds what add_rows() holds of each row

template <typename T, int Rank>
View<const T, Rank> checked(const char* name, const Operand& array, const char* axes,
                            const Shape<Rank>& expected) {
    const auto view = Views(kOnHost).typed<const T, Rank>(name, array);
    require(view.shape() == expected, name, " has shape ", to_string(view.shape()), ", must be ",
            axes, " = ", to_string(expected));
    return view;
}

Floats per_head(const char* name, const Operand& array, const Problem& p) {
    return checked<float, 3>(name, array, "[Nq, Hq, dh]", {p.queries(), p.query_heads, p.head_dim});
}

View<const float, 2> lse_of(const Operand& array, const Problem& p) {
    return checked<float, 2>("lse", array, "[Nq, Hq]", {p.queries(), p.query_heads});
}

/// Any k. What the measures read by these ids is there.
Ids selection(const char* name, const Operand& array, const Problem& p) try {
    p.validate();
    const auto k = array.axes == 3 ? array.shape[2] : 0;
    const Ids ids = checked<int32_t, 3>(name, array, "[Nq, Hkv, k]", {p.queries(), p.kv_heads, k});
    check_selection(p, ids);
    return ids;
} catch (const InputError& error) {
    const std::string said = error.what();
    throw InputError(said.starts_with("ids[") ? name + said.substr(3) : said);
}

/// The rows of a chunk. An absent view stays absent.
template <typename T, int Rank>
View<T, Rank> rows(View<T, Rank> all, QueryRange range) {
    return all ? all.slice(range.begin, range.end - range.begin) : all;
}

void each_chunk(const Problem& p, const std::function<void(const Problem&, QueryRange)>& body) {
    for (int64_t begin = 0; begin < p.queries(); begin += kChunkQueries) {
        const QueryRange range{begin, std::min(begin + kChunkQueries, p.queries())};
        body(p.with_queries(range), range);
    }
}

/// One list for each of Recall::kColumns.
std::vector<Doubles> recall(const Problem& p, const Operand& chosen, const Operand& best,
                            const Operand& mass, bool exclude_local, bool all_rows) {
    const Ids ids = selection("ids", chosen, p);
    const Ids oracle = selection("oracle_ids", best, p);
    const Floats all =
        checked<float, 3>("mass", mass, "[Nq, Hkv, B]", {p.queries(), p.kv_heads, p.blocks()});
    analysis::Recall found(p.kv_heads, {.exclude_local = exclude_local});
    each_chunk(p, [&](const Problem& part, QueryRange range) {
        found.add(part, analysis::row_kinds(part, ids.extent(2), all_rows), rows(ids, range),
                  rows(oracle, range), rows(all, range));
    });
    return {found.block_recall(), found.score_recall(), found.mass_kept(), found.oracle_mass()};
}

Doubles output_error(const Problem& p, const Operand& out, const Operand& dense_out, int64_t top_k,
                     bool all_rows) {
    p.validate();
    analysis::OutputError found(p.query_heads);
    found.add(analysis::row_kinds(p, top_k, all_rows), per_head("out", out, p),
              per_head("dense_out", dense_out, p));
    return found.relative();
}

Doubles sink_mass(const Problem& p, const Operand& q, const Operand& k, const Operand& lse,
                  const Maybe& chosen, int64_t tokens) {
    p.validate();
    const Floats queries = per_head("q", q, p);
    const Floats keys =
        checked<float, 3>("k", k, "[Nk, Hkv, dh]", {p.keys(), p.kv_heads, p.head_dim});
    const View<const float, 2> sums = lse_of(lse, p);
    const Ids ids = chosen ? selection("ids", *chosen, p) : Ids();
    analysis::SinkMass found(p.query_heads, tokens);
    each_chunk(p, [&](const Problem& part, QueryRange range) {
        found.add(part, found.logits(part, rows(queries, range), keys), rows(sums, range),
                  rows(ids, range));
    });
    return found.first_tokens();
}

Doubles entropy(const Problem& p, const Operand& q, const Operand& mean_key, const Operand& lse,
                const Maybe& sinks) {
    p.validate();
    const Floats queries = per_head("q", q, p), means = per_head("mean_key", mean_key, p);
    const View<const float, 2> sums = lse_of(lse, p);
    const auto logits = sinks ? checked<float, 1>("sinks", *sinks, "[Hq]", {p.query_heads})
                              : View<const float, 1>();
    analysis::Entropy found(p.query_heads);
    each_chunk(p, [&](const Problem& part, QueryRange range) {
        found.add(part, rows(queries, range), rows(means, range), rows(sums, range), logits);
    });
    return found.nats();
}

/// Row-major [Hkv, Hkv].
Doubles group_overlap(const Problem& p, const Operand& chosen, bool all_rows) {
    const Ids ids = selection("ids", chosen, p);
    analysis::GroupOverlap found(p.kv_heads);
    each_chunk(p, [&](const Problem& part, QueryRange range) {
        found.add(analysis::row_kinds(part, ids.extent(2), all_rows), rows(ids, range));
    });
    const Tensor<double, 2> matrix = found.matrix();
    return {matrix.data(), matrix.data() + matrix.size()};
}

double mean_overlap(const Problem& p, const Operand& a, const Operand& b) {
    return analysis::mean_overlap(selection("ids", a, p), selection("ids", b, p));
}

/// Row-major [Hkv, blocks of all sequences].
std::vector<int64_t> popularity(const Problem& p, const Operand& chosen) {
    const Ids ids = selection("ids", chosen, p);
    analysis::Popularity found(p);
    found.add(p, ids);
    const View<const int64_t, 2> counts = found.queries_per_block();
    return {counts.data(), counts.data() + counts.size()};
}

View<const int64_t, 1> view(const std::vector<int64_t>& counts) {
    return {counts.data(), {static_cast<int64_t>(counts.size())}};
}

}  // namespace

void define_analysis(nb::module_& m) {
    const auto any = nb::arg().none();
    nb::list table, columns;
    for (const analysis::Metric& known : analysis::list_metrics())
        table.append(
            nb::make_tuple(known.name, known.heading, known.unit, known.axis, known.definition));
    for (const char* column : analysis::Recall::kColumns) columns.append(column);
    m.attr("metrics") = table;
    m.attr("recall_columns") = columns;
    m.def("recall", recall, Free(), any, any, any, any, any, any);
    m.def("output_error", output_error, Free(), any, any, any, any, any);
    m.def("sink_mass", sink_mass, Free(), any, any, any, any, any, any);
    m.def("entropy", entropy, Free(), any, any, any, any, any);
    m.def("group_overlap", group_overlap, Free(), any, any, any);
    m.def("mean_overlap", mean_overlap, Free(), any, any, any);
    m.def("popularity", popularity, Free(), any, any);
    m.def("lorenz_curve",
          [](const std::vector<int64_t>& counts) { return analysis::lorenz_curve(view(counts)); });
    m.def("gini", [](const std::vector<int64_t>& counts) { return analysis::gini(view(counts)); });
}

}  // namespace msa
