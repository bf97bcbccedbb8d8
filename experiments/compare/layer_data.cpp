// SPDX-License-Identifier: MIT
#include "experiments/compare/layer_data.h"

#include <algorithm>

namespace msa::experiments::compare {

using io::Field;

namespace {

constexpr int64_t kMostKept = int64_t{1} << 28;  // bytes of q

}  // namespace

LayerData::LayerData(const io::ActivationsReader& file, const io::LayerInfo& layer,
                     const LayerElements& rounded, Sharing sharing)
    : info(layer),
      elements(rounded),
      views(sharing == Sharing::head ? layer.query_heads / layer.kv_heads : 1),
      read_(file, layer, rounded) {
    k = read_.all(Field::k);
    v = read_.all(Field::v);
    index_k = read_.all(Field::index_k);
    const Shape<3> all{file.info().tokens(), layer.query_heads, layer.head_dim};
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
    return sinks_of_view(info, views, static_cast<int64_t>(view));
}

Tensor<float, 1> sinks_of_view(const io::LayerInfo& layer, int64_t views, int64_t view) {
    Tensor<float, 1> all = io::layer_sinks(layer);
    if (all.data() == nullptr || views == 1) return all;
    Tensor<float, 1> picked({all.size() / views});
    for (int64_t r = 0; r < picked.size(); ++r) picked(r) = all(r * views + view);
    return picked;
}

Tensor<float, 3> one_of_each_group(View<const float, 3> q, int64_t group_size, int64_t view) {
    Tensor<float, 3> picked({q.extent(0), q.extent(1) / group_size, q.extent(2)});
    for (int64_t i = 0; i < picked.extent(0); ++i)
        for (int64_t r = 0; r < picked.extent(1); ++r)
            std::copy_n(q[i][r * group_size + view].data(), q.extent(2), &picked(i, r, 0));
    return picked;
}

Problem LayerData::problem(const io::ActivationsInfo& file, int64_t block_size) const {
    Problem p = io::layer_problem(file, info, block_size);
    p.query_heads = info.query_heads / views;
    return p;
}

}  // namespace msa::experiments::compare
