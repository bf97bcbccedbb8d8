// SPDX-License-Identifier: MIT
#include "experiments/precision/layer.h"

#include <algorithm>
#include <utility>

#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "core/tolerance.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/measure/checks.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::precision {
namespace {

using analysis::RowKind;
using io::Field;
using measure::BlockRows;

Tensor<float, 3> stored(const Precision& precision, View<const float, 3> values) {
    Tensor<float, 3> copy(values.shape(), Fill::nothing);
    std::copy_n(values.data(), values.size(), copy.data());
    store_as(precision, copy);
    return copy;
}

/// Attention of some queries as `precision` has it, on the host.
struct Attended {
    Tensor<float, 3> dense, sparse;  // [Nq, Hq, dh]; sparse is absent without ids
    Tensor<int32_t, 3> oracle_ids;   // [Nq, Hkv, k]
    Tensor<float, 3> mass;           // [Nq, Hkv, B]
    Tensor<float, 2> lse;            // [Nq, Hq] of dense attention
};

class LayerMeasurement {
public:
    LayerMeasurement(const PrecisionOptions& o, std::span<const Precision> precisions,
                     const io::ActivationsReader& file, const io::LayerInfo& layer,
                     const measure::LayerQueries& queries, Backend& backend)
        : o_(o),
          precisions_(precisions),
          queries_(queries),
          backend_(backend),
          data_(file, layer, float_elements(layer, {})),
          whole_(data_.problem(o.block_size)),
          all_(whole_.with_query_rows(queries.tokens)),
          index_q_(data_.index_q(queries.tokens)),
          host_sinks_(data_.sinks()),
          sinks_(backend, host_sinks_.view()),
          k_norm_(largest_norm(host_view(data_.k))),
          sums_(queries.blocks, {0, all_.queries()}) {}

    void run(Progress& progress) {
        for (const QueryRange range :
             measure::chunks(queries_.blocks, {0, all_.queries()},
                             measure::chunk_queries(backend_, whole_, 4, 3))) {
            add(range);
            progress.advance(range.end - range.begin);
        }
    }

    void write(const std::string& layer, io::UnitWriter& to) const {
        const std::string group = "/precision/" + layer;
        sums_.write(to, layer);
        checks_.write(to, layer);
        if (has_index()) {
            write_bits(group + "/index", 1, 1, whole_.index_dim, to);
            to.attribute(group + "/index", "computed_in", names_of([&](const Precision& of) {
                             return select_element(backend_, whole_, of, o_.rule.top_k);
                         }));
        }
        write_bits(group + "/cache", 2, whole_.kv_heads, whole_.head_dim, to);
        to.attribute(group + "/cache", "computed_in", names_of([&](const Precision& of) {
                         return attend_element(backend_, whole_, data_.info, of, o_.rule.top_k);
                     }));
    }

private:
    int64_t rows() const { return std::ssize(precisions_); }
    bool has_index() const { return data_.info.has(Field::index_q); }

    template <typename ElementOf>
    std::string names_of(const ElementOf& element_of_row) const {
        std::string names;
        for (const Precision& precision : precisions_)
            names += text(names.empty() ? "" : ",", msa::to_string(element_of_row(precision)));
        return names;
    }

    /// Of so many tensors, each with scales of its own.
    void write_bits(const std::string& group, int64_t tensors, int64_t heads, int64_t channels,
                    io::UnitWriter& to) const {
        std::vector<double> bits;
        for (const Precision& precision : precisions_)
            bits.push_back(static_cast<double>(tensors) *
                           bits_per_token(precision, whole_.keys(), heads, channels));
        to.write<double, 1>(group + "/bits", {bits.data(), {rows()}},
                            {"precision", "bit", "of a token, its share of the scales included"});
        to.attribute(group, "values", tensors * heads * channels);
    }

