// SPDX-License-Identifier: MIT
// Output of msa-pretrain, computed from its results alone.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/pretrain/evaluate.h"
#include "experiments/pretrain/probe.h"

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

/// Text of each number of the summary, JSON object.
std::string pretrain_definitions();

/// summary.json: {"format", "program", "options", "definitions", "steps", "parameters", "loss",
/// "bits_per_byte", "tokens_per_second", "flops_per_token", "mfu", "peak", "retrieval": {task:
/// {...}}, "evaluation", "rows"}: of the last step. rows are the layers' last probe, with values
/// per head. NaN and unknown values are null.
std::string pretrain_summary_json(const io::ResultsReader& results);

/// The same as a few lines and two tables.
void print_pretrain_tables(const io::ResultsReader& results, std::ostream& out);

}  // namespace msa::experiments::pretrain
