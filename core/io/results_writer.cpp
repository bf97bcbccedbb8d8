// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/h5.h"
#include "core/io/layout.h"
#include "core/io/partial_file.h"
#include "core/io/results.h"
#include "core/io/seal.h"

namespace msa::io {
namespace {

using nlohmann::json;

/// JSON has no bytes that are not UTF-8: they become U+FFFD, also in the file names of a record.
std::string dumped(const json& value, int indent = -1) {
    return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

/// What must agree for a run to be resumed.
json identity(const RunRecord& r) {
    const json options = json::parse(r.options, nullptr, false);
    return {{"program", r.program},
            {"options", options.is_discarded() ? json(r.options) : options},
            {"seed", r.seed},
            {"commit", r.commit},
            {"inputs", r.inputs}};
}

/// Throws InputError naming the first difference between what `place` records and this run.
void require_same_identity(const std::string& place, const json& known, const json& wanted,
                           const std::string& group = "") {
    require(known.is_object(), place, ": cannot resume, its record of the run is unreadable",
            "; --overwrite starts afresh");
    for (const auto& [key, value] : wanted.items()) {
        const json before = known.value(key, json());
        if (before.is_object() && value.is_object())
            require_same_identity(place, before, value, group + key + ".");
        else
            require(before == value, place, ": cannot resume, ", group, key, " was ",
                    dumped(before), ", is ", dumped(value), " now; --overwrite starts afresh");
    }
}

void write_text_durably(const std::filesystem::path& path, const std::string& content) {
    const std::filesystem::path temporary = path.string() + ".tmp";
    if (std::ofstream file(temporary); !(file << content).flush())
        throw SystemError(text("cannot write ", temporary.string(), ": ", std::strerror(errno)));
    std::filesystem::rename(temporary, path);
}

std::string file_name_of(const std::string& unit) {
    std::string name = "unit-";
    for (char c : unit) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '-';
    return name + ".h5";
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
                text("cannot write ", path.string(), ": ", object, ": ", h5::take_error()));
        }
    }
}

template <size_t Rank>
std::vector<hsize_t> sizes(const std::array<int64_t, Rank>& shape) {
    return {shape.begin(), shape.end()};
}

/// Chunks of about 256 KiB along the first axis; none for what is small.
std::vector<hsize_t> chunk_of(const std::vector<hsize_t>& shape, int64_t element_size) {
    constexpr hsize_t kSmall = 16384, kChunk = hsize_t{1} << 18;
    hsize_t row = static_cast<hsize_t>(element_size);
    for (size_t axis = 1; axis < shape.size(); ++axis) row *= shape[axis];
    if (row * shape[0] < kSmall) return {};
    std::vector<hsize_t> chunk = shape;
    chunk[0] = std::clamp<hsize_t>(kChunk / row, 1, shape[0]);
    return chunk;
}

}  // namespace

void require_whole(const std::filesystem::path& path) {
    require(check_seal(path) != Seal::broken, path.string(),
            ": is damaged, its bytes do not match the checksum at its end");
}

void require_same_run(const std::string& place, const RunRecord& known, const RunRecord& wanted) {
    require_same_identity(place, identity(known), identity(wanted));
}

namespace {

/// The lock is inside the folder: what removes one removes the other.
LockedFile lock_folder(const std::filesystem::path& folder, const std::filesystem::path& path) {
    for (;;) try {
            std::filesystem::create_directories(folder);
            return {folder / "lock", path};
        } catch (const SystemError&) {  // another writer has just ended and removed the folder
            if (std::filesystem::exists(folder)) throw;
        }
}

}  // namespace

struct ResultsWriter::Impl {
    Impl(std::filesystem::path results, RunRecord run)
        : path(std::move(results)),
          directory(path.string() + ".partial"),
          record(std::move(run)),
          lock(lock_folder(directory, path)) {}
    ~Impl() {
        file.reset();
        lock.remove();
        std::error_code not_empty;
        std::filesystem::remove(directory, not_empty);
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    std::filesystem::path path, directory, unit_path;
    RunRecord record;
    LockedFile lock;
    std::vector<std::string> units;  // finished
    std::string unit;                // under way
    h5::Handle file;                 // of the unit under way
    bool complete = false;           // `path` holds the whole run already
    bool replaces = false;           // `path` holds another one, till the end of this

    h5::Place at(const std::string& object) const { return {unit_path, object}; }

    std::vector<std::filesystem::path> finished_units() const {
        std::vector<std::filesystem::path> files;
        for (const auto& entry : std::filesystem::directory_iterator(directory))
            if (entry.path().extension() == ".h5") files.push_back(entry.path());
        return files;
    }

    /// Everything in the folder but the lock, or but the finished units too.
    void clear(bool keep_units, std::error_code& error) const {
        for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
            const std::filesystem::path name = entry.path().filename();
            const bool kept = name == "lock" || (keep_units && name.extension() != ".tmp");
            if (!kept && !error) std::filesystem::remove_all(entry.path(), error);
        }
    }

