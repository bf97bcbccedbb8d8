// SPDX-License-Identifier: MIT
#include "experiments/precision/layer.h"

#include <algorithm>
#include <utility>

#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/measured_queries.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/measure/layer.h"

namespace msa::experiments::precision {
namespace {

using analysis::RowKind;
using io::Field;

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
};

/// Per precision and block of queries.
struct Recalls {
    Recalls(int64_t precisions, int64_t blocks)
        : own_recall({precisions, blocks}),
          block_recall({precisions, blocks}),
          mass_kept({precisions, blocks}) {}
    Tensor<double, 2> own_recall, block_recall, mass_kept;
};

/// Sums of squares.
struct Errors {
    Errors(int64_t precisions, int64_t blocks, int64_t heads)
        : difference({precisions, blocks, heads}), norm({blocks, heads}) {}
    Tensor<double, 3> difference;
    Tensor<double, 2> norm;
};

class LayerMeasurement {
public:
    LayerMeasurement(const PrecisionOptions& o, std::span<const Precision> precisions,
                     const io::ActivationsReader& file, const io::LayerInfo& layer,
                     const MeasuredQueries& queries, Backend& backend)
        : o_(o),
          precisions_(precisions),
          layer_(layer),
          queries_(queries),
          backend_(backend),
          data_(file, layer, float_elements(layer, {})),
          whole_(data_.problem(o.block_size)),
          all_(whole_.with_query_rows(queries.tokens)),
          index_q_(data_.index_q(queries.tokens)),
          host_sinks_(data_.sinks()),
          sinks_(backend, host_sinks_.view()),
          index_(rows(), queries.blocks()),
          cache_(rows(), queries.blocks()),
          index_error_(rows(), queries.blocks(), whole_.query_heads),
          dense_error_(rows(), queries.blocks(), whole_.query_heads),
          sparse_error_(rows(), queries.blocks(), whole_.query_heads) {}

    void run(Progress& progress) {
        const int64_t most = chunk_queries(whole_);
        for (int64_t block = 0; block < queries_.blocks();) {
            int64_t end = block + 1;
            while (end < queries_.blocks() &&
                   queries_.first(end + 1) - queries_.first(block) <= most)
                ++end;
            add_chunk(block, end);
            progress.advance(queries_.first(end) - queries_.first(block));
            block = end;
        }
    }

    void write(const std::string& group, io::UnitWriter& to) const {
        if (has_index()) {
            const std::string index = group + "/index";
            write_bits(index, 1, 1, whole_.index_dim, to);
            write_blocks(index + "/own_recall", index_.own_recall,
                         "recall of the blocks of full precision", to);
            write_blocks(index + "/block_recall", index_.block_recall,
                         "recall of the oracle's blocks", to);
            write_blocks(index + "/mass_kept", index_.mass_kept, "mass kept", to);
            write_errors(index, index_error_, "sparse", "dense", to);
            to.attribute(index, "computed_in", names_of([&](const Precision& of) {
                             return select_element(backend_, whole_, of, o_.rule.top_k);
                         }));
        }
        const std::string cache = group + "/cache";
        write_bits(cache, 2, whole_.kv_heads, whole_.head_dim, to);
        write_blocks(cache + "/mass_kept", cache_.mass_kept,
                     "mass kept by the oracle of the stored keys", to);
        write_errors(cache + "/dense", dense_error_, "dense", "dense", to);
        if (has_index()) write_errors(cache + "/sparse", sparse_error_, "sparse", "sparse", to);
        to.attribute(cache, "computed_in", names_of([&](const Precision& of) {
                         return attend_element(backend_, whole_, layer_, of, o_.rule.top_k);
                     }));
    }

private:
    int64_t rows() const { return std::ssize(precisions_); }
    bool has_index() const { return layer_.has(Field::index_q); }

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
    static void write_blocks(const std::string& dataset, const Tensor<double, 2>& values,
                             const std::string& what, io::UnitWriter& to) {
        to.write<double, 2>(
            dataset, values.view(),
            {"precision,block", "1", what + ", mean over the queries of a block and the groups"});
    }
    static void write_errors(const std::string& group, const Errors& errors, const char* of,
                             const char* to_what, io::UnitWriter& to) {
        to.write<double, 3>(group + "/difference", errors.difference.view(),
                            {"precision,block,head", "",
                             text("sum of |o - o'|^2 over the queries of a block: ", of,
                                  " attention against ", to_what, " at full precision")});
        to.write<double, 2>(group + "/norm", errors.norm.view(),
                            {"block,head", "", "sum of |o'|^2 likewise"});
    }

