// SPDX-License-Identifier: MIT
// What msa-pretrain writes to its results, and reads from them.
#pragma once

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/io/results.h"
#include "experiments/pretrain/evaluate.h"
#include "experiments/pretrain/probe.h"
#include "experiments/report/report.h"

namespace msa::experiments::pretrain {

/// Means over the answers of all lengths and depths; NaN without any.
struct TaskScore {
    Task task = Task::needle;
    int64_t answers = 0;
    double exact_match = 0, log_likelihood = 0;
};
std::vector<TaskScore> by_task(const Evaluation& evaluation, const std::vector<Task>& tasks);

/// Writes the groups /text and /retrieval of the current unit.
void write_evaluation(io::UnitWriter& to, const Evaluation& evaluation);
Evaluation read_evaluation(const io::ResultsReader& from);

/// Writes the group /heads of the current unit: a dataset [L, Hq] for each of kProbedHeads.
void write_heads(io::UnitWriter& to, const Probe& look);

/// The tables of a run's answer, without rows (tables.cpp).
std::vector<report::Shape> run_tables();
/// The answer, of the last step.
report::Report make_report(const io::ResultsReader& results);

/// A run of a sweep that is done: the answer, or the step behind which it diverged.
struct SweepResult {
    std::string arm;
    uint64_t seed = 0;
    std::variant<report::Report, int64_t> result;
};

/// The answer of a sweep, of what does not depend on the machine's speed (sweep_tables.cpp).
report::Report make_sweep_report(std::span<const SweepResult> runs);

}  // namespace msa::experiments::pretrain
