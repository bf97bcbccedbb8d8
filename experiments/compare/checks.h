// SPDX-License-Identifier: MIT
// What must hold in every comparison, whatever the data: a failure is a bug, not a finding.
#pragma once

#include <string>

#include "core/io/results.h"
#include "experiments/compare/tally.h"

namespace msa::experiments::compare {

class SelfChecks {
public:
    /// A new chunk: the most mass that any choice of n blocks can keep, for every row and n.
    void begin(const MeasuredChunk&);

    /// Every row of a choice keeps at most that, and at most 1. Rows that keep every visible block
    /// give dense attention. Throws std::logic_error naming arm and row.
    void check(const std::string& arm, const MeasuredChunk&, View<const int32_t, 3> ids,
               View<const float, 3> sparse);

    /// The first of these alone, for one row whose choice touches `blocks` blocks.
    void check_mass(const std::string& arm, int64_t query, int64_t group, int64_t blocks,
                    double mass);

    /// Group /checks/<layer>: how many rows were checked, and the largest difference from dense.
    void write(io::ResultsWriter& to, const std::string& layer) const;

private:
    Tensor<double, 3> best_;  // [Nq, Hkv, B + 1]
    int64_t rows_ = 0, full_rows_ = 0;
    double difference_ = 0;
};

}  // namespace msa::experiments::compare
