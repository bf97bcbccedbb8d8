// SPDX-License-Identifier: MIT
// Invariants of every choice of keys, whatever the data: a failure is a bug, not a finding.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>

#include "core/io/results.h"
#include "core/selection.h"
#include "experiments/measure/measured_chunk.h"

namespace msa::experiments::measure {

class SelfChecks {
public:
    /// Starts a chunk: computes the most mass that any choice of n blocks can keep, for every row
    /// and n, and finds rows whose dense attention is undefined (NaN, or overflowing logits).
    /// `rows` and its views must stay valid until the next chunk. tokens [Nq]: packed.
    void begin(const CheckedRows& rows, std::span<const int64_t> tokens);
    /// Prints a line on `err` that names the first undefined row, if there is one. `unit`: its
    /// unit, "layer 3".
    void warn(const std::string& unit, std::ostream& err) const;

    /// Checks that every row of a choice keeps at most that mass and at most 1, within rounding
    /// (mass_bound), and that rows with every visible block give dense attention. Throws
    /// std::logic_error naming choice and row. ids [Nq, Hkv, any]; |o_sparse - o_dense|^2 [Nq, Hkv]
    /// over the group's heads.
    void check(const std::string& choice, View<const int32_t, 3> ids,
               View<const double, 2> differences);
    /// Checks attention of the chunk's queries [first, first + count) over all their blocks.
    void check_all_blocks(const MeasuredChunk&, int64_t first, int64_t count);

    /// Checks only the mass, for one row whose choice touches `blocks` blocks.
    void check_mass(const std::string& choice, int64_t query, int64_t group, int64_t blocks,
                    double mass);

    /// Counts and maxima, without the position of the first undefined row.
    analysis::State state() const;
    void join(const analysis::State&);

    /// Writes the group /checks/<layer>: numbers of checked and of undefined rows, the largest
    /// difference from dense, and the largest bound on a mass.
    void write(io::UnitWriter& to, const std::string& layer) const;

private:
    void check_rows(const std::string& choice, const CheckedRows&, int64_t first,
                    View<const int32_t, 3> ids, View<const double, 2> differences);

    std::optional<CheckedRows> chunk_;
    Tensor<double, 3> best_;  // [Nq, Hkv, B + 1]
    double largest_bound_ = 0;
    int64_t rows_ = 0, full_rows_ = 0;
    double difference_ = 0;
    int64_t undefined_ = 0, first_token_ = 0, first_group_ = 0;  // undefined rows
};

}  // namespace msa::experiments::measure
