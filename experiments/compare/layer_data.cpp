// SPDX-License-Identifier: MIT
#include "experiments/compare/layer_data.h"

#include <algorithm>

namespace msa::experiments::compare {
namespace {

using io::Field;

}  // namespace

LayerData::LayerData(const io::ActivationsReader& file, const io::LayerInfo& layer,
                     const LayerElements& rounded, Sharing sharing)
    : info(layer), elements(rounded) {
    const LayerReader read(file, info, elements);
    k = read.all(Field::k);
    v = read.all(Field::v);
    index_q = read.all(Field::index_q);
    index_k = read.all(Field::index_k);
    q.push_back(read.all(Field::q));
    const int64_t group_size = info.query_heads / info.kv_heads;
    if (sharing != Sharing::head || group_size == 1) return;
    const Tensor<float, 3> all = std::move(q.front());
    q.clear();
    for (int64_t member = 0; member < group_size; ++member)
        q.push_back(one_of_each_group(all, group_size, member));
}

Tensor<float, 1> LayerData::sinks(size_t view) const {
    return sinks_of_view(info, static_cast<int64_t>(q.size()), static_cast<int64_t>(view));
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
    p.query_heads = q.front().extent(1);
    return p;
}

}  // namespace msa::experiments::compare
