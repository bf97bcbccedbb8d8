// SPDX-License-Identifier: MIT
// What msa-pretrain writes to its results, and reads from them.
#pragma once

#include <string>
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

/// The answer, of the last step (tables.cpp).
report::Report make_report(const io::ResultsReader& results);

}  // namespace msa::experiments::pretrain
