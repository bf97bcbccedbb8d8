// SPDX-License-Identifier: MIT
// Stores the ids of a sample of the compared queries, the same queries for all configs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::compare {

class StoredIds {
public:
    /// `tokens`: packed tokens of the layer's compared queries, which are sampled. Stores the
    /// sampled queries that lie in `part`.
    StoredIds(io::UnitWriter& to, std::string layer, std::span<const int64_t> tokens,
              QueryRange part, uint64_t seed);

    /// /queries/<l>/token.
    void write_queries() const;
    /// Creates /select/<c>/<l>/ids, to be filled.
    void create(const measure::Choice&, int64_t groups) const;
    /// Stores the sampled ones among the ids [n, Hkv, k] of the compared queries `range`.
    void write(const measure::Choice&, QueryRange range, View<const int32_t, 3> ids) const;

private:
    std::string dataset(const measure::Choice& choice) const;

    io::UnitWriter& to_;
    std::string layer_;
    std::span<const int64_t> tokens_;
    std::vector<int64_t> numbers_;  // of the compared queries, ascending
};

}  // namespace msa::experiments::compare
