// SPDX-License-Identifier: MIT
#include "experiments/precision/layer.h"

#include <algorithm>
#include <utility>

#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/program.h"
#include "experiments/measure/measure.h"
#include "experiments/report/text.h"

namespace msa::experiments::precision {
namespace {

using measure::BlockRows;
using measure::copy_of;
using measure::MeasuredChunk;

Tensor<float, 3> stored(const Precision& precision, View<const float, 3> values) {
    Tensor<float, 3> copy = copy_of(values);
    store_as(precision, copy);
    return copy;
}

/// index_q [n, Hkv, didx] of the measured queries, and index_k [Nk, 1, didx], on the host.
struct IndexOperands {
    Tensor<float, 3> q, k;
};

/// Those that the weights make of x [Nk, d_model]. The norm's weights stay as they are.
IndexOperands project(View<const float, 2> x, std::span<const int64_t> positions,
                      IndexWeights weights, std::span<const int64_t> tokens, const Projection& as,
                      int threads) {
    for (View<float, 2> w : {weights.w_q(), weights.w_k()})
        store_as(as.precision, View<float, 3>(w.data(), {w.extent(0), 1, w.extent(1)}));
    ChangeProduct change;
    if (as.rounded_product)
        change = [&](View<float, 3> product) { store_as(as.precision, product); };
    return {gather_rows(index_queries(weights, x, positions, threads, change).view(), tokens),
            index_keys(weights, x, positions, threads, change)};
}

/// The operands of every projection of a layer, whose x is read once.
std::vector<IndexOperands> project_all(const io::ActivationsReader& file, int64_t layer,
                                       const Problem& p, const IndexWeights& weights,
                                       std::span<const int64_t> tokens,
                                       std::span<const Projection> projected, int threads) {
    const Tensor<float, 3> x = file.read(layer, io::Field::x, {0, file.info().tokens()});
    std::vector<int64_t> positions;
    for (const KeyRange& seen : visible_keys(p)) positions.push_back(seen.count - 1);
    std::vector<IndexOperands> operands;
    for (const Projection& as : projected)
        operands.push_back(project(rows_of(x.view()), positions, weights, tokens, as, threads));
    return operands;
}

/// Attention of some queries over a cache, on the host.
struct Attended {
    Tensor<float, 3> dense, sparse;  // [Nq, Hq, dh]; sparse is absent without ids
    Tensor<int32_t, 3> oracle_ids;   // [Nq, Hkv, k]
};

/// The KV cache in each of the precisions, against attention at full precision.
class Caches : public measure::Observer {
public:
    Caches(const PrecisionOptions& o, std::span<const Precision> precisions,
           const measure::LayerData& data, Backend& backend, measure::Sums& sums)
        : o_(o),
          precisions_(precisions),
          data_(data),
          backend_(backend),
          host_sinks_(data.sinks()),
          sinks_(backend, host_sinks_.view()),
          sums_(sums) {}

    /// The first choice is that of full precision.
    void chosen(const MeasuredChunk&, size_t choice, View<const int32_t, 3> ids,
                const Attention* over) override {
        if (choice > 0) return;
        own_ids_ = copy_of(ids);
        sparse_ = copy_of(host_view(over->out));
    }
    void done(const MeasuredChunk& chunk) override {
        for (size_t s = 0; s < precisions_.size(); ++s) {
            stop_if_asked();
            add(concat("cache/", s), chunk, attend_as(precisions_[s], chunk));
        }
    }

private:
    void add(const std::string& name, const MeasuredChunk& chunk, const Attended& stored) {
        const Tensor<int32_t, 3>& oracle_ids = chunk.oracle(o_.rule);
        sums_.add(chunk.blocks, [&](const BlockRows& of) {
            analysis::Recall recall(of.problem.kv_heads, {});
            recall.add(of.problem, of.of(chunk.kinds), of.of(stored.oracle_ids), of.of(oracle_ids),
                       of.of(chunk.mass));
            const auto error = [&](const Tensor<float, 3>& out, const Tensor<float, 3>& full) {
                analysis::OutputError sums(full.extent(1));
                sums.add(of.of(chunk.kinds), of.of(out), of.of(full));
                return sums.state();
            };
            measure::States states{{name + "/recall", recall.state()},
                                   {name + "/dense_error", error(stored.dense, chunk.dense.out)}};
            if (sparse_.data() != nullptr)
                states.emplace_back(name + "/sparse_error", error(stored.sparse, sparse_));
            return states;
        });
    }

    /// With K and V stored so, over all keys and over those that full precision selects. The
    /// queries turn with the keys, and the outputs turn back.
    Attended attend_as(const Precision& precision, const MeasuredChunk& chunk) const {
        const Problem& p = chunk.problem;
        const Element element = attend_element(backend_, p, data_.info, precision, o_.rule.top_k);
        const Tensor<float, 3> host_q =
            stored({.rotated = precision.rotated}, host_view(chunk.queries.host_q));
        const Tensor<float, 3> host_k = stored(precision, host_view(data_.k));
        const Tensor<float, 3> host_v = stored(precision, host_view(data_.v));
        const Operand<3> q(backend_, host_view(host_q), element),
            k(backend_, host_view(host_k), element), v(backend_, host_view(host_v), element);
        const AttentionInput input{q.view(), k.view(), v.view(), sinks_};
        Attended of{attend(backend_, p, input, {}).out, {}, {}};
        if (own_ids_.data() != nullptr)
            of.sparse = attend_selected(backend_, p, input, own_ids_.view()).out;
        if (precision.rotated)
            for (Tensor<float, 3>* out : {&of.dense, &of.sparse})
                if (out->data() != nullptr) rotate(*out);
        const Mass mass(backend_, p, {q.view(), k.view(), sinks_}, false);
        of.oracle_ids = pick(backend_, p, o_.rule, mass.mass.view());
        return of;
    }