    void add(QueryRange range) {
        const Problem p = all_.with_queries(range);
        const Tensor<float, 3> q = data_.q(queries_.tokens_of(range));
        const auto ids_of = [&](int64_t s) {
            return select(p, range, precisions_[static_cast<size_t>(s)]);
        };
        Tensor<int32_t, 3> own;
        if (has_index()) own = ids_of(0);
        const View<const int32_t, 3> own_ids = std::as_const(own).view();
        const Attended full = attend_as({}, p, q, own_ids);
        const Tensor<double, 2> norm = analysis::squared_differences(full.dense, {}, p.kv_heads);
        checks_.begin(
            {p, full.mass, norm, measure::chunk_mass_bound(p, q, k_norm_, host_view(full.lse))},
            queries_.tokens_of(range));
        for (int64_t s = 0; s < rows(); ++s) {
            stop_if_asked();
            if (has_index()) {
                const Tensor<int32_t, 3> ids = ids_of(s);
                add_index(text("index/", s), range, p, full, ids, own_ids,
                          attend_ids(p, q, ids.view()));
            }
            add_cache(text("cache/", s), range, p, full,
                      attend_as(precisions_[static_cast<size_t>(s)], p, q, own_ids));
        }
    }

    void add_index(const std::string& name, QueryRange range, const Problem& p,
                   const Attended& full, View<const int32_t, 3> ids, View<const int32_t, 3> own_ids,
                   View<const float, 3> sparse) {
        checks_.check(name, ids, analysis::squared_differences(sparse, full.dense, p.kv_heads));
        sums_.add(measure::block_rows(p, queries_.blocks, range), [&](const BlockRows& of) {
            const auto picked = of.of(ids);
            return measure::States{
                {name + "/recall", recall(of, picked, of.of(full.oracle_ids), full)},
                {name + "/precision_recall", recall(of, picked, of.of(own_ids), full)},
                {name + "/output_error", error(of.of(sparse), of.of(full.dense))}};
        });
    }

    void add_cache(const std::string& name, QueryRange range, const Problem& p,
                   const Attended& full, const Attended& of_format) {
        sums_.add(measure::block_rows(p, queries_.blocks, range), [&](const BlockRows& of) {
            measure::States states{
                {name + "/recall",
                 recall(of, of.of(of_format.oracle_ids), of.of(full.oracle_ids), full)},
                {name + "/dense_error", error(of.of(of_format.dense), of.of(full.dense))}};
            if (full.sparse.data() != nullptr)
                states.emplace_back(name + "/sparse_error",
                                    error(of.of(of_format.sparse), of.of(full.sparse)));
            return states;
        });
    }

    /// On the host.
    Tensor<int32_t, 3> select(const Problem& p, QueryRange range, const Precision& precision) {
        const Tensor<float, 3> index_q = stored(precision, index_q_.view());
        const Tensor<float, 3> index_k = stored(precision, host_view(data_.index_k));
        const Element element = select_element(backend_, p, precision, o_.rule.top_k);
        return fetch(backend_, select_ids(backend_, p, o_.rule,
                                          index_q.view().slice(range.begin, p.queries()),
                                          index_k.view(), element));
    }

    /// At full precision.
    Tensor<float, 3> attend_ids(const Problem& p, const Tensor<float, 3>& host_q,
                                View<const int32_t, 3> ids) {
        const Operand<3> q(backend_, host_view(host_q)), k(backend_, host_view(data_.k)),
            v(backend_, host_view(data_.v));
        return attend_selected(backend_, p, {q.view(), k.view(), v.view(), sinks_}, ids).out;
    }

    /// With K and V stored so, over all keys and over those of `ids`. The queries turn with the
    /// keys, and the outputs turn back.
    Attended attend_as(const Precision& precision, const Problem& p, const Tensor<float, 3>& full_q,
                       View<const int32_t, 3> ids) {
        const Element element = attend_element(backend_, p, data_.info, precision, o_.rule.top_k);
        const Tensor<float, 3> host_q = stored({.rotated = precision.rotated}, full_q.view());
        const Tensor<float, 3> host_k = stored(precision, host_view(data_.k));
        const Tensor<float, 3> host_v = stored(precision, host_view(data_.v));
        const Operand<3> q(backend_, host_view(host_q), element),
            k(backend_, host_view(host_k), element), v(backend_, host_view(host_v), element);
        const AttentionInput input{q.view(), k.view(), v.view(), sinks_};
        Attention dense = attend(backend_, p, input, {});
        Attended of{std::move(dense.out), {}, {}, {}, std::move(dense.lse)};
        if (ids) of.sparse = attend_selected(backend_, p, input, ids).out;
        if (precision.rotated)
            for (Tensor<float, 3>* out : {&of.dense, &of.sparse})
                if (out->data() != nullptr) rotate(*out);
        Mass mass(backend_, p, {q.view(), k.view(), sinks_}, o_.oracle_by_logit);
        of.oracle_ids =
            pick(backend_, p, o_.rule, (o_.oracle_by_logit ? mass.max_logit : mass.mass).view());
        of.mass = fetch(backend_, std::move(mass.mass));
        return of;
    }

