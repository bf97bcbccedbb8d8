// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "core/io/checksum.h"
#include "core/io/file_error.h"
#include "core/io/h5.h"
#include "core/io/layout.h"
#include "core/io/partial_file.h"
#include "core/io/results.h"
#include "core/io/unit_file.h"

namespace msa::io {
namespace {

void write_text_durably(const std::filesystem::path& path, const std::string& content) {
    const std::filesystem::path temporary = path.string() + ".tmp";
    if (std::ofstream file(temporary); !(file << content).flush())
        throw SystemError(concat("cannot write ", temporary.string(), ": ", std::strerror(errno)));
    sync(temporary);
    std::filesystem::rename(temporary, path);
}

/// What a file has beside its units: /run, and what HDF5 keeps of groups.
constexpr uintmax_t kAbout = 1 << 17;

/// Holds the disk for `bytes` of a file that exists, beyond its end: H5Ocopy of HDF5 1.10 crashes
/// where a write fails. Where the file system cannot, nothing is held.
void reserve(const std::filesystem::path& path, uintmax_t bytes) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) return;
    rlimit most{};
    const bool allowed = ::getrlimit(RLIMIT_FSIZE, &most) < 0 || bytes <= most.rlim_cur;
    if (!allowed) errno = EFBIG;
    const bool held =
        allowed && ::fallocate(file, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0;
    const int reason = errno;
    ::close(file);
    if (!held && (reason == ENOSPC || reason == EDQUOT || reason == EFBIG))
        throw SystemError(concat("cannot write ", path.string(), ": ", std::strerror(reason)));
}

/// Gives back what reserve() held and nobody needed.
void release_rest(const std::filesystem::path& path) {
    std::filesystem::resize_file(path, std::filesystem::file_size(path));
}

/// Copies what `from` holds under `group` into `to`; groups that are there already are entered.
void merge(hid_t from, hid_t to, const std::string& group, const std::filesystem::path& path) {
    const h5::Handle source = h5::open_object(from, {path, group});
    for (const std::string& name : h5::links(source)) {
        const std::string object = (group == "/" ? "" : group) + "/" + name;
        if (h5::exists(to, object)) {
            merge(from, to, object, path);
        } else if (H5Ocopy(from, object.c_str(), to, object.c_str(), H5P_DEFAULT, H5P_DEFAULT) <
                   0) {
            throw SystemError(
                concat("cannot write ", path.string(), ": ", object, ": ", h5::take_error()));
        }
    }
}

}  // namespace

void verify_checksum(const std::filesystem::path& path) {
    require(compare_checksum(path) != Checksum::differs, path.string(),
            ": is damaged, its bytes do not match the checksum at its end");
}

namespace {

/// The lock is inside the folder: what removes one removes the other.
void lock_folder(std::optional<LockedFile>& lock, const std::filesystem::path& folder,
                 const std::filesystem::path& path) {
    for (;;) try {
            std::filesystem::create_directories(folder);
            lock.emplace(folder / "lock", path);
            return;
        } catch (const SystemError&) {  // another writer has just ended and removed the folder
            if (std::filesystem::exists(folder)) throw;
        }
}

RunRecord read_record(const std::filesystem::path& directory) {
    std::ifstream stream(directory / "run.json");
    return parse_record(directory.string(), {std::istreambuf_iterator<char>(stream), {}});
}

std::vector<std::filesystem::path> unit_files(const std::filesystem::path& directory) {
    std::vector<std::filesystem::path> files;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(directory, none))
        if (entry.path().extension() == ".h5") files.push_back(entry.path());
    return files;
}

std::map<std::string, std::filesystem::path> read_units(const std::filesystem::path& directory) {
    std::map<std::string, std::filesystem::path> units;
    for (const std::filesystem::path& file : unit_files(directory))
        units[unit_of_file(file)] = file;
    return units;
}

}  // namespace

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

struct ResultsWriter::Impl {
    Impl(std::filesystem::path results, RunRecord run)
        : path(std::move(results)), directory(path.string() + ".partial"), record(std::move(run)) {}
    ~Impl() {
        if (!lock) return;  // it is another's folder
        lock->remove();
        std::error_code not_empty;
        std::filesystem::remove(directory, not_empty);
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    std::filesystem::path path, directory;
    RunRecord record;
    std::optional<LockedFile> lock;
    std::map<std::string, std::filesystem::path> units;  // finished, with their files
    bool complete = false;                               // `path` holds the whole run already
    bool replaces = false;                               // `path` holds another one, till the end
    bool kept = false;

    /// Everything in the folder but the lock, or but the finished units too.
    void clear(bool keep_units, std::error_code& error) const {
        for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
            const std::filesystem::path name = entry.path().filename();
            const bool keep = name == "lock" || (keep_units && name.extension() != ".tmp");
            if (!keep && !error) std::filesystem::remove_all(entry.path(), error);
        }
    }