    void start_afresh() const {
        std::error_code error;
        clear(false, error);
        if (error)
            throw SystemError(text("cannot empty ", directory.string(), ": ", error.message()));
        try {
            write_text_durably(directory / "run.json", dumped(identity(record), 2));
        } catch (...) {
            clear(false, error);
            throw;
        }
    }

    void take_up() {
        std::ifstream stream(directory / "run.json");
        const json known = json::parse(stream, nullptr, false);
        require_same_identity(directory.string(), known, identity(record));
        for (const std::filesystem::path& unit_file : finished_units()) {
            const Seal found = check_seal(unit_file);
            require(found == Seal::whole, unit_file.string(),
                    ": cannot resume, this finished unit ",
                    found == Seal::none ? "has no checksum at its end"
                                        : "is damaged, its bytes do not match its checksum",
                    "; --overwrite starts afresh");
            const h5::Handle finished = h5::open_file(unit_file);
            const h5::Place root{unit_file, "/"};
            units.push_back(h5::text_attribute(h5::open_object(finished, root), "unit", root));
        }
    }
};

ResultsWriter::ResultsWriter(std::filesystem::path path, RunRecord record, IfExists if_exists) {
    check_output(path, if_exists != IfExists::refuse);
    impl_ = std::make_unique<Impl>(std::move(path), std::move(record));
    check_output(impl_->path, if_exists != IfExists::refuse);  // another writer may have ended
    const bool complete = std::filesystem::exists(impl_->path);
    const bool unfinished = std::filesystem::exists(impl_->directory / "run.json") &&
                            (complete || !impl_->finished_units().empty());
    require(!unfinished || if_exists != IfExists::refuse, impl_->directory.string(),
            ": holds an unfinished run; --resume continues it, --overwrite starts afresh");
    if (unfinished && if_exists == IfExists::resume) {
        impl_->replaces = complete;
        impl_->take_up();
    } else if (complete && if_exists == IfExists::resume) {
        require_whole(impl_->path);
        require_same_run(impl_->path.string(), ResultsReader(impl_->path).run(), impl_->record);
        impl_->complete = true;
    } else {
        impl_->replaces = complete;
        impl_->start_afresh();
    }
}

ResultsWriter::~ResultsWriter() {
    impl_->file.reset();
    if (!impl_->lock.is_held()) return;  // finish() let go of it: the folder may be another's now
    const bool resumable = !impl_->units.empty() || impl_->replaces;
    std::error_code ignored;  // what is left is no unfinished run to anybody
    impl_->clear(resumable, ignored);
}

bool ResultsWriter::done(const std::string& unit) const {
    return impl_->complete ||
           std::find(impl_->units.begin(), impl_->units.end(), unit) != impl_->units.end();
}

void ResultsWriter::begin_unit(const std::string& unit) {
    MSA_CHECK(!impl_->file && !done(unit));
    impl_->unit = unit;
    impl_->unit_path = impl_->directory / (file_name_of(unit) + ".tmp");
    impl_->file = h5::create_file(impl_->unit_path);
    h5::set_attribute(h5::open_object(impl_->file, impl_->at("/")), "unit", unit);
}

void ResultsWriter::end_unit() {
    MSA_CHECK(static_cast<bool>(impl_->file));
    h5::close_durably(std::move(impl_->file), impl_->unit_path);
    seal(impl_->unit_path);
    std::filesystem::rename(impl_->unit_path, impl_->directory / file_name_of(impl_->unit));
    impl_->units.push_back(impl_->unit);
}

template <typename T, int Rank>
void ResultsWriter::create(const std::string& name, const Shape<Rank>& shape,
                           const Describe& describe) {
    MSA_CHECK(static_cast<bool>(impl_->file));
    const std::vector<hsize_t> extents = sizes(shape);
    const h5::Handle type = h5::native_type<T>();
    const h5::Handle dataset = h5::create_dataset(impl_->file, impl_->at(name), type, extents,
                                                  chunk_of(extents, int64_t{sizeof(T)}));
    h5::set_attribute(dataset, "axes", describe.axes);
    h5::set_attribute(dataset, "unit", describe.unit);
    h5::set_attribute(dataset, "description", describe.description);
}

