// SPDX-License-Identifier: MIT
#include "experiments/measure/layer.h"

#include <algorithm>
#include <utility>

namespace msa::experiments::measure {

using io::Field;

namespace {

constexpr int64_t kMostKept = int64_t{1} << 28;  // bytes of q

/// The queries [n, Hkv, dh] of a view from q [n, Hq, dh].
Tensor<float, 3> one_of_each_group(View<const float, 3> q, int64_t group_size, int64_t view) {
    Tensor<float, 3> picked({q.extent(0), q.extent(1) / group_size, q.extent(2)});
    for (int64_t i = 0; i < picked.extent(0); ++i)
        for (int64_t r = 0; r < picked.extent(1); ++r)
            std::copy_n(q[i][r * group_size + view].data(), q.extent(2), &picked(i, r, 0));
    return picked;
}

Mirror<3> mirror_of(Backend& backend, const Operand<3>& there, const Tensor<float, 3>& here) {
    if (here.data() == nullptr) return {};
    return {backend, there.view(), host_view(here)};
}

}  // namespace

LayerData::LayerData(const io::ActivationsReader& file, const io::LayerInfo& layer,
                     const LayerElements& rounded, int64_t of_heads)
    : info(layer),
      elements(rounded),
      views(of_heads),
      file_(file.info()),
      read_(file, layer, rounded) {
    k = read_.all(Field::k);
    v = read_.all(Field::v);
    index_k = read_.all(Field::index_k);
    const Shape<3> all{file_.tokens(), layer.query_heads, layer.head_dim};
    if (element_count(all) * int64_t{sizeof(float)} > kMostKept) return;
    kept_ = Tensor<float, 3>(all, Fill::nothing);
    known_.resize(static_cast<size_t>(all[0]), false);
}

Tensor<float, 3> LayerData::q_rows(std::span<const int64_t> tokens) const {
    if (kept_.data() == nullptr) return read_.rows(Field::q, tokens);
    std::vector<int64_t> missing;
    for (int64_t token : tokens)
        if (!known_[static_cast<size_t>(token)] && (missing.empty() || missing.back() != token))
            missing.push_back(token);
    if (!missing.empty()) {
        const Tensor<float, 3> read = read_.rows(Field::q, missing);
        for (int64_t n = 0; n < read.extent(0); ++n) {
            const int64_t token = missing[static_cast<size_t>(n)];
            std::copy_n(read.view()[n].data(), read.extent(1) * read.extent(2),
                        kept_.view()[token].data());
            known_[static_cast<size_t>(token)] = true;
        }
    }
    return gather_rows(std::as_const(kept_).view(), tokens);
}

Tensor<float, 3> LayerData::q(std::span<const int64_t> tokens, size_t view) const {
    Tensor<float, 3> all = q_rows(tokens);
    return views == 1 ? std::move(all) : one_of_each_group(all, views, static_cast<int64_t>(view));
}

Tensor<float, 3> LayerData::index_q(std::span<const int64_t> tokens) const {
    return read_.rows(Field::index_q, tokens);
}

Tensor<float, 1> LayerData::sinks(size_t view) const {
    Tensor<float, 1> all = io::layer_sinks(info);
    if (all.data() == nullptr || views == 1) return all;
    Tensor<float, 1> picked({all.size() / views});
    for (int64_t r = 0; r < picked.size(); ++r)
        picked(r) = all(r * views + static_cast<int64_t>(view));
    return picked;
}

Problem LayerData::problem(int64_t block_size) const {
    Problem p = io::layer_problem(file_, info, block_size);
    p.query_heads = info.query_heads / views;
    return p;
}

Mirror<3> LayerData::mass(Backend& backend, std::span<const int64_t> tokens, int64_t block_size,
                          size_t view) const {
    const Problem p = problem(block_size).with_query_rows(tokens);
    const Tensor<float, 3> host_q = q(tokens, view);
    const Operand<3> q(backend, host_view(host_q), elements.main.computed),
        keys(backend, host_view(k), elements.main.computed);
    const Tensor<float, 1> host_sinks = sinks(view);
    const Sinks sinks(backend, host_sinks);
    Mirror<3> mass(backend, Mass(backend, p, {q.view(), keys.view(), sinks}, false).mass);
    backend.finish();
    return mass;
}

LayerView::LayerView(Backend& on, const LayerData& of, size_t view)
    : backend(on),
      data(of),
      index(view),
      k_there(on, host_view(of.k), of.elements.main.computed),
      v_there(on, host_view(of.v), of.elements.main.computed),
      index_k_there(on, rows_of(host_view(of.index_k)), of.elements.index.computed),
      host_sinks(of.sinks(view)),
      sinks(on, host_sinks),
      k(mirror_of(on, k_there, of.k)),
      v(mirror_of(on, v_there, of.v)) {
    if (of.index_k.data() != nullptr)
        index_k = {on, index_k_there.view(), rows_of(host_view(of.index_k))};
}

SelectorLayer LayerView::selector_layer(const Problem& whole, uint64_t seed) const {
    return {.problem = whole,
            .backend = backend,
            .k = k,
            .index_k = index_k,
            .v = v,
            .seed = seed,
            .number = data.info.layer,
            .read_q =
                [this](std::span<const int64_t> tokens) {
                    return Mirror<3>(backend, data.q(tokens, index));
                },
            .learned = data.info.learned,
            .read_learned = data.learned(),
            .rope = io::stored_rope(data.info).value_or(RopePairs{}),
            .sinks = sinks};
}

ChunkView::ChunkView(const SelectorLayer& of, const LayerView& view, Problem queries,
                     std::span<const int64_t> packed, bool with_logits,
                     std::function<Mirror<3>()> previous)
    : problem(std::move(queries)),
      tokens(packed),
      host_q(view.data.q(tokens, view.index)),
      q(of.backend, host_view(host_q), view.data.elements.main.computed),
      host_index_q(view.data.index_q(tokens)),
      index_q(of.backend, host_view(host_index_q), view.data.elements.index.computed),
      chunk(of, problem, tokens, {of.backend, q.view(), host_view(host_q)},
            mirror_of(of.backend, index_q, host_index_q), with_logits, std::move(previous)),
      of_(view) {}

}  // namespace msa::experiments::measure
