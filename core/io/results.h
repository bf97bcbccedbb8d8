// SPDX-License-Identifier: MIT
// Reader and writer of `msa-results` version 3 (data/FORMAT.md). A run is a list of units (one
// layer, say). Each finished unit is a file of its own under `<path>.partial/`, completed by a
// rename, so a kill at any moment loses only the units in progress. finish() assembles the units
// into `path`, again with a rename, in the order of their names. So the bytes do not depend on who
// wrote which unit when. All these files end with their checksum.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

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

/// join: another process of the same run has opened `path` and assembles the results.
enum class IfExists : uint8_t { refuse, overwrite, resume, join };

/// The units of a run under way. Its functions may be called by several threads.
class ResultsWriter {
public:
    /// refuse: InputError if `path` exists or an unfinished run is beside it. overwrite: starts
    /// afresh, in place of a run of the same program; `path` stays as it is until finish(). resume:
    /// keeps the finished units of the same run (require_same_run), all of them if `path` already
    /// holds that run and nobody began to replace it; starts afresh if there is nothing. InputError
    /// naming the first difference if it is another run, or the damaged unit; InputError while
    /// another process is writing `path` (see core/io/partial_file.h).
    ResultsWriter(std::filesystem::path path, RunRecord record, IfExists if_exists);
    /// Without finish() or keep_units(): keeps the finished units, and removes the folder if there
    /// are none.
    ~ResultsWriter();
    ResultsWriter(const ResultsWriter&) = delete;
    ResultsWriter& operator=(const ResultsWriter&) = delete;

    /// `path` holds the whole run already.
    bool complete() const;
    bool done(const std::string& unit) const;
    /// Completes the record of a run that started afresh, before its first unit is finished.
    void record_inputs(std::map<std::string, std::string> inputs);
    /// Counts units that other processes finished meanwhile as done.
    void count_finished();

    /// Starts a unit that is not done yet.
    UnitWriter begin(const std::string& unit);
    /// Copies a finished unit from another folder. InputError if it is damaged.
    void add(const std::filesystem::path& unit_file);
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
    /// Joins parts into their units, assembles all units, adds /run and /done, renames to `path`,
    /// and removes the unit files.
    void finish(const JoinParts& join = {});
    /// The same of a run with this unit alone, which is not finished by itself: its file becomes
    /// the results, without a copy.
    void finish(UnitWriter only);
    /// Leaves the units for another process to assemble.
    void keep_units();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// A folder of finished units, as keep_units() leaves it.
struct UnitFolder {
    std::filesystem::path path;  // of the results that it would become
    RunRecord record;
    std::map<std::string, std::filesystem::path> units;  // by their names
};
/// Opens the folder of units beside the results `path`. InputError if there is none, or if a
/// process is writing it.
UnitFolder open_units(const std::filesystem::path& path);

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
