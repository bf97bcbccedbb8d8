// SPDX-License-Identifier: MIT
// The JSON record of a run of msa-bench, and its table.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "core/backend.h"
#include "core/io/run_record.h"
#include "experiments/bench/cases.h"
#include "experiments/bench/meter.h"

namespace msa::experiments::bench {

struct Measurement {
    std::string stage = {};
    // Empty if not applicable. support, for index_kl: "full" or "selected", with ", lse" if it gets
    // the lse and computes only gradients.
    std::string selection = {}, order = {}, index_element = {}, support = {};
    int64_t page_size = 0;                  // of keys in pages; 0: packed
    int64_t capacity = 0;                   // of a graph whose lengths the GPU reads; 0: fixed
    Element element = Element::f32;         // of its matrix products
    int64_t rows = 0;                       // queries of one call, if not all of the case
    double flops = 0, bytes = 0;            // of one call, from analysis/cost_model
    std::optional<double> union_of_8 = {};  // blocks that 8 neighbouring queries select together
    int64_t checked_rows = 0;
    std::string answered_by = {};  // of the backend
    Timing timing = {};
    std::string skipped = {};  // why there is no timing
};

/// What the records of both kinds of run begin with.
nlohmann::ordered_json begin_record(const char* format, int version, const io::RunRecord&);

class Record {
public:
    Record(const BenchOptions&, std::span<const std::string> args, const Backend&, Ceilings);

    void add(const Case&, const Measurement&);
    /// Writes the current record to --out, if given.
    void save(bool complete);

    /// "square 128K: index_select structured 12.3 ms", of the last measurement.
    std::string last_line() const;
    void print(std::ostream& out) const;

private:
    /// Time of dense attention for the work of a layer or layer_grad; 0: not measured.
    double dense_microseconds(const Case&, const std::string& stage) const;
    /// As text; bytes that are not UTF-8 become the replacement character.
    std::string dumped() const;

    const BenchOptions& options_;
    Ceilings ceilings_;
    nlohmann::ordered_json json_;
};

}  // namespace msa::experiments::bench
