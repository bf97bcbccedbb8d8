// SPDX-License-Identifier: MIT
// The answer of a sweep: tables of its runs' answers, with arm and seed before their own columns.
#include <algorithm>
#include <set>

#include "core/error.h"
#include "experiments/pretrain/results.h"
#include "experiments/programs.h"

namespace msa::experiments::pretrain {
namespace {

using Cells = std::vector<report::Value>;

constexpr const char* kTrainedName = "trained";
/// Its columns that do not depend on the machine's speed.
constexpr const char* kSweepNumbers[] = {"last_step", "parameters", "loss", "bits_per_byte"};
/// Tables of which a sweep has those of all runs, and what these are called.
constexpr std::pair<const char*, const char*> kOfRuns[] = {{"tasks", "run_tasks"},
                                                           {"layers", "run_layers"}};

const std::vector<report::Column> kSweepRun{{.key = "arm",
                                             .unit = "",
                                             .definition = "name of the sweep's arm",
                                             .heading = "arm",
                                             .type = report::Type::text},
                                            {.key = "seed",
                                             .unit = "",
                                             .definition = "seed of the run",
                                             .heading = "seed",
                                             .type = report::Type::integer}};
const report::Column kDivergedAfter{.key = "diverged_after",
                                    .unit = "",
                                    .definition = "training steps behind which the run diverged",
                                    .heading = "diverged\nafter",
                                    .null = "the run did not diverge",
                                    .type = report::Type::integer};

Cells cells_of(const SweepResult& run) { return {run.arm, static_cast<int64_t>(run.seed)}; }

template <typename T>
const T& find_named(const std::vector<T>& tables, const std::string& name, auto name_of) {
    const auto found = std::ranges::find(tables, name, name_of);
    MSA_CHECK(found != tables.end());
    return *found;
}
report::Shape shape_named(const std::string& name) {
    return find_named(run_tables(), name, &report::Shape::name);
}
const report::Table& table_named(const report::Report& answer, const std::string& name) {
    return find_named(answer.tables, name,
                      [](const report::Table& table) { return table.shape().name; });
}

bool is_sweep_number(const report::Column& column) {
    return std::ranges::find(kSweepNumbers, column.key) != std::end(kSweepNumbers);
}

report::Shape runs_shape() {
    report::Shape shape{"runs", "the sweep's runs, behind their last step", kSweepRun.size(),
                        kSweepRun};
    shape.columns.push_back(kDivergedAfter);
    for (report::Column column : shape_named(kTrainedName).columns) {
        if (!is_sweep_number(column)) continue;
        if (column.key == "bits_per_byte") column.heading = "bits\nper byte";
        column.null = "the run diverged";
        shape.columns.push_back(column);
    }
    return shape;
}

report::Table runs_table(std::span<const SweepResult> runs) {
    const report::Shape shape = runs_shape();
    std::vector<Cells> rows;
    for (const SweepResult& run : runs) {
        Cells& row = rows.emplace_back(cells_of(run));
        row.resize(shape.columns.size());
        if (const auto* steps = std::get_if<int64_t>(&run.result)) {
            row[kSweepRun.size()] = *steps;
            continue;
        }
        const report::Table& trained =
            table_named(std::get<report::Report>(run.result), kTrainedName);
        size_t to = kSweepRun.size() + 1;
        for (size_t c = 0; c < trained.shape().columns.size(); ++c)
            if (is_sweep_number(trained.shape().columns[c])) row[to++] = trained.rows().front()[c];
    }
    return {shape, rows};
}

report::Shape of_runs(const std::string& table, const std::string& name) {
    report::Shape shape = shape_named(table);
    shape.name = name;
    shape.about += ", of each run";
    shape.keys += kSweepRun.size();
    shape.columns.insert(shape.columns.begin(), kSweepRun.begin(), kSweepRun.end());
    for (report::Column& column : shape.columns) column = report::hidden(column);
    return shape;
}

}  // namespace

std::vector<report::Shape> tables() {
    std::vector<report::Shape> all = run_tables();
    all.push_back(runs_shape());
    for (const auto& [table, name] : kOfRuns) all.push_back(of_runs(table, name));
    return all;
}

report::Report make_sweep_report(std::span<const SweepResult> runs) {
    std::set<std::string> arms;
    for (const SweepResult& run : runs) arms.insert(run.arm);
    report::Report report{
        .title = concat("a sweep: ", arms.size(), " arms, ", runs.size(), " runs"), .tables = {}};
    report.tables.push_back(runs_table(runs));
    for (const auto& [table, name] : kOfRuns) {
        std::vector<Cells> rows;
        for (const SweepResult& run : runs) {
            const auto* answer = std::get_if<report::Report>(&run.result);
            if (answer == nullptr) continue;
            for (const Cells& row : table_named(*answer, table).rows()) {
                Cells& all = rows.emplace_back(cells_of(run));
                all.insert(all.end(), row.begin(), row.end());
            }
        }
        report.tables.emplace_back(of_runs(table, name), rows);
    }
    report.note(report::kIntervals, "No intervals: they are between runs, of several seeds.");
    return report;
}

}  // namespace msa::experiments::pretrain
