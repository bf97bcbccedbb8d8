// SPDX-License-Identifier: MIT
// The folder of a run under way: who may write into it, and what it holds.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "core/io/h5.h"
#include "core/io/partial_file.h"
#include "core/io/results.h"

namespace msa::io {

/// The files of finished units.
std::vector<std::filesystem::path> unit_files(const std::filesystem::path& directory);

struct ResultsWriter::Impl {
    Impl(std::filesystem::path results, RunRecord run, bool is_shared)
        : path(std::move(results)),
          directory(path.string() + ".partial"),
          record(std::move(run)),
          shared(is_shared) {}
    ~Impl() {
        if (!lock) return;  // it is another's folder, or everybody's
        lock->remove();
        std::error_code not_empty;
        std::filesystem::remove(directory, not_empty);
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    std::filesystem::path path, directory;
    RunRecord record;
    bool shared;
    std::optional<LockedFile> lock;
    std::map<std::string, std::filesystem::path> units;  // finished and checked, with their files
    bool complete = false;                               // `path` holds the whole run already
    bool replaces = false;                               // `path` holds another one, till the end

    /// Everything in the folder but the lock, or but the finished units too.
    void clear(bool keep_units, std::error_code& error) const;

    std::filesystem::path record_path() const { return directory / "run.json"; }
    void write_record() const { replace_file(record_path(), to_json(record)); }
    void start_afresh() const;
    /// Adds the finished units that are not in the list yet, and takes out those that are gone.
    void read_units();
    std::vector<std::string> in_order() const;

    /// The units that take the place of their parts.
    void join_parts(const JoinParts& join);
    /// Everything in one file, which is still open.
    h5::Handle assemble(const std::filesystem::path& to, const JoinParts& join);
    /// Adds what is made of the results to the file that holds them.
    void add_derived(const std::filesystem::path& to, const ResultsWriter::Derive& derive) const;
    /// Makes the file `whole` of the folder the results.
    void put_in_place(const std::filesystem::path& whole);
    void open(IfExists if_exists);
    void open_shared(IfExists if_exists);
    bool is_claimed() const;
    bool is_of_this_run() const;
    void empty_of_others() const;
    void empty_for_this_run() const;
    void require_same_unless_unknown(const std::string& place, const RunRecord& known) const;
    bool publish() const;
    void remove_folder() const;
};

}  // namespace msa::io
