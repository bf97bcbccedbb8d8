// SPDX-License-Identifier: MIT
// A run over units of work, for every program that reads activations and writes results. It handles
// the record, existing results, the units that this and other processes do, and the final files. A
// program supplies its options, the work of a unit, and the output.
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/run_options.h"
#include "experiments/driver/units.h"

namespace msa::experiments {

/// A process's backend, with its share of the threads (driver/launch.h).
std::unique_ptr<Backend> make_own_backend(const ComputeOptions&);

/// Whether other processes may do units of the same run at the same time.
enum class Others : uint8_t { join, refused };
/// What happens to the remaining units when one fails.
enum class OnError : uint8_t { stop, finish_others };

/// Any number of processes do a run together, each started with the same command: each takes a unit
/// that is not finished and that no other process has claimed (core/io/claim.h). A process that
/// finds nothing to take waits for the others, in case one of them ends. Each ends when the results
/// are complete; one of them writes them.
class UnitRun {
public:
    /// Throws InputError if an input is one of the outputs (`names` in o.out) or lies in one. The
    /// name that ends with ".txt" is the page's. Records program and arguments.
    UnitRun(const std::string& program, std::span<const std::string> args, const RunOptions& o,
            std::vector<std::filesystem::path> inputs, std::vector<std::string> names,
            std::ostream& err);

    io::RunRecord record;  // to be completed by the program before begin(), but for its inputs
    /// The record with its inputs, whose hashes it waits for.
    const io::RunRecord& record_with_inputs();
    /// Sets options, definitions of the metrics, and device.
    void describe(const OptionTable&, const std::string& definitions, const std::string& device);
    /// The same, and the captures and the element types of o.layers on the backend.
    void describe(const OptionTable&, const std::string& definitions, const Backend&,
                  const io::ActivationsReader&, const ElementChoice&);
    std::filesystem::path path(const std::string& name) const { return o_.out / name; }

    /// Makes the directory and opens results.h5, as the options say (io::IfExists); not over
    /// results or beside an unfinished run of another program. Does not wait for the hashes where
    /// nothing is finished: then units begin beside them, and those computed before wait to be
    /// finished.
    void begin(std::vector<Unit> units, Others others = Others::join);
    /// Whether another process is at a unit.
    bool is_claimed(const std::string& unit) const { return !to_->holder(unit).empty(); }
    /// Whether all units are already done.
    bool is_done() const;
    /// Does units until all are finished, by this process or by others. The first error is thrown
    /// at the end, further ones are printed. Throws Interrupted if a unit does, or if it is asked
    /// to stop while it waits.
    void work(const ComputeOptions& compute, Backend& backend, OnError on_error);
    /// Completes results.h5 with the tables of the program's answer, then writes and prints it
    /// (write_answer). Where another process has done both, prints what that has written. Returns
    /// the verdict if the target is missed. `join` makes a unit of its parts, if there are any.
    std::string end(MakeAnswer, std::ostream& out, int threads = 0,
                    const io::ResultsWriter::JoinParts& join = {});
    /// begin(), work() and end(). The exit code: that of a refusal, with a message, where the
    /// target is missed.
    int run(std::vector<Unit> units, const ComputeOptions&, Backend&, MakeAnswer, std::ostream& out,
            const io::ResultsWriter::JoinParts& join = {});
    /// Completes results.h5, with the tables of the answer, and writes run.json. Removes an old
    /// summary.json, which is written last.
    RunAnswer finish(MakeAnswer, const io::ResultsWriter::JoinParts& join = {});

private:
    struct Taken {
        const Unit* unit;
        std::optional<io::Claim> claim;
    };
    /// A unit whose results wait to be finished.
    struct Done {
        Taken taken;
        io::UnitWriter results;
    };
    struct Failure {
        std::exception_ptr error;
        std::string message;
    };
    /// Processes that begin together share the hashes: the first to come computes them.
    void begin_hashes(bool publish);
    bool has_units() const;
    std::vector<const Unit*> in_turn() const;
    std::optional<Taken> take(const std::vector<const Unit*>& units, bool& all_done) const;
    void do_unit(Taken taken, const Worker& worker);
    bool finish_computed(bool wait);
    bool fail(const Unit* unit);

    RunOptions o_;
    std::string program_, page_;
    std::vector<std::filesystem::path> inputs_;
    std::vector<Unit> units_;
    std::ostream& err_;
    Others others_ = Others::join;
    bool inputs_later_ = false;
    std::unique_ptr<io::ResultsWriter> to_;
    std::shared_future<std::map<std::string, std::string>> hashes_;  // may have a claim in to_
    std::vector<Done> computed_;
    std::set<const Unit*> failed_;
    std::vector<Failure> failures_;
};

/// Applies the rule for existing results to other files of an earlier run: InputError if `what`
/// belongs to an unfinished run and neither --resume nor --overwrite is given.
void check_unfinished(const RunOptions&, const std::filesystem::path& what, bool unfinished);
/// Whether `file` is the folder or lies in it. Follows symbolic links.
bool lies_in(const std::filesystem::path& file, const std::filesystem::path& folder);
/// Throws InputError naming both if `input` is the file `output` or lies in the directory `output`,
/// which a run is about to write.
void require_apart(const std::filesystem::path& input, const std::filesystem::path& output);

}  // namespace msa::experiments
