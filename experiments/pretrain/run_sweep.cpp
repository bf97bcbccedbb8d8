// SPDX-License-Identifier: MIT
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "core/error.h"
#include "core/io/claim.h"
#include "core/io/results.h"
#include "experiments/driver/launch.h"
#include "experiments/driver/patience.h"
#include "experiments/driver/run_record.h"
#include "experiments/pretrain/results.h"
#include "experiments/pretrain/sweep.h"
#include "experiments/pretrain/training.h"
#include "experiments/programs.h"
#include "experiments/report/report.h"
#include "experiments/report/text.h"

namespace msa::experiments::pretrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kDiverged = "diverged.json";

/// The result of a run: its diverged.json or summary.json. Absent while the run is not done.
std::optional<ordered_json> result_of(const SweepRun& run) {
    for (const char* name : {kDiverged, "summary.json"}) {
        std::ifstream stream(run.folder / name);
        if (!stream.good()) continue;
        ordered_json json = ordered_json::parse(stream, nullptr, false);
        require(!json.is_discarded(), (run.folder / name).string(), ": is no JSON");
        return json;
    }
    return std::nullopt;
}

constexpr int64_t kTaken = -1, kAllDone = -2;

/// The number of the run that this process has claimed, with the claim. kAllDone: all runs are
/// done. kTaken: other processes compute the runs that are left, or the runs whose results these
/// read.
struct Next {
    int64_t run = kAllDone;
    std::optional<io::Claim> claim{};
};

fs::path claim_of(const SweepRun& run) { return run.folder / "sweep.claim"; }

Next take(const std::vector<SweepRun>& runs) {
    Next next;
    const int64_t first = launched_number(), count = std::ssize(runs);
    for (int64_t n = 0; n < count; ++n) {
        const int64_t number = (first + n) % count;
        const SweepRun& run = runs[static_cast<size_t>(number)];
        if (result_of(run)) continue;
        next.run = kTaken;
        if (!std::ranges::all_of(run.reads,
                                 [&](size_t read) { return result_of(runs[read]).has_value(); }))
            continue;
        fs::create_directories(run.folder);
        std::optional<io::Claim> claim = io::Claim::take(claim_of(run));
        if (claim && !result_of(run)) return {number, std::move(claim)};
    }
    return next;
}

std::string waited_for(const std::vector<SweepRun>& runs) {
    std::string who;
    for (const SweepRun& run : runs)
        if (const std::string holder = io::Claim::holder(claim_of(run)); !holder.empty())
            add_item(who, "; ", run.name(), ", ", holder);
    return "waits for what others do: " + who;
}

void do_run(const SweepRun& run, const Train& train, const Ranks& ranks, std::ostream& err) {
    err << run.name() << '\n';
    try {
        train(run.words, ranks, err);
    } catch (const Diverged& error) {
        if (!ranks.is_first()) return;
        err << run.name() << ": " << error.what() << '\n';
        io::replace_file(run.folder / kDiverged,
                         ordered_json{{"diverged_after", error.step()}}.dump() + "\n");
    }
}

/// Until all are done, by this process or by others.
void do_missing(const std::vector<SweepRun>& runs, const Train& train, const Ranks& ranks,
                std::ostream& err) {
    for (Patience patience;;) {
        Next next;
        if (ranks.is_first()) next = take(runs);
        const int64_t number = ranks.broadcast_value(next.run);
        if (number == kAllDone) return;
        if (number == kTaken) {
            if (ranks.is_first()) patience.wait([&] { return waited_for(runs); }, err);
            continue;
        }
        patience.reset();
        do_run(runs[static_cast<size_t>(number)], train, ranks, err);
    }
}

int64_t count_missing(const std::vector<SweepRun>& runs) {
    return std::count_if(runs.begin(), runs.end(),
                         [](const SweepRun& run) { return !result_of(run).has_value(); });
}

/// The record of a run whose element types are those of `like`, where there is one.
io::RunRecord record_of(PretrainOptions o, uint64_t seed, const std::vector<fs::path>& inputs,
                        const std::optional<io::RunRecord>& like) {
    io::RunRecord record = start_record(kProgram.name, {}, inputs);
    record.options = option_table(o).record();
    record.seed = seed;
    if (!like) return record;
    record.element = like->element;
    record.index_element = like->index_element;
    record.computed_in = like->computed_in;
    return record;
}

/// The answer of a finished run, which must have its options and inputs, be of this commit, and
/// have the element types of `like`, the first such run.
report::Report answer_of(const SweepRun& run, std::optional<io::RunRecord>& like) {
    const io::ResultsReader results(run.folder / "results.h5");
    if (!like) like = results.run();
    io::require_same_run(run.folder.string(), results.run(),
                         record_of(run.options, run.seed, run.options.inputs(), like));
    return make_report(results);
}

/// All runs are done.
void write_sweep(const PretrainOptions& o, const std::vector<SweepRun>& runs, const fs::path& path,
                 std::ostream& out) {
    std::vector<SweepResult> results;
    std::optional<io::RunRecord> like;
    for (const SweepRun& run : runs) {
        const ordered_json result = result_of(run).value();
        SweepResult& of = results.emplace_back(SweepResult{run.arm, run.seed, {}});
        if (result.contains("diverged_after"))
            of.result = result["diverged_after"].get<int64_t>();
        else
            of.result = answer_of(run, like);
    }
    std::vector<fs::path> inputs = o.inputs();
    inputs.push_back(o.sweep);
    const report::Report report = make_sweep_report(results);
    const std::string json =
        report::json_text(report, record_of(o, runs.front().seed, inputs, like));
    io::replace_file(path, json);
    if (o.json)
        out << json;
    else
        report::print(report, out);
}

}  // namespace

void run_sweep(const PretrainOptions& o, std::span<const std::string> args, const Train& train,
               std::ostream& out, std::ostream& err) {
    const Ranks& ranks = o.together ? Ranks::world() : Ranks::alone();
    const std::vector<SweepRun> runs = runs_of(read_sweep(o.sweep), o, args);
    const fs::path path = o.out / "sweep.json";
    if (ranks.is_first() && count_missing(runs) > 0) fs::remove(path);
    do_missing(runs, train, ranks, err);
    if (ranks.is_first()) write_sweep(o, runs, path, out);
}

}  // namespace msa::experiments::pretrain