    void write_record() const { write_text_durably(directory / "run.json", to_json(record)); }

    void start_afresh() const {
        std::error_code error;
        clear(false, error);
        if (error)
            throw SystemError(concat("cannot empty ", directory.string(), ": ", error.message()));
        try {
            write_record();
        } catch (...) {
            clear(false, error);
            throw;
        }
    }

    std::vector<std::string> in_order() const {
        std::vector<std::string> names;
        for (const auto& [unit, unit_file] : units) names.push_back(unit);
        std::sort(names.begin(), names.end(), h5::natural_less);
        return names;
    }

    /// The units that take the place of their parts.
    void join_parts(const JoinParts& join);
    /// Everything in one file, which is still open.
    h5::Handle assemble(const std::filesystem::path& to, const JoinParts& join);
    /// Makes the file `whole` of the folder the results.
    void put_in_place(const std::filesystem::path& whole);
    void open(IfExists if_exists);
};

void ResultsWriter::Impl::open(IfExists if_exists) {
    complete = std::filesystem::exists(path);
    const bool unfinished = std::filesystem::exists(directory / "run.json") &&
                            (complete || !unit_files(directory).empty());
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
        units = read_units(directory);
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

ResultsWriter::ResultsWriter(std::filesystem::path path, RunRecord record, IfExists if_exists) {
    if (if_exists == IfExists::join) {
        impl_ = std::make_unique<Impl>(std::move(path), std::move(record));
        impl_->complete = !std::filesystem::exists(impl_->directory / "run.json");
        if (!impl_->complete) count_finished();
        return;
    }
    check_output(path, if_exists != IfExists::refuse);
    impl_ = std::make_unique<Impl>(std::move(path), std::move(record));
    lock_folder(impl_->lock, impl_->directory, impl_->path);
    check_output(impl_->path, if_exists != IfExists::refuse);  // another writer may have ended
    impl_->open(if_exists);
}

ResultsWriter::~ResultsWriter() {
    // finish() let go of it, or it never was ours: the folder may be another's now
    if (!impl_->lock || !impl_->lock->is_held() || impl_->kept) return;
    const bool has_units = !impl_->complete && !unit_files(impl_->directory).empty();
    std::error_code ignored;  // what is left is no unfinished run to anybody
    impl_->clear(has_units || impl_->replaces, ignored);
}

bool ResultsWriter::complete() const { return impl_->complete; }

bool ResultsWriter::done(const std::string& unit) const {
    const h5::Lock lock;
    return impl_->complete || impl_->units.contains(unit);
}

void ResultsWriter::record_inputs(std::map<std::string, std::string> inputs) {
    impl_->record.inputs = std::move(inputs);
    impl_->write_record();
}

void ResultsWriter::count_finished() {
    const h5::Lock lock;
    impl_->units = read_units(impl_->directory);
}

UnitWriter ResultsWriter::begin(const std::string& unit) {
    const h5::Lock lock;
    MSA_CHECK(!done(unit));
    const std::filesystem::path file = impl_->directory / file_name_of_unit(unit);
    return UnitWriter(std::make_unique<UnitWriter::Impl>(
        file, unit, [this, unit, file] { impl_->units[unit] = file; }));
}

void ResultsWriter::add(const std::filesystem::path& unit_file) {
    const h5::Lock lock;
    const std::string unit = unit_of_file(unit_file);
    if (!impl_->complete) impl_->units[unit] = unit_file;
}

std::vector<ResultsWriter::Notes> ResultsWriter::notes() const {
    std::vector<std::string> names = impl_->in_order();
    std::map<std::string_view, size_t> place;  // in the run; those of no run are last
    for (const std::string& unit : impl_->record.units) place.emplace(unit, place.size());
    std::ranges::stable_sort(names, {}, [&](const std::string& unit) {
        const auto at = place.find(unit);
        return at == place.end() ? place.size() : at->second;
    });
    std::vector<Notes> all;
    for (const std::string& unit : names)
        all.push_back({unit, notes_of_file(impl_->units.at(unit))});
    return all;
}

namespace {

/// The root's attributes and /run.
void write_run(hid_t file, const std::filesystem::path& path, const RunRecord& r) {
    const h5::Handle root = h5::open_object(file, {path, "/"});
    h5::set_attribute(root, "format", std::string(kResultsFormat));
    h5::set_attribute(root, "format_version", kResultsVersion);
    const h5::Handle run = h5::make_group(file, {path, "/run"});
    for (const auto& [name, value] :
         {std::pair<const char*, std::string>{"program", r.program},
          {"options", r.options},
          {"definitions", r.definitions},
          {"commit", r.commit},
          {"compiler", r.compiler},
          {"inputs", nlohmann::json(r.inputs).dump(-1, ' ', false,
                                                   nlohmann::json::error_handler_t::replace)}})
        h5::set_attribute(run, name, value);
    for (const auto& [name, value] :
         {std::pair{"element", r.element}, std::pair{"index_element", r.index_element},
          std::pair{"computed_in", r.computed_in}, std::pair{"captures", r.captures}})
        if (!value.empty()) h5::set_attribute(run, name, value);
    h5::set_attribute(run, "seed", static_cast<int64_t>(r.seed));
}

}  // namespace

void ResultsWriter::Impl::join_parts(const JoinParts& join) {
    for (const auto& [whole, parts] : record.joined) {
        MSA_CHECK(join);
        std::vector<std::filesystem::path> files;
        uintmax_t bytes = kAbout;
        for (const std::string& part : parts) {
            const auto at = units.find(part);
            MSA_CHECK(at != units.end());
            files.push_back(at->second);
            bytes += std::filesystem::file_size(at->second);
            units.erase(at);
        }
        const std::filesystem::path file = directory / (file_name_of_unit(whole) + ".joined");
        UnitWriter to(std::make_unique<UnitWriter::Impl>(file, whole, [] {}));
        reserve(to.impl_->temporary, bytes);
        join(files, to);
        to.finish();
        units[whole] = file;
    }
}

h5::Handle ResultsWriter::Impl::assemble(const std::filesystem::path& to, const JoinParts& join) {
    const h5::Lock library;
    join_parts(join);
    h5::Handle file = h5::create_file(to);
    const std::vector<std::string> names = in_order();
    uintmax_t bytes = kAbout;
    for (const std::string& unit : names) bytes += std::filesystem::file_size(units.at(unit));
    reserve(to, bytes);
    for (const std::string& unit : names) merge(h5::open_file(units.at(unit)), file, "/", to);
    write_run(file, to, record);
    h5::write_texts(file, {to, "/done"}, names);
    return file;
}

void ResultsWriter::Impl::put_in_place(const std::filesystem::path& whole) {
    append_checksum(whole);
    std::filesystem::rename(whole, path);
    units.clear();
    replaces = false;
    std::error_code ignored;  // the results are whole under their name
    clear(false, ignored);
    lock->remove();
    std::filesystem::remove(directory, ignored);
}

void ResultsWriter::finish(const JoinParts& join) {
    if (impl_->complete) return;
    const std::filesystem::path assembled = impl_->directory / "results.tmp";
    h5::close_durably(impl_->assemble(assembled, join), assembled);
    release_rest(assembled);
    impl_->put_in_place(assembled);
}

void ResultsWriter::finish(UnitWriter only) {
    UnitWriter::Impl& of = *only.impl_;
    {
        const h5::Lock library;
        const h5::Handle root = h5::open_object(of.file, of.at("/"));
        const std::string unit = h5::text_attribute(root, "unit", of.at("/"));
        if (H5Adelete(root, "unit") < 0)
            throw SystemError(
                concat("cannot write ", of.temporary.string(), ": ", h5::take_error()));
        write_run(of.file, of.temporary, impl_->record);
        h5::write_texts(of.file, of.at("/done"), {unit});
    }
    h5::close_durably(std::move(of.file), of.temporary);
    impl_->put_in_place(of.temporary);
}

void ResultsWriter::keep_units() { impl_->kept = true; }

UnitFolder open_units(const std::filesystem::path& path) {
    const std::filesystem::path directory = path.string() + ".partial";
    require(std::filesystem::exists(directory / "run.json"), directory.string(),
            ": there is no run under way");
    LockedFile lock(directory / "lock", path);
    UnitFolder folder{path, read_record(directory), read_units(directory)};
    lock.remove();
    return folder;
}

}  // namespace msa::io