    void add_chunk(int64_t block, int64_t end_block) {
        const QueryRange range{queries_.first(block), queries_.first(end_block)};
        const int64_t count = range.end - range.begin;
        const Problem p = all_.with_queries(range);
        const Tensor<float, 3> q =
            data_.q(std::span(queries_.tokens)
                        .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(count)));
        const auto ids_of = [&](int64_t s) {
            return select(p, range, precisions_[static_cast<size_t>(s)]);
        };
        Tensor<int32_t, 3> own;
        if (has_index()) own = ids_of(0);
        const View<const int32_t, 3> own_ids = std::as_const(own).view();
        const Attended full = attend_as({}, p, q, own_ids);
        const auto each_block = [&](const auto& add) {
            for (int64_t b = block; b < end_block; ++b)
                add(b, queries_.first(b) - range.begin, queries_.first(b + 1) - queries_.first(b));
        };
        for (int64_t s = 0; s < rows(); ++s) {
            stop_if_asked();
            const Precision& precision = precisions_[static_cast<size_t>(s)];
            if (has_index()) {
                const Tensor<int32_t, 3> ids = ids_of(s);
                const Tensor<float, 3> sparse = attend_ids(p, q, ids.view());
                each_block([&](int64_t b, int64_t first, int64_t n) {
                    const Problem part = p.with_queries({first, first + n});
                    const View<const int32_t, 3> picked = ids.view().slice(first, n);
                    const View<const float, 3> mass = full.mass.view().slice(first, n);
                    const analysis::Recall oracle =
                        recall(part, picked, full.oracle_ids.view().slice(first, n), mass);
                    index_.own_recall(s, b) = analysis::average(
                        recall(part, picked, own_ids.slice(first, n), mass).block_recall());
                    index_.block_recall(s, b) = analysis::average(oracle.block_recall());
                    index_.mass_kept(s, b) = analysis::average(oracle.mass_kept());
                    add_error(s, b, sparse.view().slice(first, n),
                              full.dense.view().slice(first, n), index_error_);
                });
            }
            const Attended of = attend_as(precision, p, q, own_ids);
            each_block([&](int64_t b, int64_t first, int64_t n) {
                const analysis::Recall oracle = recall(
                    p.with_queries({first, first + n}), of.oracle_ids.view().slice(first, n),
                    full.oracle_ids.view().slice(first, n), full.mass.view().slice(first, n));
                cache_.mass_kept(s, b) = analysis::average(oracle.mass_kept());
                add_error(s, b, of.dense.view().slice(first, n), full.dense.view().slice(first, n),
                          dense_error_);
                if (own_ids)
                    add_error(s, b, of.sparse.view().slice(first, n),
                              full.sparse.view().slice(first, n), sparse_error_);
            });
        }
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
        const Element element = attend_element(backend_, p, layer_, precision, o_.rule.top_k);
        const Tensor<float, 3> host_q = stored({.rotated = precision.rotated}, full_q.view());
        const Tensor<float, 3> host_k = stored(precision, host_view(data_.k));
        const Tensor<float, 3> host_v = stored(precision, host_view(data_.v));
        const Operand<3> q(backend_, host_view(host_q), element),
            k(backend_, host_view(host_k), element), v(backend_, host_view(host_v), element);
        const AttentionInput input{q.view(), k.view(), v.view(), sinks_};
        Attended of{attend(backend_, p, input, {}).out, {}, {}, {}};
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

    analysis::Recall recall(const Problem& p, View<const int32_t, 3> ids, View<const int32_t, 3> of,
                            View<const float, 3> mass) const {
        analysis::Recall recall(p.kv_heads, {o_.oracle_without_local});
        recall.add(p, counted(p.queries()), ids, of, mass);
        return recall;
    }
    static std::vector<RowKind> counted(int64_t queries) {
        return std::vector<RowKind>(static_cast<size_t>(queries), RowKind::counted);
    }
    static void add_error(int64_t s, int64_t block, View<const float, 3> out,
                          View<const float, 3> full, Errors& errors) {
        analysis::OutputError error(out.extent(1));
        error.add(counted(out.extent(0)), out, full);
        std::copy(error.differences().begin(), error.differences().end(),
                  errors.difference.view()[s][block].data());
        std::copy(error.norms().begin(), error.norms().end(), errors.norm.view()[block].data());
    }

    const PrecisionOptions& o_;
    std::span<const Precision> precisions_;
    const io::LayerInfo& layer_;
    const MeasuredQueries& queries_;
    Backend& backend_;
    measure::LayerData data_;
    Problem whole_, all_;
    Tensor<float, 3> index_q_;  // of the measured queries
    Tensor<float, 1> host_sinks_;
    Sinks sinks_;
    Recalls index_, cache_;
    Errors index_error_, dense_error_, sparse_error_;
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
    const MeasuredQueries queries = choose_queries(o, o, o.all_rows, o.seed, file.info(), layer);
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
    write_queries(queries, "/queries/" + name, to);
    measurement.write("/precision/" + name, to);
}

}  // namespace msa::experiments::precision
