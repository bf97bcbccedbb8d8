// SPDX-License-Identifier: MIT
#include "experiments/compare/layer_data.h"

#include <algorithm>

namespace msa::experiments::compare {
namespace {

using io::Field;

}  // namespace

LayerData::LayerData(const io::ActivationsReader& file, const io::LayerInfo& layer, Sharing sharing)
    : info(layer) {
    const auto read = [&](Field field) {
        if (!info.has(field)) return Tensor<float, 3>();
        return file.read(info.layer, field, {0, file.info().tokens()});
    };
    k = read(Field::k);
    v = read(Field::v);
    index_q = read(Field::index_q);
    index_k = read(Field::index_k);
    q.push_back(read(Field::q));
    const int64_t group_size = info.query_heads / info.kv_heads;
    if (sharing != Sharing::head || group_size == 1) return;
    const Tensor<float, 3> all = std::move(q.front());
    q.clear();
    for (int64_t member = 0; member < group_size; ++member)
        q.push_back(one_of_each_group(all, group_size, member));
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

Tensor<float, 3> gather_rows(View<const float, 3> all, std::span<const int64_t> rows) {
    Tensor<float, 3> gathered({static_cast<int64_t>(rows.size()), all.extent(1), all.extent(2)});
    const int64_t width = all.extent(1) * all.extent(2);
    for (size_t n = 0; n < rows.size(); ++n)
        std::copy_n(all[rows[n]].data(), width, gathered.data() + static_cast<int64_t>(n) * width);
    return gathered;
}

}  // namespace msa::experiments::compare
