// SPDX-License-Identifier: MIT
// What a run of msa-bench leaves: a JSON record, and a table of it.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "core/backend.h"
#include "experiments/bench/cases.h"
#include "experiments/bench/meter.h"

namespace msa::experiments::bench {

struct Measurement {
    std::string stage = {};
    std::string selection = {}, order = {}, index_element = {};  // empty where it has none
    double flops = 0, bytes = 0;            // of one call, from analysis/cost_model
    std::optional<double> union_of_8 = {};  // blocks that 8 neighbouring queries select together
    int64_t checked_rows = 0;
    std::string answered_by = {};  // of the backend
    Timing timing = {};
    std::string skipped = {};  // why there is no timing
};

class Record {
public:
    Record(const BenchOptions&, std::span<const std::string> args, const Backend&,
           const std::vector<double>& copy_rates);

    void add(const Case&, const Measurement&);
    /// Writes the record as it is, as a whole, where --out names a file.
    void save(bool complete);

    /// "square 128K: index_select structured 12.3 ms", of the last measurement.
    std::string last_line() const;
    void print(std::ostream& out) const;

private:
    const BenchOptions& options_;
    double copy_rate_;  // bytes per second
    nlohmann::ordered_json json_;
};

}  // namespace msa::experiments::bench
