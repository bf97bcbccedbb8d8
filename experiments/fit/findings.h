// SPDX-License-Identifier: MIT
// The findings of msa-fit-indexer, computed from results.h5 alone.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "core/io/results.h"
#include "experiments/driver/weak_indexers.h"
#include "experiments/fit/evaluation.h"
#include "experiments/report/report.h"

namespace msa::experiments::fit {

/// A measure at the weights that are kept, and what it is more than at the start.
struct Gain {
    int64_t layer = 0;
    std::string measure;
    double start = 0;
    analysis::Estimate kept{};
    std::optional<analysis::Estimate> gain{};  // none of the oracle's mass
    int64_t blocks = 0, sequences = 0;         // that the intervals are drawn from

    /// Whether the interval of the gain leaves out 0.
    std::optional<bool> is_distinguishable() const;
};

/// An evaluation of a layer: before the first step, the best one, or the last one.
struct Evaluated {
    int64_t layer = 0, step = 0;
    bool is_kept = false;
    std::array<analysis::Estimate, std::size(kMeasures)> measures{};  // of kMeasures
    Evaluation values{};
};

struct LayerFindings {
    int64_t layer = 0, best_step = 0, last_step = 0;
    std::optional<int64_t> window{};
    std::string split;
    int64_t warmup_steps = 0, train_queries = 0, held_out_queries = 0, rows_counted = 0,
            dead_heads = 0;
    double index_flops = 0, index_bytes = 0, first_forced_mass = 0;
    Untrained untrained{};
};

struct Findings {
    std::vector<LayerFindings> layers;
    std::vector<Evaluated> evaluations;
    std::vector<Gain> gains;
    std::vector<WeakIndexer> weak;
    std::string intervals;  // how they were drawn, or why there are none
    bool has_intervals = false;
};

Findings make_findings(const io::ResultsReader&);

/// {key: text} for the record of a run: the columns of all tables and, if there is one, a note on
/// top_k.
std::string definitions_with(const std::string& note);
report::Report make_report(const io::ResultsReader&);

}  // namespace msa::experiments::fit
