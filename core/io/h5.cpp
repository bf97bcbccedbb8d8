// SPDX-License-Identifier: MIT
#include "core/io/h5.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <tuple>

#include "core/io/file_error.h"
#include "core/io/file_format.h"
#include "core/io/partial_file.h"

namespace msa::io::h5 {
namespace {

/// The innermost message of HDF5's error stack, which is emptied.
struct Failure {
    std::string why;
    bool of_system = false;  // the system's own words
};

Failure take_failure() {
    Failure failure;
    const auto visit = [](unsigned n, const H5E_error2_t* entry, void* to) -> herr_t {
        if (n == 0 && entry->desc != nullptr) *static_cast<std::string*>(to) = entry->desc;
        return 0;
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, visit, &failure.why);
    H5Eclear2(H5E_DEFAULT);
    // A failed write says when, where and how much; the system's words are in the middle.
    const std::string marker = "error message = '";
    if (const size_t at = failure.why.find(marker); at != std::string::npos) {
        const size_t begin = at + marker.size();
        failure = {failure.why.substr(begin, failure.why.find('\'', begin) - begin), true};
    }
    if (failure.why.find("version number") != std::string::npos)
        failure.why += concat("; HDF5 ", H5_VERS_MAJOR, ".", H5_VERS_MINOR, ".", H5_VERS_RELEASE,
                              " reads the file, which a later release may have written: write it "
                              "for older ones (h5py: libver=('earliest', 'v110'))");
    if (failure.why.empty()) failure.why = "no reason given";
    return failure;
}

template <typename Parts>
[[noreturn]] void bad(const Place& place, const Parts& rule) {
    throw InputError(place.text() + " " + rule);
}

[[noreturn]] void refused(const std::string& what) {
    throw SystemError(concat("cannot write ", what, ": ", take_error()));
}

void check_write(herr_t status, const Place& place) {
    if (status < 0) refused(place.text());
}

/// `size` bytes filled up with NUL, or H5T_VARIABLE ones that end with it.
Handle text_type(size_t size) {
    Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type, size);
    if (size != H5T_VARIABLE) H5Tset_strpad(type, H5T_STR_NULLPAD);
    H5Tset_cset(type, H5T_CSET_UTF8);
    return type;
}

Handle scalar() { return {H5Screate(H5S_SCALAR), H5Sclose}; }

/// The name of an object, or of its file.
std::string name_of(hid_t object, ssize_t (*get)(hid_t, char*, size_t)) {
    const ssize_t length = get(object, nullptr, 0);
    std::string name(static_cast<size_t>(std::max<ssize_t>(0, length)) + 1, '\0');
    get(object, name.data(), name.size());
    name.pop_back();
    return name;
}

/// Replaces the attribute `name` of `object` with one value.
void put_attribute(hid_t object, const std::string& name, hid_t type, const void* value,
                   const Handle& space = scalar()) {
    if (has_attribute(object, name)) H5Adelete(object, name.c_str());
    const Handle attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
                           H5Aclose);
    if (attribute && H5Awrite(attribute, type, value) >= 0) return;
    const Place place{name_of(object, H5Fget_name), name_of(object, H5Iget_name)};
    refused(place.text() + " attribute " + name);
}

Handle open_any_attribute(hid_t object, const std::string& name, const Place& place) {
    if (!has_attribute(object, name)) bad(place, "has no attribute " + name);
    Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
    if (!attribute) bad(place, "has an unreadable attribute " + name + ": " + take_error());
    return attribute;
}

Handle open_attribute(hid_t object, const std::string& name, const Place& place) {
    Handle attribute = open_any_attribute(object, name, place);
    const Handle space(H5Aget_space(attribute), H5Sclose);
    if (H5Sget_simple_extent_npoints(space) != 1)
        bad(place, "attribute " + name + " must hold one value");
    return attribute;
}

