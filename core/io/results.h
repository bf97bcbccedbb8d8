// SPDX-License-Identifier: MIT
// Reader and writer of `msa-results` version 3 (data/FORMAT.md). A run is a list of units (one
// layer, say). Each finished unit is a file of its own under `<path>.partial/`, made complete by a
// rename, so that a kill at any moment loses the units under way and nothing else; finish()
// assembles the units into `path`, again by a rename, in the order of their names: the bytes do not
// depend on who wrote which unit when. All these files end with their checksum.
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

/// InputError when the bytes of a file of results do not match the checksum at its end; a file
/// without one passes.
void require_whole(const std::filesystem::path& path);

/// join: another process of the same run has opened `path`, and assembles the results.
enum class IfExists : uint8_t { refuse, overwrite, resume, join };

/// The units of a run under way. Its functions may be called by several threads.
class ResultsWriter {
public:
    /// refuse: InputError if `path` exists or an unfinished run is beside it. overwrite: starts
    /// afresh; `path` stays as it is until finish(). resume: keeps the finished units of the same
    /// run (require_same_run), all of them if `path` is that run already and nobody had begun to
    /// replace it; InputError naming the first difference, or the damaged unit, otherwise; starts
    /// afresh where there is nothing. InputError while another process is writing `path` (see
    /// core/io/partial_file.h).
    ResultsWriter(std::filesystem::path path, RunRecord record, IfExists if_exists);
    /// Without finish() and set_aside(): keeps the finished units, removes what holds none.
    ~ResultsWriter();
    ResultsWriter(const ResultsWriter&) = delete;
    ResultsWriter& operator=(const ResultsWriter&) = delete;

    /// `path` holds the whole run already.
    bool complete() const;
    bool done(const std::string& unit) const;
    /// Units that others have finished meanwhile are done here too.
    void look_again();

    /// Starts a unit, which is not done.
    UnitWriter begin(const std::string& unit);
    /// Takes over the finished unit of another folder, which stays as it is. InputError where it is
    /// damaged.
    void add(const std::filesystem::path& unit_file);
    /// What was noted of each finished unit, in the order of the run.
    struct Notes {
        std::string unit;
        std::map<std::string, std::string> texts;
    };
    std::vector<Notes> notes() const;

    /// Makes a unit of the results of the files of its parts (RunRecord::joined), in their order.
    using JoinParts =
        std::function<void(const std::vector<std::filesystem::path>& parts, UnitWriter& to)>;
    /// Assembles all units, adds /run and /done, renames to `path`, removes the unit files. Parts
    /// are joined first: the results have the unit in their place.
    void finish(const JoinParts& join = {});
    /// Leaves the units as they are, for others to assemble.
    void set_aside();

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// A folder of finished units, as set_aside() leaves it.
struct UnitFolder {
    std::filesystem::path path;  // of the results that it would become
    RunRecord record;
    std::map<std::string, std::filesystem::path> units;  // by their names
};
/// Opens the one of the results `path`. InputError where there is none, or a process writes it.
UnitFolder open_units(const std::filesystem::path& path);

class ResultsReader : public DatasetReader {
public:
    explicit ResultsReader(const std::filesystem::path& path);
    /// Of a file in memory, which `name` stands for in messages. Keeps a copy.
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
