// SPDX-License-Identifier: MIT
// Which rows averages count, for all metrics.
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

/// [Nq]: counts the queries that see more than `tokens` keys, so budgets up to that are compared on
/// the same rows.
std::vector<RowKind> rows_beyond(const Problem&, int64_t tokens);

/// A mean over rows that come in chunks. Sums in row order, so the cut into chunks does not matter.
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
    /// Adds the sum and count of another mean.
    void join(double sum, int64_t count) {
        sum_ += sum;
        count_ += count;
    }

private:
    double sum_ = 0;
    int64_t count_ = 0;
};

/// A row's values for a list of means; an empty value does not count.
using RowValues = std::span<std::optional<double>>;

/// Adds rows to means. measure(row, values) fills one value per mean; it is called by several
/// threads and must not throw. The means sum in row order, whatever the number of threads.
void add_rows(std::span<Mean> means, int64_t rows,
              const std::function<void(int64_t row, RowValues values)>& measure);

/// The state of an accumulator of this folder, so that several workers can each process some rows:
/// state() returns it, and join() adds that of further rows. Joined in row order, the states of the
/// same parts give the same bits, whoever computed them when. Counts equal those of one accumulator
/// over all rows. With one part sums do, too; with several, their order differs, which changes them
/// by at most the rounding of n additions twice, 2 n 2^-53 sum |x|.
struct State {
    std::vector<double> sums;
    std::vector<int64_t> counts;
};
/// InputError unless the state has the numbers of sums and counts that `what` has.
void require_state(const char* what, const State&, size_t sums, size_t counts);
/// The state of a list of means, each a sum and a count.
State state_of(std::span<const Mean> means);
void join_means(std::span<Mean> means, const State&);

/// The values of a list of means, and their own mean (macro average).
std::vector<double> values(std::span<const Mean> means);
double average(const std::vector<double>& values);

}  // namespace msa::analysis
