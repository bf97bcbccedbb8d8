// SPDX-License-Identifier: MIT
// A run over units of work, the same for every program that reads activations and writes results:
// the record, what is there already, the units that are left, their workers, and the files at the
// end. A program says what its options are, what a unit does, and what the results say.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// What one of several workers has to work with.
struct Worker {
    Backend& backend;
    io::ResultsWriter& to;
    std::mutex& files;  // HDF5 is not safe for two threads
    std::ostream& err;
    int threads;  // this worker's share

    /// Reads or writes files while no other worker does.
    template <typename Use>
    auto alone(const Use& use) const {
        const std::lock_guard lock(files);
        return use();
    }
    /// Writes a unit: `datasets` writes into it, alone.
    template <typename Write>
    void write(const std::string& unit, const Write& datasets) const {
        alone([&] {
            to.begin_unit(unit);
            datasets();
            to.end_unit();
        });
    }
};

/// A unit: the part of a run that is done or not done, and what --resume starts at. Its name is its
/// key in /done. Units do not depend on each other, so that any worker may take any of them.
struct Unit {
    std::string name;
    std::function<void(const Worker&)> work;
    std::function<void()> done_before = [] {};  // where an earlier run finished it
};

/// One unit for each layer, "layer L"; `work` writes the datasets of its unit, which is open.
std::vector<Unit> layer_units(const io::ActivationsReader&, std::span<const int64_t> layers,
                              const std::function<void(const io::LayerInfo&, const Worker&)>& work);

/// What becomes of the other units when one throws.
enum class OnError : uint8_t { stop, finish_others };

class UnitRun {
public:
    /// Throws InputError where an input is one of the outputs, `names` in o.out, or lies in one.
    /// Records program, arguments and inputs.
    UnitRun(const std::string& program, std::span<const std::string> args, const RunOptions& o,
            std::vector<std::filesystem::path> inputs, std::vector<std::string> names,
            std::ostream& err);

    io::RunRecord record;  // the program completes it before begin()
    std::filesystem::path path(const std::string& name) const { return o_.out / name; }

    /// Makes the directory and opens results.h5 as --resume and --overwrite say.
    void begin();
    /// Does the units that are not done, `jobs` at once, each with a backend of its own beyond the
    /// first and its share of the threads. The first error is thrown at the end, further ones are
    /// printed. Throws Interrupted where a unit does.
    void work(std::span<const Unit> units, const ComputeOptions& compute, Backend& first,
              OnError on_error, int64_t jobs = 1);
    /// Completes results.h5 and opens it.
    io::ResultsReader finish();
    /// A small file beside it.
    void write(const std::string& name, const std::string& content) const;

private:
    struct Queue;

    RunOptions o_;
    std::string program_;
    std::vector<std::filesystem::path> inputs_;
    std::ostream& err_;
    std::unique_ptr<io::ResultsWriter> to_;
};

/// What an earlier run left follows the rule of results: kept, replaced or refused. InputError
/// where `what` is of an unfinished run and neither --resume nor --overwrite is given.
void check_unfinished(const RunOptions&, const std::filesystem::path& what, bool unfinished);

/// Throws InputError naming both where `input` is the file `output` or lies in the directory
/// `output`, which a run is about to write.
void require_apart(const std::filesystem::path& input, const std::filesystem::path& output);

/// A number for JSON: null where it is NaN.
nlohmann::ordered_json json_number(double value);

}  // namespace msa::experiments
