// SPDX-License-Identifier: MIT
#include "experiments/compare/layer_data.h"

#include <algorithm>

namespace msa::experiments::compare {

using io::Field;

LayerData::LayerData(const io::ActivationsReader& file, const io::LayerInfo& layer,
                     const LayerElements& rounded, Sharing sharing)
    : info(layer),
      elements(rounded),
      views(sharing == Sharing::head ? layer.query_heads / layer.kv_heads : 1),
      read_(file, layer, rounded) {
    k = read_.all(Field::k);
    v = read_.all(Field::v);
    index_k = read_.all(Field::index_k);
}

Tensor<float, 3> LayerData::q(std::span<const int64_t> tokens, size_t view) const {
    Tensor<float, 3> all = read_.rows(Field::q, tokens);
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
