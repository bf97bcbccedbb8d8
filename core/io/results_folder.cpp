// SPDX-License-Identifier: MIT
#include "core/io/results_folder.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include "core/io/claim.h"
#include "core/io/file_error.h"
#include "core/io/unit_file.h"

namespace msa::io {
namespace {

/// That of a folder; nothing where there is none.
std::optional<RunRecord> find_record(const std::filesystem::path& directory) {
    std::ifstream stream(directory / "run.json");
    if (!stream.good()) return std::nullopt;
    return parse_record(directory.string(), {std::istreambuf_iterator<char>(stream), {}});
}

RunRecord read_record(const std::filesystem::path& directory) {
    std::optional<RunRecord> record = find_record(directory);
    if (!record) record = parse_record(directory.string(), "");  // refuses it
    return *record;
}

}  // namespace

std::vector<std::filesystem::path> unit_files(const std::filesystem::path& directory) {
    std::vector<std::filesystem::path> files;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(directory, none))
        if (entry.path().extension() == ".h5") files.push_back(entry.path());
    return files;
}

void require_program(const std::filesystem::path& place, const std::string& program) {
    std::string found;
    try {
        found = std::filesystem::is_directory(place) ? read_record(place).program
                                                     : ResultsReader(place).run().program;
    } catch (const InputError&) {
        return;
    }
    if (found != program)
        throw FileError(concat(place.string(), ": is of ", found), FileProblem::other_program);
}

void ResultsWriter::Impl::clear(bool keep_units, std::error_code& error) const {
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
        const std::filesystem::path name = entry.path().filename();
        const bool keep = name == "lock" || (keep_units && name.extension() != ".tmp");
        if (!keep && !error) std::filesystem::remove_all(entry.path(), error);
    }
}

void ResultsWriter::Impl::start_afresh() const {
    std::error_code error;
    std::filesystem::remove(record_path(), error);  // first: what follows is no run
    clear(false, error);
    if (error && error != std::errc::no_such_file_or_directory)
        throw SystemError(concat("cannot empty ", directory.string(), ": ", error.message()));
    try {
        write_record();
    } catch (...) {
        clear(false, error);
        throw;
    }
}

void ResultsWriter::Impl::read_units() {
    std::erase_if(units, [](const auto& unit) { return !std::filesystem::exists(unit.second); });
    std::set<std::filesystem::path> known;
    for (const auto& [unit, file] : units) known.insert(file);
    for (const std::filesystem::path& file : unit_files(directory))
        if (!known.contains(file)) units[unit_of_file(file, record)] = file;
}

std::vector<std::string> ResultsWriter::Impl::in_order() const {
    std::vector<std::string> names;
    for (const auto& [unit, unit_file] : units) names.push_back(unit);
    std::sort(names.begin(), names.end(), h5::natural_less);
    return names;
}

void ResultsWriter::Impl::open(IfExists if_exists) {
    complete = std::filesystem::exists(path);
    const bool unfinished =
        std::filesystem::exists(record_path()) && (complete || !unit_files(directory).empty());
    if (unfinished && if_exists == IfExists::refuse)
        throw FileError(directory.string() + ": holds an unfinished run",
                        FileProblem::unfinished_run);
    if (if_exists == IfExists::overwrite) {
        if (complete) require_program(path, record.program);
        if (unfinished) require_program(directory, record.program);
    }
    replaces = complete;
    const bool resume = if_exists == IfExists::resume;
    if (resume && unfinished) {
        require_same_run(directory.string(), read_record(directory), record);
        read_units();
        write_record();
    } else if (resume && complete) {
        verify_checksum(path);
        require_same_run(path.string(), ResultsReader(path).run(), record);
        replaces = false;
    } else {
        start_afresh();
    }
    complete = complete && !replaces;
}

/// Whether a process is at a piece of the run in the folder.
bool ResultsWriter::Impl::is_claimed() const {
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(directory, none))
        if (entry.path().extension() == ".claim" && !Claim::holder(entry.path()).empty())
            return true;
    return false;
}

/// Processes begin before they know the hashes of their inputs.
void ResultsWriter::Impl::require_same_unless_unknown(const std::string& place,
                                                      const RunRecord& known) const {
    RunRecord wanted = record;
    if (known.inputs.empty() || wanted.inputs.empty()) wanted.inputs = known.inputs;
    require_same_run(place, known, wanted);
}

/// Makes the record of this run that of the folder, where it is not yet. Whether the run is under
/// way: if not, another process has completed it.
bool ResultsWriter::Impl::publish() const {
    std::optional<RunRecord> known = find_record(directory);
    if (!known) {
        if (std::filesystem::exists(path)) return false;
        std::filesystem::create_directories(directory);
        create_file(record_path(), to_json(record));
        known = find_record(directory);
        if (!known) return publish();  // it is gone again
    }
    require_same_unless_unknown(directory.string(), *known);
    if (known->inputs.empty() && !record.inputs.empty()) write_record();
    return true;
}

/// Whether the folder has the record of this run.
bool ResultsWriter::Impl::is_of_this_run() const {
    try {
        const std::optional<RunRecord> known = find_record(directory);
        if (known) require_same_unless_unknown(directory.string(), *known);
        return known.has_value();
    } catch (const InputError&) {
        return false;
    }
}

/// Removes what is of other runs, but nothing of another process that has just begun this one.
void ResultsWriter::Impl::empty_of_others() const {
    if (std::filesystem::exists(record_path()) && !is_of_this_run()) start_afresh();
}

/// The same, and all units.
void ResultsWriter::Impl::empty_for_this_run() const {
    empty_of_others();
    for (const std::filesystem::path& file : unit_files(directory)) std::filesystem::remove(file);
}

void ResultsWriter::Impl::open_shared(IfExists if_exists) {
    const bool has_results = std::filesystem::exists(path), claimed = is_claimed();
    const bool under_way = std::filesystem::exists(record_path()) &&
                           (has_results || claimed || !unit_files(directory).empty());
    if (if_exists == IfExists::replace) {
        if (has_results) require_program(path, record.program);
        if (under_way) require_program(directory, record.program);
        require(!under_way || !claimed || is_of_this_run(), "another process is writing ",
                path.string());
        if (!claimed) empty_for_this_run();
        std::filesystem::create_directories(directory);
        if (!is_of_this_run()) create_file(record_path(), to_json(record));
    } else if (has_results && !under_way) {
        verify_checksum(path);
        require_same_run(path.string(), ResultsReader(path).run(), record);
        complete = true;
        if (!claimed) {  // a process was killed while it removed the folder
            std::error_code ignored;
            clear(false, ignored);
            std::filesystem::remove(directory, ignored);
        }
        return;
    } else {
        if (!under_way) empty_of_others();
        if (!publish()) return open_shared(if_exists);  // it was completed meanwhile
    }
    replaces = has_results;
    remove_abandoned(directory);
    try {
        read_units();
    } catch (const InputError&) {
        if (std::filesystem::exists(record_path())) throw;
        units.clear();
        open_shared(if_exists);
    }
}

/// The record goes first: without it the folder is no run that another process could go on with.
void ResultsWriter::Impl::remove_folder() const {
    std::error_code ignored;
    if (!std::filesystem::remove(record_path(), ignored)) return;
    clear(false, ignored);
    std::filesystem::remove(directory, ignored);
}

}  // namespace msa::io
