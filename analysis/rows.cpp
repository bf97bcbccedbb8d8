// SPDX-License-Identifier: MIT
#include "analysis/rows.h"

#include <limits>
#include <numeric>

#include "core/error.h"

namespace msa::analysis {

std::vector<RowKind> row_kinds(const Problem& p, int64_t top_k, bool all_rows) {
    std::vector<RowKind> kinds;
    for (const KeyRange& seen : visible_keys(p)) {
        if (seen.count == 0)
            kinds.push_back(RowKind::without_keys);
        else if (!all_rows && visible_blocks(seen.count, p.block_size) <= top_k)
            kinds.push_back(RowKind::trivial);
        else
            kinds.push_back(RowKind::counted);
    }
    return kinds;
}

std::vector<RowKind> rows_beyond(const Problem& p, int64_t tokens) {
    std::vector<RowKind> kinds;
    for (const KeyRange& seen : visible_keys(p))
        kinds.push_back(seen.count == 0       ? RowKind::without_keys
                        : seen.count > tokens ? RowKind::counted
                                              : RowKind::trivial);
    return kinds;
}

double Mean::value() const {
    return count_ > 0 ? sum_ / static_cast<double>(count_)
                      : std::numeric_limits<double>::quiet_NaN();
}

void add_rows(std::span<Mean> means, int64_t rows,
              const std::function<void(int64_t row, RowValues values)>& measure) {
    std::vector<std::optional<double>> all(static_cast<size_t>(rows) * means.size());
#pragma omp parallel for schedule(dynamic, 64)
    for (int64_t row = 0; row < rows; ++row)
        measure(row, RowValues(all).subspan(static_cast<size_t>(row) * means.size(), means.size()));
    auto value = all.begin();
    for (int64_t row = 0; row < rows; ++row)
        for (Mean& mean : means) {
            if (*value) mean.add(**value);
            ++value;
        }
}

void require_state(const char* what, const State& state, size_t sums, size_t counts) {
    require(state.sums.size() == sums && state.counts.size() == counts, "a state of ", what,
            " has ", state.sums.size(), " sums and ", state.counts.size(), " counts, must have ",
            sums, " and ", counts);
}

State state_of(std::span<const Mean> means) {
    State state;
    for (const Mean& mean : means) {
        state.sums.push_back(mean.sum());
        state.counts.push_back(mean.count());
    }
    return state;
}

void join_means(std::span<Mean> means, const State& state) {
    require_state("means", state, means.size(), means.size());
    for (size_t n = 0; n < means.size(); ++n) means[n].join(state.sums[n], state.counts[n]);
}

std::vector<double> values(std::span<const Mean> means) {
    std::vector<double> all;
    for (const Mean& mean : means) all.push_back(mean.value());
    return all;
}

double average(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace msa::analysis
