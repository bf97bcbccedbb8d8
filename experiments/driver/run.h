// SPDX-License-Identifier: MIT
// A run over units of work, the same for every program that reads activations and writes results:
// the record, what is there already, the units that are left, their workers (threads, ranks, or
// processes that know nothing of each other), and the files at the end. A program says what its
// options are, what a unit does, and what the results say.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/queue.h"
#include "experiments/driver/ranks.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// What one of several workers has to work with.
struct Worker {
    Backend& backend;
    std::ostream& err;       // for what is to be said of a unit
    std::ostream& progress;  // for how far it is; silent where units are counted
    int threads;             // this worker's share
};

/// A unit: the part of a run that is done or not done, which one worker does, and what --resume
/// starts at. Its name is its key in /done, no other's of the run. Units do not depend on each
/// other: whoever does them, when, changes no bit. What several of them have to say together is
/// joined at the end, in their order.
struct Unit {
    std::string name;
    std::function<void(const Worker&, io::UnitWriter&)> work;
    std::function<void()> done = [] {};  // after it is finished, by this run or an earlier one
    std::string whole{};  // the unit of the results that it is a part of; empty: it is one itself
};

/// One unit for each layer, "layer L".
std::vector<Unit> layer_units(
    const io::ActivationsReader&, std::span<const int64_t> layers,
    const std::function<void(const io::LayerInfo&, const Worker&, io::UnitWriter&)>& work);

/// A layer, and which of its analysed queries, in their order.
struct LayerPart {
    const io::LayerInfo& layer;
    QueryRange queries;
    bool is_whole;

    /// "layer L, queries A:B", or "layer L" where it is whole.
    std::string name() const;
};
/// A layer's analysed queries, which are in blocks that begins(layer) has the first queries and the
/// end of, cut into pieces of whole blocks: of as few as have `unit_queries`. A unit for each
/// piece, which are the parts of "layer L". 0: one unit for each layer, which is whole.
std::vector<Unit> query_units(
    const io::ActivationsReader&, std::span<const int64_t> layers, int64_t unit_queries,
    const std::function<std::vector<int64_t>(const io::LayerInfo&)>& begins,
    const std::function<void(const LayerPart&, const Worker&, io::UnitWriter&)>& work);

class UnitRun {
public:
    /// Throws InputError where an input is one of the outputs, `names` in o.out, or lies in one.
    /// Records program, arguments and inputs.
    /// `ranks`: who shares the units.
    UnitRun(const std::string& program, std::span<const std::string> args, const RunOptions& o,
            std::vector<std::filesystem::path> inputs, std::vector<std::string> names,
            std::ostream& err, const Ranks& ranks = Ranks::world());

    io::RunRecord record;  // the program completes it before begin()
    /// Sets the options, the definitions of what is measured, and the device.
    void describe(const OptionTable&, const std::string& definitions, const std::string& device);
    /// These, the captures, and the elements of o.layers on the backend.
    void describe(const OptionTable&, const std::string& definitions, const Backend&,
                  const io::ActivationsReader&, const ElementChoice&);
    std::filesystem::path path(const std::string& name) const { return o_.out / name; }

    /// Makes the directory and opens results.h5 as --resume and --overwrite say.
    void begin(std::vector<Unit> units);
    /// Are all units done already?
    bool is_done() const;
    /// Does the units of this process that are not done, `jobs` at once on each of its devices,
    /// each with a backend of its own beyond the first and its share of the threads: those of
    /// --shard, or this rank's of the run (driver/ranks.h): those that are not done, in turns. The
    /// first error is thrown at the end, further ones are printed. Throws Interrupted where a unit
    /// does. True where this process completes the run; else its part is done, and said.
    bool work(const ComputeOptions& compute, Backend& first, OnError on_error);
    /// Completes results.h5 and opens it. Writes run.json, and removes a summary.json, which
    /// programs write last. `join`: what makes a unit of its parts, where there are any.
    io::ResultsReader finish(const io::ResultsWriter::JoinParts& join = {});

private:
    std::vector<const Unit*> waiting() const;  // for this process
    void work_with(Backend& backend, int threads, const std::vector<const Unit*>& units,
                   bool counted, WorkQueue& queue) const;
    void do_unit(const Unit& unit, const Worker& worker, const std::string& device) const;
    bool set_aside(int64_t done) const;

    RunOptions o_;
    std::string program_;
    std::vector<std::filesystem::path> inputs_;
    std::vector<Unit> units_;
    std::ostream& err_;
    const Ranks& ranks_;
    std::unique_ptr<io::ResultsWriter> to_;
};

/// What an earlier run left follows the rule of results: kept, replaced or refused. InputError
/// where `what` is of an unfinished run and neither --resume nor --overwrite is given.
void check_unfinished(const RunOptions&, const std::filesystem::path& what, bool unfinished);
/// InputError where --shard is given and there are several ranks.
void check_shard(const RunOptions&, const Ranks&);
/// Completes a run's results in the folder `out`, as UnitRun::finish: `argv` and the rest of
/// `record` say who did.
io::ResultsReader finish_run(io::ResultsWriter&, const std::filesystem::path& out,
                             const io::RunRecord& record,
                             const io::ResultsWriter::JoinParts& join = {});

/// Is it the folder itself, or anything in it? Symbolic links are followed.
bool lies_in(const std::filesystem::path& file, const std::filesystem::path& folder);
/// Throws InputError naming both where `input` is the file `output` or lies in the directory
/// `output`, which a run is about to write.
void require_apart(const std::filesystem::path& input, const std::filesystem::path& output);

/// A number for JSON: null where it is NaN.
nlohmann::ordered_json json_number(double value);

}  // namespace msa::experiments
