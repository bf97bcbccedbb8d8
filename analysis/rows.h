// SPDX-License-Identifier: MIT
// Which rows an average counts; one rule for all metrics.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/problem.h"

namespace msa::analysis {

enum class RowKind : uint8_t {
    counted,
    trivial,       // all visible blocks fit into k: every selector keeps everything
    without_keys,  // no visible key: nothing to select
};

/// [Nq]: the kind of each query. `all_rows` counts the trivial ones.
std::vector<RowKind> row_kinds(const Problem&, int64_t top_k, bool all_rows);

/// [Nq]: counted are the queries that see more than `tokens` keys, so that budgets up to there are
/// compared on the same rows.
std::vector<RowKind> rows_beyond(const Problem&, int64_t tokens);

/// A mean over rows that come in chunks: sums in row order, so that the cut does not matter.
class Mean {
public:
    void add(double value) {
        sum_ += value;
        ++count_;
    }
    double sum() const { return sum_; }
    int64_t count() const { return count_; }
    /// NaN for no rows.
    double value() const;
    /// Adds the rows that another mean has seen.
    void join(double sum, int64_t count) {
        sum_ += sum;
        count_ += count;
    }

private:
    double sum_ = 0;
    int64_t count_ = 0;
};

/// What a row adds to a list of means; left empty, it does not count there.
using RowValues = std::span<std::optional<double>>;

/// Adds rows to means. measure(row, values) fills one value per mean, of several rows at a time and
/// without throwing; the means sum them in row order, whatever the number of threads.
void add_rows(std::span<Mean> means, int64_t rows,
              const std::function<void(int64_t row, RowValues values)>& measure);

/// All that an accumulator of this folder has of its rows, so that each of several workers can see
/// a part of them: state() gives it, and join() adds that of further rows. Joined in the order of
/// the rows, the states of the same parts give the same bits, whoever saw which part when. Counts
/// are those of all rows in one accumulator. A sum is too where there is one part; else it has
/// another order, and differs by at most the rounding of n additions twice, 2 n 2^-53 sum |x|.
struct State {
    std::vector<double> sums;
    std::vector<int64_t> counts;
};
/// InputError unless a state has so many sums and counts, as `what` has them.
void require_state(const char* what, const State&, size_t sums, size_t counts);
/// Of a list of means, each a sum and a count.
State state_of(std::span<const Mean> means);
void join_means(std::span<Mean> means, const State&);

/// The values of a list of means, and their own mean (macro average).
std::vector<double> values(std::span<const Mean> means);
double average(const std::vector<double>& values);

}  // namespace msa::analysis