template <typename T, int Rank>
void ResultsWriter::write_rows(const std::string& name, int64_t first_row,
                               View<const T, Rank> rows) {
    const h5::Handle dataset = h5::open_object(impl_->file, impl_->at(name));
    h5::Slab slab{std::vector<hsize_t>(Rank, 0), sizes(rows.shape())};
    slab.offset[0] = static_cast<hsize_t>(first_row);
    h5::write(dataset, h5::native_type<T>(), slab, rows.data(), impl_->at(name));
}

template <typename T, int Rank>
void ResultsWriter::write(const std::string& name, View<const T, Rank> values,
                          const Describe& describe) {
    create<T, Rank>(name, values.shape(), describe);
    write_rows<T, Rank>(name, 0, values);
}

namespace {

template <typename Value>
void put(hid_t file, const h5::Place& place, const std::string& name, const Value& value) {
    const h5::Handle object =
        h5::exists(file, place.object) ? h5::open_object(file, place) : h5::make_group(file, place);
    h5::set_attribute(object, name, value);
}

/// The root's attributes and /run.
void write_record(hid_t file, const std::filesystem::path& path, const RunRecord& r) {
    const h5::Handle root = h5::open_object(file, {path, "/"});
    h5::set_attribute(root, "format", std::string(kResultsFormat));
    h5::set_attribute(root, "format_version", kFormatVersion);
    const h5::Handle run = h5::make_group(file, {path, "/run"});
    for (const auto& [name, value] : {std::pair<const char*, std::string>{"program", r.program},
                                      {"argv", dumped(r.argv)},
                                      {"options", r.options},
                                      {"definitions", r.definitions},
                                      {"commit", r.commit},
                                      {"host", r.host},
                                      {"device", r.device},
                                      {"compiler", r.compiler},
                                      {"started", r.started},
                                      {"finished", r.finished},
                                      {"inputs", dumped(r.inputs)}})
        h5::set_attribute(run, name, value);
    for (const auto& [name, value] :
         {std::pair{"element", r.element}, std::pair{"index_element", r.index_element},
          std::pair{"computed_in", r.computed_in}})
        if (!value.empty()) h5::set_attribute(run, name, value);
    h5::set_attribute(run, "seed", static_cast<int64_t>(r.seed));
}

}  // namespace

void ResultsWriter::attribute(const std::string& object, const std::string& name, double value) {
    put(impl_->file, impl_->at(object), name, value);
}
void ResultsWriter::attribute(const std::string& object, const std::string& name, int64_t value) {
    put(impl_->file, impl_->at(object), name, value);
}
void ResultsWriter::attribute(const std::string& object, const std::string& name,
                              const std::string& value) {
    put(impl_->file, impl_->at(object), name, value);
}

void ResultsWriter::finish(const std::string& now) {
    if (impl_->complete) return;
    impl_->record.finished = now;
    const std::filesystem::path assembled = impl_->directory / "results.tmp";
    h5::Handle file = h5::create_file(assembled);
    std::sort(impl_->units.begin(), impl_->units.end(), h5::natural_less);
    for (const std::string& unit : impl_->units)
        merge(h5::open_file(impl_->directory / file_name_of(unit)), file, "/", assembled);

    write_record(file, assembled, impl_->record);
    h5::write_texts(file, {assembled, "/done"}, impl_->units);
    h5::close_durably(std::move(file), assembled);
    seal(assembled);
    std::filesystem::rename(assembled, impl_->path);
    impl_->units.clear();
    impl_->replaces = false;
    std::error_code ignored;  // the results are whole under their name
    impl_->clear(false, ignored);
    impl_->lock.remove();
    std::filesystem::remove(impl_->directory, ignored);
}

#define MSA_INSTANTIATE(T, Rank)                                                         \
    template void ResultsWriter::write<T, Rank>(const std::string&, View<const T, Rank>, \
                                                const Describe&);                        \
    template void ResultsWriter::create<T, Rank>(const std::string&, const Shape<Rank>&, \
                                                 const Describe&);                       \
    template void ResultsWriter::write_rows<T, Rank>(const std::string&, int64_t,        \
                                                     View<const T, Rank>);
#define MSA_INSTANTIATE_RANKS(T) \
    MSA_INSTANTIATE(T, 1) MSA_INSTANTIATE(T, 2) MSA_INSTANTIATE(T, 3) MSA_INSTANTIATE(T, 4)
MSA_INSTANTIATE_RANKS(float)
MSA_INSTANTIATE_RANKS(double)
MSA_INSTANTIATE_RANKS(int32_t)
MSA_INSTANTIATE_RANKS(int64_t)
#undef MSA_INSTANTIATE_RANKS
#undef MSA_INSTANTIATE

}  // namespace msa::io
