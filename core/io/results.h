// SPDX-License-Identifier: MIT
// Reader and writer of `msa-results` version 3 (data/FORMAT.md). A run is a list of units (one
// layer, say). Each finished unit is a file of its own under `<path>.partial/`, completed by a
// rename, so a kill at any moment loses only the units in progress. finish() assembles the units
// into `path`, again with a rename, in the order of their names. So the bytes do not depend on who
// wrote which unit when, or how often: any number of processes may share a run. All these files end
// with their checksum, and a unit says of which run it is.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/io/claim.h"
#include "core/io/dataset_reader.h"
#include "core/io/run_record.h"
#include "core/io/unit_writer.h"
#include "core/tensor.h"

namespace msa::io {

/// InputError if the bytes of a file of results do not match the checksum at its end. A file
/// without a checksum passes.
void verify_checksum(const std::filesystem::path& path);

/// FileError if `place`, a file of results or the folder of a run under way, is of another program.
/// A damaged one is of nobody.
void require_program(const std::filesystem::path& place, const std::string& program);

/// What happens to what is there, and to other processes that write the same results.
enum class IfExists : uint8_t {
    // No other process may write the results.
    refuse,     // InputError if results or an unfinished run are there
    overwrite,  // starts afresh, in place of a run of the same program
    resume,     // goes on with the same run, starts afresh if there is nothing
    // Any number of processes do the run together.
    join,     // as resume
    replace,  // as overwrite, but joins other processes that are at the same run
};

class ResultsReader;

/// The units of a run under way. Its functions may be called by several threads.
class ResultsWriter {
public:
    /// Goes on with the finished units of the same run (require_same_run), all of them if `path`
    /// already holds that run and nobody began to replace it. `path` stays as it is until finish().
    /// InputError naming the first difference if it is another run, or the damaged unit; InputError
    /// if another process writes `path` and does not share it (core/io/partial_file.h). A run
    /// without a finished unit, which nobody does, is no run.
    ResultsWriter(std::filesystem::path path, RunRecord record, IfExists if_exists);
    /// Without finish(): keeps the finished units, and removes the folder if there are none.
    ~ResultsWriter();
    ResultsWriter(const ResultsWriter&) = delete;
    ResultsWriter& operator=(const ResultsWriter&) = delete;

    /// `path` holds the whole run already.
    bool complete() const;
    bool done(const std::string& unit) const;
    /// Completes the record of a run that began without its inputs, before its first unit is
    /// finished. InputError if other processes read other inputs.
    void record_inputs(std::map<std::string, std::string> inputs);

    // Of a run that processes share.

    /// Looks at what the others did: complete() and done() may change. InputError if another run is
    /// in the folder now.
    void look();
    /// Takes a unit, or another piece of work of that name; nothing if another process has it.
    std::optional<Claim> claim(const std::string& unit) const;
    /// "process 12 of HOST" has it, or nothing.
    std::string holder(const std::string& unit) const;
    /// Removes the unit files: to be called when all that follows finish() is written. A process
    /// that ends before leaves a run under way, which any other completes.
    void end();

    /// Starts a unit that is not done yet.
    UnitWriter begin(const std::string& unit);
    /// The notes of each finished unit (UnitWriter::note), in the order of the run.
    struct Notes {
        std::string unit;
        std::map<std::string, std::string> texts;
    };
    std::vector<Notes> notes() const;

    /// Writes a unit of the results from the files of its parts (RunRecord::joined), given in
    /// order.
    using JoinParts =
        std::function<void(const std::vector<std::filesystem::path>& parts, UnitWriter& to)>;
    /// Writes what is made of all units, as tables, from results that have no name yet.
    using Derive = std::function<void(const ResultsReader& results, UnitWriter& to)>;
    /// Joins parts into their units, assembles all units, adds /run, /done and what `derive`
    /// writes, and renames to `path`. Removes the unit files, but not of a run that processes
    /// share: see end(). InputError if the unit of another process is damaged or of another run.
    void finish(const JoinParts& join = {}, const Derive& derive = {});
    /// The same of a run with this unit alone, which is not finished by itself: its file becomes
    /// the results, without a copy.
    void finish(UnitWriter only);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

class ResultsReader : public DatasetReader {
public:
    explicit ResultsReader(const std::filesystem::path& path);
    /// Reads a file in memory and keeps a copy; messages call it `name`.
    ResultsReader(const std::filesystem::path& name, std::span<const uint8_t> bytes);
    ~ResultsReader();

    int64_t version() const;  // of the format
    const RunRecord& run() const;
    const std::vector<std::string>& done() const;

private:
    explicit ResultsReader(DatasetReader opened);
    struct About;
    std::unique_ptr<About> about_;
};

}  // namespace msa::io
