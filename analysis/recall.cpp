// SPDX-License-Identifier: MIT
#include "analysis/recall.h"

#include <algorithm>
#include <cmath>

namespace msa::analysis {

double mass_of(View<const float, 1> mass, std::span<const int32_t> ids) {
    double sum = 0;
    for (int32_t b : ids) sum += double{mass(b)};
    return sum;
}

RowRecall recall_of(View<const float, 1> mass, std::span<const int32_t> ids,
                    std::span<const int32_t> oracle_ids, int64_t without) {
    int64_t wanted = 0, hits = 0;
    double wanted_mass = 0, hit_mass = 0;
    for (int32_t b : oracle_ids) {
        if (b == without) continue;
        ++wanted;
        wanted_mass += double{mass(b)};
        if (!std::binary_search(ids.begin(), ids.end(), b)) continue;
        ++hits;
        hit_mass += double{mass(b)};
    }
    if (std::isnan(wanted_mass)) return {wanted_mass, wanted_mass};  // I* is undefined
    return {wanted == 0 ? 1 : static_cast<double>(hits) / static_cast<double>(wanted),
            wanted_mass == 0 ? 1 : hit_mass / wanted_mass};
}

Recall::Recall(int64_t groups, RecallOptions options)
    : groups_(static_cast<size_t>(groups)), options_(options), means_(kCount * groups_) {}

void Recall::add(const Problem& p, std::span<const RowKind> kinds, View<const int32_t, 3> ids,
                 View<const int32_t, 3> oracle_ids, View<const float, 3> mass) {
    add_rows(means_, p.queries(), measure(p, kinds, ids, oracle_ids, mass));
}

std::function<void(int64_t, RowValues)> Recall::measure(const Problem& p,
                                                        std::span<const RowKind> kinds,
                                                        View<const int32_t, 3> ids,
                                                        View<const int32_t, 3> oracle_ids,
                                                        View<const float, 3> mass) const {
    return [=, this, &p, &visible = visible_keys(p)](int64_t i, RowValues values) {
        const auto row = static_cast<size_t>(i);
        if (kinds[row] != RowKind::counted) return;
        const int64_t local = (visible[row].count - 1) / p.block_size;
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const View<const float, 1> row_mass = mass[i][r];
            const std::span<const int32_t> kept = selected(ids, i, r);
            const std::span<const int32_t> oracle = selected(oracle_ids, i, r);
            const RowRecall found =
                recall_of(row_mass, kept, oracle, options_.exclude_local ? local : -1);
            const auto value = [&](Metric metric) -> std::optional<double>& {
                return values[metric * groups_ + static_cast<size_t>(r)];
            };
            value(kBlockRecall) = found.block_recall;
            value(kScoreRecall) = found.score_recall;
            value(kMassKept) = mass_of(row_mass, kept);
            value(kOracleMass) = mass_of(row_mass, oracle);
        }
    };
}

}  // namespace msa::analysis