    analysis::State recall(const BlockRows& of, View<const int32_t, 3> ids,
                           View<const int32_t, 3> oracle_ids, const Attended& full) const {
        analysis::Recall recall(of.problem.kv_heads, {o_.oracle_without_local});
        recall.add(of.problem, counted(of.problem.queries()), ids, oracle_ids, of.of(full.mass));
        return recall.state();
    }
    static analysis::State error(View<const float, 3> out, View<const float, 3> full) {
        analysis::OutputError error(out.extent(1));
        error.add(counted(out.extent(0)), out, full);
        return error.state();
    }
    static std::vector<RowKind> counted(int64_t queries) {
        return std::vector<RowKind>(static_cast<size_t>(queries), RowKind::counted);
    }

    const PrecisionOptions& o_;
    std::span<const Precision> precisions_;
    const measure::LayerQueries& queries_;
    Backend& backend_;
    measure::LayerData data_;
    Problem whole_, all_;
    Tensor<float, 3> index_q_;  // of the measured queries
    Tensor<float, 1> host_sinks_;
    Sinks sinks_;
    double k_norm_;  // longest key
    measure::Sums sums_;
    measure::SelfChecks checks_;
};

}  // namespace

Element select_element(const Backend& backend, const Problem& p, const Precision& precision,
                       int64_t top_k) {
    const std::optional<Element> element = element_of(precision.format);
    const bool has = element && precision.unit == ScaleUnit::none &&
                     backend.supports(p, IndexSelectRequest{*element, top_k}).yes;
    return has ? *element : Element::f32;
}

Element attend_element(const Backend& backend, const Problem& p, const io::LayerInfo& layer,
                       const Precision& precision, int64_t top_k) {
    const std::optional<Element> element = element_of(precision.format);
    const bool has =
        element && *element == layer.element && !precision.rotated &&
        backend.supports(p, DenseAttentionRequest{*element}).yes &&
        backend.supports(p, SparseAttentionRequest{.element = *element, .top_k = top_k}).yes &&
        backend.supports(p, BlockMassRequest{*element}).yes;
    return has ? *element : Element::f32;
}

Tensor<int32_t, 3> select_ids(Backend& backend, const Problem& p, const SelectionRule& rule,
                              View<const float, 3> index_q, View<const float, 3> index_k,
                              Element element) {
    const Operand<3> q(backend, index_q, element);
    const Operand<2> k(backend, rows_of(index_k), element);
    auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
    backend.index_select(p, rule, {q.view(), k.view()}, ids);
    backend.finish();
    return ids;
}

void precision_layer(const PrecisionOptions& o, std::span<const Precision> precisions,
                     const io::ActivationsReader& file, const io::LayerInfo& layer,
                     const Worker& worker, io::UnitWriter& to) {
    const measure::LayerQueries queries =
        measure::counted_queries(o, o, o.all_rows, o.seed, file.info(), layer);
    LayerMeasurement measurement(o, precisions, file, layer, queries, worker.backend);
    Progress progress(worker.progress, text("layer ", layer.layer), std::ssize(queries.tokens),
                      "queries");
    measurement.run(progress);

    const std::string name = std::to_string(layer.layer);
    const Problem p = io::layer_problem(file.info(), layer, o.block_size);
    write_layer(to, layer, p,
                {{"block_size", p.block_size},
                 {"tokens", p.keys()},
                 {"longest_sequence", p.batch.longest_keys()},
                 {"queries", std::ssize(queries.tokens)}});
    measure::write_tokens(to, "/queries/" + name, queries.tokens);
    measurement.write(name, to);
}

}  // namespace msa::experiments::precision