/// `count` texts of variable or fixed length, by a reader of (memory type, memory).
template <typename Read>
std::vector<std::string> texts_of(hid_t type, size_t count, const Read& read_into,
                                  const Place& place) {
    std::vector<std::string> values(count);
    if (H5Tis_variable_str(type) > 0) {
        const Handle memory = text_type(H5T_VARIABLE);
        H5Tset_cset(memory, H5Tget_cset(type));
        std::vector<char*> texts(count, nullptr);
        if (count > 0 && read_into(memory, texts.data()) < 0)
            bad(place, "holds an unreadable text: " + take_error());
        for (size_t n = 0; n < count; ++n) {
            if (texts[n] != nullptr) values[n] = texts[n];
            H5free_memory(texts[n]);
        }
        return values;
    }
    constexpr size_t kMostBytes = size_t{1} << 24;
    const size_t size = H5Tget_size(type);
    if (size == 0 || size > kMostBytes / std::max<size_t>(1, count))
        bad(place, "holds a text of impossible length");
    std::vector<char> bytes(count * size);
    if (count > 0 && read_into(type, bytes.data()) < 0)
        bad(place, "holds an unreadable text: " + take_error());
    for (size_t n = 0; n < count; ++n)
        values[n].assign(bytes.data() + n * size, strnlen(bytes.data() + n * size, size));
    return values;
}

Handle slab_space(hid_t dataset, const Slab& slab) {
    Handle space(H5Dget_space(dataset), H5Sclose);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, slab.offset.data(), nullptr, slab.count.data(),
                        nullptr);
    return space;
}

Handle slab_memory(const Slab& slab) {
    return {H5Screate_simple(static_cast<int>(slab.count.size()), slab.count.data(), nullptr),
            H5Sclose};
}

bool is_empty(const Slab& slab) {
    return std::find(slab.count.begin(), slab.count.end(), hsize_t{0}) != slab.count.end();
}

/// The file that an external link named, which HDF5 was not let into; empty without one.
thread_local std::string other_file;

/// Access to links that ends at those into other files. It lives as long as the process.
hid_t in_this_file() {
    static const hid_t access = [] {
        const auto refuse = [](const char*, const char*, const char* file, const char*, unsigned*,
                               hid_t, void*) -> herr_t {
            other_file = file;
            return -1;
        };
        const hid_t made = H5Pcreate(H5P_LINK_ACCESS);
        H5Pset_elink_cb(made, refuse, nullptr);
        return made;
    }();
    other_file.clear();
    return access;
}

/// Why the last access failed. InputError where it met a link into another file: the data would not
/// be those of the file whose checksum is recorded. SystemError where the system failed.
std::string require_access(const Place& place, const Failure& failure) {
    if (!other_file.empty())
        bad(place, "is an external link into " + other_file +
                       ", must lie in the file itself (h5py's copy with expand_external=True)");
    if (failure.of_system)
        throw SystemError(concat("cannot reach ", place.text(), ": ", failure.why));
    return failure.why;
}

/// Refuses a file that is not an HDF5 file.
[[noreturn]] void refuse_content(const std::filesystem::path& path) {
    const std::string message = path.string() + ": is not an HDF5 file";
    for (const char* arrays : {".safetensors", ".npz", ".npy"})
        if (path.extension() == arrays)
            throw FileError(message, FileProblem::arrays, path.string());
    throw InputError(message + ", or cannot be read by this user");
}

}  // namespace

Handle& Handle::operator=(Handle&& other) noexcept {
    if (this != &other) {
        reset();
        id_ = std::exchange(other.id_, H5I_INVALID_HID);
        close_ = other.close_;
    }
    return *this;
}

void Handle::reset() {
    if (id_ < 0) return;
    const Lock lock;
    // What HDF5 could not close, as on a full disk, it would close once more with the file, and
    // crash.
    static bool half_closed = false;
    const bool is_file = close_ == H5Fclose;
    if (!(is_file && half_closed) && close_(id_) < 0) half_closed |= !is_file;
    id_ = H5I_INVALID_HID;
}

std::string take_error() { return take_failure().why; }

