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
    trivial,  // all visible blocks fit into k: every selector keeps everything
    blind,    // no visible key: nothing to select
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
    int64_t count() const { return count_; }
    /// NaN for no rows.
    double value() const;

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

/// The values of a list of means, and their own mean (macro average).
std::vector<double> values(std::span<const Mean> means);
double average(const std::vector<double>& values);

}  // namespace msa::analysis
