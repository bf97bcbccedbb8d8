// SPDX-License-Identifier: MIT
// The record of a run of msa-bench: a report that grows with every measurement.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/io/run_record.h"
#include "experiments/bench/cases.h"
#include "experiments/bench/meter.h"
#include "experiments/report/report.h"

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

/// A row of the table of cases.
struct CaseRow {
    std::string name, kind;
    int64_t queries = 0, keys = 0, sequences = 0, blocks = 0, top_k = 0;
};

/// A measurement, and what follows from it if it was timed.
struct MeasuredRow {
    std::string of_case;
    Measurement measured;
    double median_us = 0, spread = 0, flops_per_second = 0, share_of_copy = 0;
    std::optional<double> share_of_gemm{}, speedup{};

    bool timed() const { return measured.skipped.empty(); }
};

/// A layer that ranks computed together, beside one alone; times in seconds.
struct RanksRow {
    std::string kind;
    int64_t tokens = 0, ranks = 0;
    double seconds = 0;  // the slowest rank, median
    int64_t different_ids = 0, different_out_values = 0;
    double largest_out_difference = 0;
    std::optional<double> gather_bytes{}, gather_seconds{};
    std::vector<double> one_samples{};
    std::vector<std::vector<double>> rank_samples{};  // [rank][sample]
};

class Record {
public:
    /// Without ceilings, of layers over ranks. `device`: the first one's name.
    Record(const BenchOptions&, std::span<const std::string> args, const std::string& device,
           std::optional<Ceilings> = {});

    // Add a measurement and write the record so far to --out, if given.
    void add(const Case&, const Measurement&);
    void add(const RanksRow&);
    /// Marks the record as complete, writes it, and prints the page or, with --json, the record.
    void finish(std::ostream& out);

    /// "square 128K: index_select structured 12.3 ms", of the last measurement.
    std::string last_line() const;

    struct State {
        std::string backend, device, started;
        std::optional<std::string> model{};
        analysis::LayerSizes sizes;
        std::optional<Ceilings> ceilings{};
        bool is_complete = false;
    };

private:
    /// Time of dense attention for the work of a layer or layer_grad; 0: not measured.
    double dense_microseconds(const std::string& of_case, const std::string& stage) const;
    report::Report report() const;
    std::string text() const;
    void save() const;

    const BenchOptions& options_;
    io::RunRecord run_;
    State state_;
    std::vector<CaseRow> cases_;
    std::vector<MeasuredRow> measured_;
    std::vector<RanksRow> ranks_;
};

// Their tables (tables.cpp).
report::Table state_table(const Record::State&);
report::Table gemm_table(const std::map<Element, double>& rates);
report::Table cases_table(const std::vector<CaseRow>&);
report::Table measurements_table(const std::vector<MeasuredRow>&);
/// Whole layers, and rank by rank.
std::vector<report::Table> ranks_tables(const std::vector<RanksRow>&);

}  // namespace msa::experiments::bench
