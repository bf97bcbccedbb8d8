// SPDX-License-Identifier: MIT
#include "core/cpu/teacher_lse.h"

#include <cmath>
#include <vector>

namespace msa::cpu {
namespace {

/// The window shows the row a key of its support: of the newest block, the newest key.
bool has_target(const Problem& p, View<const int32_t, 3> ids, int64_t i, int64_t r) {
    const int64_t count = visible_keys(p)[static_cast<size_t>(i)].count;
    if (!ids) return count > 0;
    const std::span<const int32_t> row = selected(ids, i, r);
    return !row.empty() &&
           std::min((row.back() + int64_t{1}) * p.block_size, count) > p.window_start(count);
}

/// What the sinks leave of the heads of a row, added up, from an lse that has them in it.
double shares(const IndexKlInput& in, int64_t i, int64_t first, int64_t heads) {
    double sum = 0;
    for (int64_t h = first; h < first + heads; ++h)
        sum -= std::expm1(double{in.sinks(h)} - double{in.main_lse(i, h)});
    return sum;
}

/// Does in.main_lse tell what is needed of every row?
bool tells_enough(const Problem& p, const IndexKlInput& in) {
    if (!in.main_lse) return false;
    if (!in.sinks) return true;
    const int64_t heads = p.group_size();
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            if (has_target(p, in.ids, i, r) &&
                shares(in, i, r * heads, heads) < kLeastShare * static_cast<double>(heads))
                return false;
    return true;
}

/// The logarithms, in base 2, of what the heads of a row are to be multiplied by, from their lse
/// without sinks: relative to the head that its sink leaves most of, so that nothing underflows.
std::vector<double> log_weights(const IndexKlInput& in, const std::vector<double>& lse,
                                int64_t first) {
    std::vector<double> logs;
    for (size_t h = 0; h < lse.size(); ++h) {
        const double above = in.sinks ? double{in.sinks(first + static_cast<int64_t>(h))} - lse[h]
                                      : double{-kInfinity};
        logs.push_back(above > 0 ? -above - std::log1p(std::exp(-above))
                                 : -std::log1p(std::exp(above)));
    }
    const double most = *std::max_element(logs.begin(), logs.end());
    double sum = 0;
    for (double& log : logs) sum += std::exp(log -= most);
    const double all = in.teacher == Teacher::mean ? std::log(sum) : 0;
    for (double& log : logs) log -= all;
    return logs;
}

}  // namespace

Tensor<float, 2> teacher_lse(const Problem& p, const Branch& main, const IndexKlInput& in,
                             int threads) {
    const bool given = tells_enough(p, in);
    const int64_t heads = p.group_size();
    SupportSums sums(p, main, threads);
    if (!given) for_each_round(p, in.ids, [&](View<const int32_t, 3> ids) { sums.add(ids); });
    Tensor<float, 2> result({p.queries(), p.query_heads}, Fill::nothing);
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t first = r * heads;
            const auto store = [&](int64_t h, double lse) {
                result(i, first + h) = static_cast<float>(kLog2E * lse);
            };
            if (!has_target(p, in.ids, i, r)) {
                for (int64_t h = 0; h < heads; ++h) store(h, double{-kInfinity});
            } else if (given) {
                const double all = in.teacher == Teacher::max ? 0
                                   : in.sinks ? std::log(shares(in, i, first, heads))
                                              : std::log(static_cast<double>(heads));
                for (int64_t h = 0; h < heads; ++h)
                    store(h, double{in.main_lse(i, first + h)} + all);
            } else {
                std::vector<double> lse;
                for (int64_t h = 0; h < heads; ++h) lse.push_back(double{sums.lse(i, first + h)});
                const std::vector<double> weights = log_weights(in, lse, first);
                for (size_t h = 0; h < lse.size(); ++h)
                    store(static_cast<int64_t>(h), lse[h] - weights[h]);
            }
        }
    return result;
}

}  // namespace msa::cpu
