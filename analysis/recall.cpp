// SPDX-License-Identifier: MIT
#include "analysis/recall.h"

#include <algorithm>
#include <iterator>

namespace msa::analysis {

double mass_of(View<const float, 1> mass, std::span<const int32_t> ids) {
    double sum = 0;
    for (int32_t b : ids) sum += double{mass(b)};
    return sum;
}

Recall::Recall(int64_t groups, RecallOptions options)
    : options_(options),
      block_recall_(static_cast<size_t>(groups)),
      score_recall_(block_recall_),
      mass_kept_(block_recall_),
      oracle_mass_(block_recall_) {}

void Recall::add(const Problem& p, std::span<const RowKind> kinds, View<const int32_t, 3> ids,
                 View<const int32_t, 3> oracle_ids, View<const float, 3> mass) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        if (kinds[row] != RowKind::counted) continue;
        const auto local = static_cast<int32_t>((visible[row].count - 1) / p.block_size);
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const auto group = static_cast<size_t>(r);
            const View<const float, 1> row_mass = mass[i][r];
            const std::span<const int32_t> kept = selected(ids, i, r);
            const std::span<const int32_t> oracle = selected(oracle_ids, i, r);
            mass_kept_[group].add(mass_of(row_mass, kept));
            oracle_mass_[group].add(mass_of(row_mass, oracle));

            std::vector<int32_t> wanted(oracle.begin(), oracle.end()), hit;
            if (options_.exclude_local) std::erase(wanted, local);
            std::set_intersection(wanted.begin(), wanted.end(), kept.begin(), kept.end(),
                                  std::back_inserter(hit));
            const double all = mass_of(row_mass, wanted);
            block_recall_[group].add(wanted.empty() ? 1
                                                    : static_cast<double>(hit.size()) /
                                                          static_cast<double>(wanted.size()));
            score_recall_[group].add(all > 0 ? mass_of(row_mass, hit) / all : 1);
        }
    }
}

}  // namespace msa::analysis
