// SPDX-License-Identifier: MIT
// A run over units of work, for every program that reads activations and writes results. It handles
// the record, existing results, the remaining units, their workers (threads, ranks or independent
// processes), and the final files. A program supplies its options, the work of a unit, and the
// output.
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/queue.h"
#include "experiments/driver/ranks.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// The resources of one worker.
struct Worker {
    Backend& backend;
    std::ostream& err;       // for messages of a unit
    std::ostream& progress;  // for progress within a unit; silent if units are counted
    int threads;             // this worker's share
};

/// A unit of work: one worker does it, and --resume continues at the first unfinished one. Its name
/// is its unique key in /done. Units are independent: who does them, and when, changes no bit.
/// Results over several units are joined at the end, in order.
struct Unit {
    std::string name;
    std::function<void(const Worker&, io::UnitWriter&)> work;
    std::function<void()> done = [] {
    };                    // called when it is finished, in this run or an earlier one
    std::string whole{};  // the unit of the results of which it is a part; empty: itself
};

/// One unit for each layer, "layer L".
std::vector<Unit> layer_units(
    const io::ActivationsReader&, std::span<const int64_t> layers,
    const std::function<void(const io::LayerInfo&, const Worker&, io::UnitWriter&)>& work);

/// A layer, and a range of its analysed queries.
struct LayerPart {
    const io::LayerInfo& layer;
    QueryRange queries;
    bool is_whole;

    /// "layer L, queries A:B", or "layer L" if it is whole.
    std::string name() const;
};
/// Cuts each layer's analysed queries into units of whole blocks, as few as have `unit_queries`
/// queries; the units are parts of "layer L". begins(layer) gives the first query of each block,
/// and the end. unit_queries 0: one unit per layer.
std::vector<Unit> query_units(
    const io::ActivationsReader&, std::span<const int64_t> layers, int64_t unit_queries,
    const std::function<std::vector<int64_t>(const io::LayerInfo&)>& begins,
    const std::function<void(const LayerPart&, const Worker&, io::UnitWriter&)>& work);

class UnitRun {
public:
    /// Throws InputError if an input is one of the outputs (`names` in o.out) or lies in one.
    /// Records program and arguments, and begins to hash the inputs. `ranks` share the units.
    UnitRun(const std::string& program, std::span<const std::string> args, const RunOptions& o,
            std::vector<std::filesystem::path> inputs, std::vector<std::string> names,
            std::ostream& err, const Ranks& ranks = Ranks::world());

    io::RunRecord record;  // to be completed by the program before begin(), but for its inputs
    /// The record with its inputs: waits for their hashes.
    const io::RunRecord& record_with_inputs();
    /// Sets options, definitions of the metrics, and device.
    void describe(const OptionTable&, const std::string& definitions, const std::string& device);
    /// The same, and the captures and the element types of o.layers on the backend.
    void describe(const OptionTable&, const std::string& definitions, const Backend&,
                  const io::ActivationsReader&, const ElementChoice&);
    std::filesystem::path path(const std::string& name) const { return o_.out / name; }

    /// Makes the directory and opens results.h5 as --resume and --overwrite say; not over results
    /// or beside an unfinished run of another program. Does not wait for the hashes where nothing
    /// is there: then units begin beside them, and those computed before wait to be finished.
    void begin(std::vector<Unit> units);
    /// Whether all units are already done.
    bool is_done() const;
    /// Does this process's unfinished units: those of --shard or, with several ranks
    /// (driver/ranks.h), every N-th. `jobs` run at once on each device; each has its share of the
    /// threads, and each beyond the first its own backend. The first error is thrown at the end,
    /// further ones are printed. Throws Interrupted if a unit does. Returns true if this process
    /// completes the run; otherwise prints that its part is done.
    bool work(const ComputeOptions& compute, Backend& first, OnError on_error);
    /// begin(), work(), finish() and the program's complete(). The exit code: that of a refusal,
    /// with a message, where the target is missed.
    int run(std::vector<Unit> units, const ComputeOptions&, Backend&,
            std::string (*complete)(const Completed&), std::ostream& out,
            const io::ResultsWriter::JoinParts& join = {});
    /// Completes results.h5 and opens it. Writes run.json, and removes an old summary.json, which
    /// programs write last. `join` makes a unit of its parts, if there are any.
    io::ResultsReader finish(const io::ResultsWriter::JoinParts& join = {});

private:
    std::vector<const Unit*> waiting() const;  // for this process
    void work_with(Backend& backend, int threads, const std::vector<const Unit*>& units,
                   bool counted, WorkQueue& queue) const;
    void do_unit(const Unit& unit, const Worker& worker, WorkQueue& queue) const;
    bool end_shard(int64_t done) const;
    bool starts_afresh() const;
    void finish_computed(bool wait, WorkQueue& queue) const;

    RunOptions o_;
    std::string program_;
    std::vector<std::filesystem::path> inputs_;
    std::vector<Unit> units_;
    std::ostream& err_;
    const Ranks& ranks_;
    std::shared_future<std::map<std::string, std::string>> hashes_;
    mutable std::mutex recording_;
    mutable bool inputs_later_ = false;
    std::unique_ptr<io::ResultsWriter> to_;
    mutable std::vector<std::pair<const Unit*, io::UnitWriter>> computed_;
};

/// Applies the rule for existing results to other files of an earlier run: InputError if `what`
/// belongs to an unfinished run and neither --resume nor --overwrite is given.
void check_unfinished(const RunOptions&, const std::filesystem::path& what, bool unfinished);
/// InputError if --shard is given and there are several ranks.
void check_shard(const RunOptions&, const Ranks&);
/// Completes a run's results in the folder `out` like UnitRun::finish. `argv` and the rest of
/// `record` describe the completing process.
io::ResultsReader finish_run(io::ResultsWriter&, const std::filesystem::path& out,
                             const io::RunRecord& record,
                             const io::ResultsWriter::JoinParts& join = {});

/// Whether `file` is the folder or lies in it. Follows symbolic links.
bool lies_in(const std::filesystem::path& file, const std::filesystem::path& folder);
/// Throws InputError naming both if `input` is the file `output` or lies in the directory `output`,
/// which a run is about to write.
void require_apart(const std::filesystem::path& input, const std::filesystem::path& output);

/// A number for JSON: null if it is NaN.
nlohmann::ordered_json json_number(double value);

}  // namespace msa::experiments
