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
#include <set>
#include <string_view>

#include "core/io/checksum.h"
#include "core/io/file_error.h"
#include "core/io/h5.h"
#include "core/io/layout.h"
#include "core/io/partial_file.h"
#include "core/io/results_folder.h"
#include "core/io/unit_file.h"

namespace msa::io {
namespace {

/// Bytes of a file that are no unit's: /run, and HDF5's own records of groups.
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

bool is_shared(IfExists rule) { return rule == IfExists::join || rule == IfExists::replace; }

}  // namespace

void verify_checksum(const std::filesystem::path& path) {
    require(compare_checksum(path) != Checksum::differs, path.string(),
            ": is damaged, its bytes do not match the checksum at its end");
}

ResultsWriter::ResultsWriter(std::filesystem::path path, RunRecord record, IfExists if_exists) {
    check_output(path, if_exists != IfExists::refuse);
    impl_ = std::make_unique<Impl>(std::move(path), std::move(record), is_shared(if_exists));
    if (impl_->shared) {
        impl_->open_shared(if_exists);
        return;
    }
    lock_folder(impl_->lock, impl_->directory, impl_->path);
    check_output(impl_->path, if_exists != IfExists::refuse);  // another writer may have ended
    impl_->open(if_exists);
}

ResultsWriter::~ResultsWriter() {
    if (impl_->shared) {
        if (!impl_->complete && !impl_->replaces && unit_files(impl_->directory).empty() &&
            !impl_->is_claimed())
            impl_->remove_folder();
        return;
    }
    // finish() let go of it, or it never was ours: the folder may be another's now
    if (!impl_->lock || !impl_->lock->is_held()) return;
    const bool has_units = !impl_->complete && !unit_files(impl_->directory).empty();
    std::error_code ignored;  // what is left is no unfinished run to anybody
    impl_->clear(has_units || impl_->replaces, ignored);
}

bool ResultsWriter::complete() const { return impl_->complete; }

bool ResultsWriter::done(const std::string& unit) const {
    const h5::Lock lock;
    if (impl_->complete || !impl_->shared) return impl_->complete || impl_->units.contains(unit);
    return std::filesystem::exists(impl_->directory / file_name_of_unit(unit));
}

void ResultsWriter::record_inputs(std::map<std::string, std::string> inputs) {
    const h5::Lock lock;
    impl_->record.inputs = std::move(inputs);
    impl_->units.clear();  // those that are there were compared without
    if (impl_->complete)
        require_same_run(impl_->path.string(), ResultsReader(impl_->path).run(), impl_->record);
    look();
}

void ResultsWriter::look() {
    const h5::Lock lock;
    if (impl_->complete || impl_->publish()) return;
    verify_checksum(impl_->path);
    impl_->require_same_unless_unknown(impl_->path.string(), ResultsReader(impl_->path).run());
    impl_->complete = true;
}

namespace {

std::filesystem::path claim_of(const std::filesystem::path& directory, const std::string& unit) {
    return directory / (file_name_of_unit(unit) + ".claim");
}

}  // namespace

std::optional<Claim> ResultsWriter::claim(const std::string& unit) const {
    return Claim::take(claim_of(impl_->directory, unit));
}

std::string ResultsWriter::holder(const std::string& unit) const {
    return Claim::holder(claim_of(impl_->directory, unit));
}

UnitWriter ResultsWriter::begin(const std::string& unit) {
    const h5::Lock lock;
    MSA_CHECK(impl_->shared || !done(unit));
    const std::filesystem::path file = impl_->directory / file_name_of_unit(unit);
    return UnitWriter(std::make_unique<UnitWriter::Impl>(
        file, unit, [this] { return identity_text(impl_->record); },
        [this, unit, file] { impl_->units[unit] = file; }));
}

std::vector<ResultsWriter::Notes> ResultsWriter::notes() const {
    if (impl_->shared) impl_->read_units();
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
        const std::filesystem::path file =
            temporary_of(directory / (file_name_of_unit(whole) + ".joined"));
        UnitWriter to(std::make_unique<UnitWriter::Impl>(
            file, whole, [] { return std::string(); }, [] {}));
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

void ResultsWriter::Impl::add_derived(const std::filesystem::path& to, const Derive& derive) const {
    const std::filesystem::path file = temporary_of(directory / "derived");
    try {
        UnitWriter derived(std::make_unique<UnitWriter::Impl>(
            file, "derived", [] { return std::string(); }, [] {}));
        derive(ResultsReader(to), derived);
        derived.finish();
        const h5::Lock library;
        h5::Handle whole = h5::open_to_add(to);
        reserve(to, std::filesystem::file_size(to) + std::filesystem::file_size(file) + kAbout);
        merge(h5::open_file(file), whole, "/", to);
        h5::close_durably(std::move(whole), to);
    } catch (...) {
        std::error_code ignored;
        std::filesystem::remove(file, ignored);
        throw;
    }
    std::filesystem::remove(file);
}

void ResultsWriter::Impl::put_in_place(const std::filesystem::path& whole) {
    append_checksum(whole);
    std::filesystem::rename(whole, path);
    units.clear();
    replaces = false;
    if (shared) {
        complete = true;
        return;
    }
    std::error_code ignored;  // the results are whole under their name
    clear(false, ignored);
    lock->remove();
    std::filesystem::remove(directory, ignored);
}

void ResultsWriter::end() { impl_->remove_folder(); }

void ResultsWriter::finish(const JoinParts& join, const Derive& derive) {
    if (impl_->complete) return;
    if (impl_->shared) {
        impl_->read_units();
        for (const std::string& unit : impl_->record.units)
            if (!impl_->units.contains(unit))
                throw SystemError(concat(impl_->directory.string(), ": ", unit,
                                         " is gone, another process began the run anew"));
    }
    const std::filesystem::path assembled = temporary_of(impl_->directory / "results");
    const auto units = impl_->units;
    try {
        h5::close_durably(impl_->assemble(assembled, join), assembled);
        if (derive) impl_->add_derived(assembled, derive);
        release_rest(assembled);
        impl_->put_in_place(assembled);
    } catch (...) {
        std::error_code ignored;
        std::filesystem::remove(assembled, ignored);
        for (const auto& [unit, file] : impl_->units)
            if (!units.contains(unit)) std::filesystem::remove(file, ignored);  // it was joined
        impl_->units = units;
        throw;
    }
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

}  // namespace msa::io