    const PrecisionOptions& o_;
    std::span<const Precision> precisions_;
    const measure::LayerData& data_;
    Backend& backend_;
    Tensor<float, 1> host_sinks_;
    Sinks sinks_;
    measure::Sums& sums_;
    Tensor<int32_t, 3> own_ids_;  // of the chunk, at full precision
    Tensor<float, 3> sparse_;     // attention over them
};

/// Writes the bits that `tensors` tensors take, each with its own scales. `element_of(precision)`
/// is the type that a precision is computed in.
template <typename ElementOf>
void write_bits(std::span<const Precision> precisions, const std::string& group, int64_t keys,
                int64_t tensors, int64_t heads, int64_t channels, const ElementOf& element_of,
                io::UnitWriter& to) {
    std::vector<double> bits;
    std::string computed_in;
    for (const Precision& precision : precisions) {
        bits.push_back(static_cast<double>(tensors) *
                       bits_per_token(precision, keys, heads, channels));
        add_item(computed_in, ",", msa::to_string(element_of(precision)));
    }
    to.write<double, 1>(group + "/bits", {bits.data(), {std::ssize(bits)}},
                        {"precision", "bit", "of a token, its share of the scales included"});
    to.attribute(group, "values", tensors * heads * channels);
    to.attribute(group, "computed_in", computed_in);
}

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

namespace {

/// The choice by operands that are stored so. The arguments must outlive it.
measure::Choice choice_by(std::string key, const IndexOperands& index, const Precision& precision,
                          const PrecisionOptions& o, Backend& backend) {
    return {.key = std::move(key),
            .block_size = o.block_size,
            .rule = o.rule,
            .used = o.rule,
            .ids = [&](const measure::ChunkView& of, QueryRange range) {
                Problem p = of.problem;
                p.index_dim = index.k.extent(2);
                const Tensor<float, 3> q = stored(precision, host_view(index.q)),
                                       k = stored(precision, host_view(index.k));
                return fetch(
                    backend,
                    select_ids(backend, p, o.rule, q.view().slice(range.begin, p.queries()),
                               k.view(), select_element(backend, p, precision, o.rule.top_k)));
            }};
}

}  // namespace

void precision_layer(const PrecisionOptions& o, std::span<const Precision> precisions,
                     const io::ActivationsReader& file, const io::LayerInfo& layer,
                     const IndexWeights* weights, const Worker& worker, io::UnitWriter& to) {
    const measure::LayerQueries queries =
        measure::counted_queries(o, o, o.all_rows, o.seed, file.info(), layer);
    const measure::LayerData data(file, layer, float_elements(layer, {}));
    Problem whole = data.problem(o.block_size);
    if (weights != nullptr) whole.index_dim = weights->form().index_dim;
    const bool has_index = whole.index_dim > 0;
    Backend& backend = worker.backend;
    measure::Task task = measure::task_of(o, o, o.seed, data, queries, backend);
    std::vector<Projection> projected;
    std::vector<IndexOperands> operands;  // as projected; or of the file
    if (weights != nullptr) {
        projected = projections(o.formats);
        operands = project_all(file, layer.layer, whole, *weights, queries.tokens, projected,
                               worker.threads);
    } else if (has_index) {
        operands.push_back({data.index_q(queries.tokens), copy_of(host_view(data.index_k))});
    }
    if (has_index) {
        task.compared_with = 0;
        task.compared_name = "precision_recall";
        for (size_t s = 0; s < precisions.size(); ++s)
            task.choices.push_back(
                choice_by(concat("index/", s), operands.front(), precisions[s], o, backend));
        for (size_t s = 1; s < projected.size(); ++s)
            task.choices.push_back(
                choice_by(concat("projections/", s), operands[s], precisions.front(), o, backend));
    }
    measure::Tally tally{measure::Sums(queries.blocks, task.part)};
    Caches caches(o, precisions, data, backend, tally.sums);
    Progress progress(worker.progress, concat("layer ", layer.layer), std::ssize(queries.tokens),
                      "queries");
    measure::measure(task, tally, caches, progress);

    const std::string name = std::to_string(layer.layer), group = "/precision/" + name;
    measure::write_layer_of(task, to);
    tally.write(to, name);
    if (has_index)
        write_bits(
            precisions, group + "/index", whole.keys(), 1, 1, whole.index_dim,
            [&](const Precision& of) { return select_element(backend, whole, of, o.rule.top_k); },
            to);
    if (projected.size() > 1) {
        std::vector<Precision> of_weights;
        for (const Projection& as : projected) of_weights.push_back(as.precision);
        write_bits(
            of_weights, group + "/projections", whole.keys(), 1, 1, 1,
            [](const Precision&) { return Element::f32; }, to);
    }
    write_bits(
        precisions, group + "/cache", whole.keys(), 2, whole.kv_heads, whole.head_dim,
        [&](const Precision& of) {
            return attend_element(backend, whole, layer, of, o.rule.top_k);
        },
        to);
}

}  // namespace msa::experiments::precision