Handle open_file(const std::filesystem::path& path) {
    const Lock lock;
    require_file(path);
    std::error_code error;
    const std::string name = path.string();
    require(std::filesystem::file_size(path, error) > 0 && !error, name, ": is empty");
    if (H5Fis_hdf5(name.c_str()) <= 0) refuse_content(path);
    const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    H5Pset_file_locking(access, true, true);  // where the file system has locks
    Handle file(H5Fopen(name.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
    require(static_cast<bool>(file), name, ": is damaged or truncated: ", take_error());
    return file;
}

Handle open_bytes(const std::filesystem::path& name, std::span<const uint8_t> bytes) {
    const Lock lock;
    require(!bytes.empty(), name.string(), ": is empty");
    const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    constexpr size_t kGrowth = 4096;
    H5Pset_fapl_core(access, kGrowth, false);
    // HDF5 copies them before anything else.
    H5Pset_file_image(access, const_cast<uint8_t*>(bytes.data()), bytes.size());
    static std::atomic<uint64_t> count = 0;  // HDF5 takes files of one name for one file
    const std::string unique = concat("msalab-memory-", ++count);
    Handle file(H5Fopen(unique.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
    require(static_cast<bool>(file), name.string(), ": is damaged or truncated: ", take_error());
    return file;
}

namespace {

/// How a file is opened for writing: without HDF5's own lock.
Handle write_access() {
    Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    H5Pset_file_locking(access, false, true);
    return access;
}

}  // namespace

Handle create_file(const std::filesystem::path& path) {
    const Lock lock;
    const Handle access = write_access();  // until the reason is read: to close it forgets that
    Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose);
    if (!file) refused(path.string());
    return file;
}

Handle open_to_add(const std::filesystem::path& path) {
    const Lock lock;
    const Handle access = write_access();
    Handle file(H5Fopen(path.c_str(), H5F_ACC_RDWR, access), H5Fclose);
    if (!file) refused(path.string());
    return file;
}

void close_durably(Handle file, const std::filesystem::path& path) {
    {
        const Lock lock;
        const Handle own = std::move(file);  // closed under the lock where it throws, too
        if (H5Fflush(own, H5F_SCOPE_GLOBAL) < 0) refused(path.string());
        MSA_CHECK(H5Fget_obj_count(own, H5F_OBJ_ALL) == 1);  // no handle outlives its file
    }
    sync(path);
}

bool exists(hid_t location, const std::string& path) {
    // H5Lexists wants every parent to be there.
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        const std::string prefix = path.substr(0, end);
        const htri_t there =
            prefix == "/" ? 1 : H5Lexists(location, prefix.c_str(), in_this_file());
        if (there < 0) {
            const Failure failure = take_failure();  // before the name, which HDF5 is asked for
            require_access({name_of(location, H5Fget_name), path}, failure);
        }
        if (there <= 0) return false;
        if (end == std::string::npos) return true;
    }
}

bool natural_less(const std::string& a, const std::string& b) {
    const auto split = [](const std::string& s) {
        const size_t stem = s.find_last_not_of("0123456789") + 1;  // npos + 1 is 0
        const std::string digits = s.substr(stem);
        return std::tuple(s.substr(0, stem), digits.size(), digits);
    };
    return split(a) < split(b);
}

std::vector<std::string> links(hid_t group) {
    std::vector<std::string> names;
    const auto add = [](hid_t, const char* name, const H5L_info_t*, void* to) -> herr_t {
        static_cast<std::vector<std::string>*>(to)->emplace_back(name);
        return 0;
    };
    hsize_t start = 0;
    H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, &start, add, &names);
    std::sort(names.begin(), names.end(), natural_less);
    return names;
}

Handle open_object(hid_t file, const Place& place) {
    const Lock lock;
    if (place.object != "/" && !exists(file, place.object)) bad(place, "is missing");
    Handle object(H5Oopen(file, place.object.c_str(), in_this_file()), H5Oclose);
    if (!object) bad(place, "cannot be opened: " + require_access(place, take_failure()));
    return object;
}

Handle make_group(hid_t file, const Place& place) {
    if (place.object == "/" || exists(file, place.object)) return open_object(file, place);
    const Handle parents(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(parents, 1);
    Handle group(H5Gcreate2(file, place.object.c_str(), parents, H5P_DEFAULT, H5P_DEFAULT),
                 H5Gclose);
    if (!group) refused(place.text());
    return group;
}

void link(hid_t file, const Place& from, const Place& to) {
    if (H5Lcreate_hard(file, from.object.c_str(), file, to.object.c_str(), H5P_DEFAULT,
                       H5P_DEFAULT) < 0)
        refused(to.text());
}

bool has_attribute(hid_t object, const std::string& name) {
    return H5Aexists(object, name.c_str()) > 0;
}

std::string text_attribute(hid_t object, const std::string& name, const Place& place) {
    const Handle attribute = open_attribute(object, name, place);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    if (H5Tget_class(type) != H5T_STRING) bad(place, "attribute " + name + " must be a text");
    const auto read_into = [&](hid_t memory, void* to) { return H5Aread(attribute, memory, to); };
    return texts_of(type, 1, read_into, place).front();
}

double number_attribute(hid_t object, const std::string& name, const Place& place) {
    const Handle attribute = open_attribute(object, name, place);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    if (H5Tget_class(type) == H5T_STRING) {
        const std::string value = text_attribute(object, name, place);
        char* end = nullptr;
        const double number = std::strtod(value.c_str(), &end);
        if (value.empty() || *end != '\0')
            bad(place, "attribute " + name + " is '" + value + "', must be a number");
        return number;
    }
    double number = 0;
    if (H5Aread(attribute, H5T_NATIVE_DOUBLE, &number) < 0)
        bad(place, "attribute " + name + " must be a number: " + take_error());
    return number;
}

std::vector<double> numbers_attribute(hid_t object, const std::string& name, const Place& place) {
    const Handle attribute = open_any_attribute(object, name, place);
    const Handle space(H5Aget_space(attribute), H5Sclose);
    const hssize_t count = H5Sget_simple_extent_npoints(space);
    constexpr hssize_t kMost = 1 << 16;  // HDF5's own limit is 64 KiB
    if (count < 0 || count > kMost)
        bad(place, concat("attribute ", name, " has ", count, " numbers"));
    std::vector<double> numbers(static_cast<size_t>(count));
    if (H5Aread(attribute, H5T_NATIVE_DOUBLE, numbers.data()) < 0)
        bad(place, "attribute " + name + " must be numbers: " + take_error());
    return numbers;
}

int64_t integer_attribute(hid_t object, const std::string& name, const Place& place) {
    const Handle attribute = open_attribute(object, name, place);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    int64_t number = 0;
    if (H5Tget_class(type) != H5T_INTEGER || H5Aread(attribute, H5T_NATIVE_INT64, &number) < 0)
        bad(place, "attribute " + name + " must be an integer");
    return number;
}

void set_attribute(hid_t object, const std::string& name, const std::string& value) {
    constexpr size_t kLargest = 60000;  // of one attribute's bytes HDF5 takes 64 KiB, less a header
    if (value.size() > kLargest) {
        const char* raw = value.c_str();
        put_attribute(object, name, text_type(H5T_VARIABLE), &raw);
        return;
    }
    const std::string bytes = value.empty() ? std::string(1, '\0') : value;
    put_attribute(object, name, text_type(bytes.size()), bytes.data());
}
void set_attribute(hid_t object, const std::string& name, double value) {
    put_attribute(object, name, H5T_NATIVE_DOUBLE, &value);
}
void set_attribute(hid_t object, const std::string& name, int64_t value) {
    put_attribute(object, name, H5T_NATIVE_INT64, &value);
}

void set_attribute(hid_t object, const std::string& name, const std::vector<double>& values) {
    const hsize_t count = values.size();
    put_attribute(object, name, H5T_NATIVE_DOUBLE, values.data(),
                  Handle(H5Screate_simple(1, &count, nullptr), H5Sclose));
}

void read(hid_t dataset, hid_t memory, const Slab& slab, void* to, const Place& place) {
    if (is_empty(slab)) return;
    const Handle from = slab_space(dataset, slab), into = slab_memory(slab);
    if (H5Dread(dataset, memory, into, from, H5P_DEFAULT, to) < 0)
        bad(place, "cannot be read, the file is damaged: " + take_error());
}

void write(hid_t dataset, hid_t memory, const Slab& slab, const void* from, const Place& place) {
    if (is_empty(slab)) return;
    const Handle into = slab_space(dataset, slab), source = slab_memory(slab);
    check_write(H5Dwrite(dataset, memory, source, into, H5P_DEFAULT, from), place);
}

void write_texts(hid_t file, const Place& place, const std::vector<std::string>& values) {
    std::vector<const char*> raw;
    for (const std::string& value : values) raw.push_back(value.c_str());
    const hsize_t count = raw.size();
    const Handle type = text_type(H5T_VARIABLE);
    const Handle dataset = create_dataset(file, place, type, {count}, {});
    if (count > 0)
        check_write(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.data()), place);
}

std::vector<std::string> read_texts(hid_t file, const Place& place) {
    const Handle dataset = open_dataset(file, place);
    const std::vector<int64_t> shape = extents(dataset);
    const Handle type(H5Dget_type(dataset), H5Tclose);
    if (shape.size() != 1 || H5Tget_class(type) != H5T_STRING)
        bad(place, "must be a list of texts");
    const auto read_into = [&](hid_t memory, void* to) {
        return H5Dread(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, to);
    };
    return texts_of(type, static_cast<size_t>(shape[0]), read_into, place);
}

}  // namespace msa::io::h5
