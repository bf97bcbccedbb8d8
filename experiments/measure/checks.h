// SPDX-License-Identifier: MIT
// What must hold of every choice of keys, whatever the data: a failure is a bug, not a finding.
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
    /// A new chunk: the most mass that any choice of n blocks can keep, for every row and n. Looks
    /// for rows whose dense attention is undefined: NaN, or an overflow in their logits.
    /// `rows`, and what they look at, must stay until the next chunk. tokens [Nq]: packed.
    void begin(const CheckedRows& rows, std::span<const int64_t> tokens);
    /// One line on `err` that names the first of them; nothing where there is none. `unit`: where
    /// they are, "layer 3".
    void warn(const std::string& unit, std::ostream& err) const;

    /// Every row of a choice keeps at most that, and at most 1. Rows that keep every visible block
    /// give dense attention. Throws std::logic_error naming choice and row. A sum of probabilities
    /// is judged within what rounding explains (mass_bound). ids [Nq, Hkv, any];
    /// |o_sparse - o_dense|^2 [Nq, Hkv] over the group's heads.
    void check(const std::string& choice, View<const int32_t, 3> ids,
               View<const double, 2> differences);
    /// Gives the chunk's queries [first, first + count) all their blocks, and checks that.
    void check_all_blocks(const MeasuredChunk&, int64_t first, int64_t count);

    /// The first of these alone, for one row whose choice touches `blocks` blocks.
    void check_mass(const std::string& choice, int64_t query, int64_t group, int64_t blocks,
                    double mass);

    /// What was counted, and the largest values, but not which row was the first undefined one.
    analysis::State state() const;
    void join(const analysis::State&);

    /// Group /checks/<layer>: how many rows were checked and how many undefined, the largest
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
    int64_t undefined_ = 0, first_token_ = 0, first_group_ = 0;  // rows without an answer
};

}  // namespace msa::experiments::measure
