// SPDX-License-Identifier: MIT
#include "core/io/h5.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>

#include "core/error.h"

namespace msa::io::h5 {
namespace {

/// Before anything else of HDF5: no printing of errors, which each thread has its own setting of,
/// and no closing of what is open at exit. Handles close all; what a full disk kept open would
/// crash HDF5 1.10 there.
void keep_quiet() {
    static const bool left_open = H5dont_atexit() >= 0;
    thread_local const bool quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    static_cast<void>(left_open && quiet);
}

template <typename Parts>
[[noreturn]] void bad(const Place& place, const Parts& rule) {
    throw InputError(place.text() + " " + rule);
}

[[noreturn]] void refused(const std::string& what) {
    throw SystemError(text("cannot write ", what, ": ", take_error()));
}

void check_write(herr_t status, const Place& place) {
    if (status < 0) refused(place.text());
}

Handle half_type() {
    Handle half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    H5Tset_fields(half, 15, 10, 5, 0, 10);
    H5Tset_size(half, 2);
    H5Tset_ebias(half, 15);
    return half;
}

Handle text_type() {
    Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    return type;
}

Handle scalar() { return {H5Screate(H5S_SCALAR), H5Sclose}; }

/// Replaces the attribute `name` of `object` with one value.
void put_attribute(hid_t object, const std::string& name, hid_t type, const void* value,
                   const Handle& space = scalar()) {
    if (has_attribute(object, name)) H5Adelete(object, name.c_str());
    const Handle attribute(H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
                           H5Aclose);
    if (!attribute || H5Awrite(attribute, type, value) < 0) refused("attribute " + name);
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

/// One text of variable or fixed length, from a reader of (type, memory).
template <typename Read>
std::string read_text(hid_t type, const Read& read_into, const Place& place) {
    if (H5Tis_variable_str(type) > 0) {
        const Handle memory(H5Tcopy(type), H5Tclose);
        char* raw = nullptr;
        if (read_into(memory, &raw) < 0 || raw == nullptr)
            bad(place, "holds an unreadable text: " + take_error());
        const std::unique_ptr<char, void (*)(void*)> owner(raw, [](void* p) { H5free_memory(p); });
        return raw;
    }
    constexpr size_t kLongest = size_t{1} << 24;
    const size_t size = H5Tget_size(type);
    if (size == 0 || size > kLongest) bad(place, "holds a text of impossible length");
    std::string value(size, '\0');
    if (read_into(type, value.data()) < 0) bad(place, "holds an unreadable text: " + take_error());
    value.resize(std::strlen(value.c_str()));
    return value;
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

/// What to do with a file that is not of HDF5.
std::string advice(std::filesystem::path path) {
    const std::string name = path.string();
    for (const char* known : {".safetensors", ".npz", ".npy"})
        if (path.extension() == known)
            return text("; python -m msacapture convert ", name, " --state post_rope --out ",
                        path.replace_extension(".h5").string(),
                        " makes one (layouts, names of arrays: notebooks/README.md)");
    return ", or cannot be read by this user";
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
    if (id_ >= 0) close_(id_);
    id_ = H5I_INVALID_HID;
}

std::string take_error() {
    std::string innermost;
    const auto visit = [](unsigned n, const H5E_error2_t* entry, void* to) -> herr_t {
        if (n == 0 && entry->desc != nullptr) *static_cast<std::string*>(to) = entry->desc;
        return 0;
    };
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, visit, &innermost);
    H5Eclear2(H5E_DEFAULT);
    // A failed write says when, where and how much; the system's own words are in the middle.
    const std::string marker = "error message = '";
    if (const size_t at = innermost.find(marker); at != std::string::npos)
        innermost = innermost.substr(at + marker.size(),
                                     innermost.find('\'', at + marker.size()) - at - marker.size());
    return innermost.empty() ? "no reason given" : innermost;
}

Handle open_file(const std::filesystem::path& path) {
    keep_quiet();
    std::error_code error;
    const std::string name = path.string();
    require(std::filesystem::exists(path, error), name, ": there is no such file");
    require(std::filesystem::is_regular_file(path, error), name, ": is not a file");
    require(std::filesystem::file_size(path, error) > 0 && !error, name, ": is empty");
    require(H5Fis_hdf5(name.c_str()) > 0, name, ": is not an HDF5 file", advice(path));
    const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    Handle file(H5Fopen(name.c_str(), H5F_ACC_RDONLY, access), H5Fclose);
    require(static_cast<bool>(file), name, ": is damaged or truncated: ", take_error());
    return file;
}

Handle create_file(const std::filesystem::path& path) {
    keep_quiet();
    const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access), H5Fclose);
    if (!file) refused(path.string());
    return file;
}

void close_durably(Handle file, const std::filesystem::path& path) {
    if (H5Fflush(file, H5F_SCOPE_GLOBAL) < 0) refused(path.string());
    MSA_CHECK(H5Fget_obj_count(file, H5F_OBJ_ALL) == 1);  // no handle outlives its file
    file.reset();
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    const bool synced = descriptor >= 0 && ::fsync(descriptor) == 0;
    const std::string reason = std::strerror(errno);
    if (descriptor >= 0) ::close(descriptor);
    if (!synced) throw SystemError(text("cannot write ", path.string(), ": ", reason));
}

bool exists(hid_t location, const std::string& path) {
    // H5Lexists wants every parent to be there.
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        const std::string prefix = path.substr(0, end);
        if (prefix != "/" && H5Lexists(location, prefix.c_str(), H5P_DEFAULT) <= 0) return false;
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
    keep_quiet();
    if (place.object != "/" && !exists(file, place.object)) bad(place, "is missing");
    Handle object(H5Oopen(file, place.object.c_str(), H5P_DEFAULT), H5Oclose);
    if (!object) bad(place, "cannot be opened: " + take_error());
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

bool has_attribute(hid_t object, const std::string& name) {
    return H5Aexists(object, name.c_str()) > 0;
}

std::string text_attribute(hid_t object, const std::string& name, const Place& place) {
    const Handle attribute = open_attribute(object, name, place);
    const Handle type(H5Aget_type(attribute), H5Tclose);
    if (H5Tget_class(type) != H5T_STRING) bad(place, "attribute " + name + " must be a text");
    return read_text(
        type, [&](hid_t memory, void* to) { return H5Aread(attribute, memory, to); }, place);
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
    std::vector<double> numbers(count > 0 ? static_cast<size_t>(count) : 0);
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
    const char* raw = value.c_str();
    put_attribute(object, name, text_type(), &raw);
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

std::vector<int64_t> extents(hid_t dataset) {
    const Handle space(H5Dget_space(dataset), H5Sclose);
    const int rank = H5Sget_simple_extent_ndims(space);
    if (rank <= 0) return {};
    std::vector<hsize_t> sizes(static_cast<size_t>(rank));
    H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
    return {sizes.begin(), sizes.end()};
}

std::optional<Element> element(hid_t dataset, const Place& place) {
    const Handle type(H5Dget_type(dataset), H5Tclose);
    const size_t size = H5Tget_size(type);
    switch (H5Tget_class(type)) {
        case H5T_FLOAT:
            if (size == 4) return Element::f32;
            if (size == 8) return Element::f64;
            if (size == 2)
                return H5Tequal(type, half_type()) > 0 ? std::optional(Element::f16) : std::nullopt;
            return std::nullopt;
        case H5T_INTEGER:
            if (size == 4) return Element::i32;
            if (size == 2 && has_attribute(dataset, "logical_dtype") &&
                text_attribute(dataset, "logical_dtype", place) == "bfloat16")
                return Element::bf16;
            return std::nullopt;
        default: return std::nullopt;
    }
}

Handle memory_type(Element element) {
    switch (element) {
        case Element::f16: return half_type();
        case Element::bf16: return {H5Tcopy(H5T_NATIVE_UINT16), H5Tclose};
        case Element::f32: return {H5Tcopy(H5T_NATIVE_FLOAT), H5Tclose};
        case Element::f64: return {H5Tcopy(H5T_NATIVE_DOUBLE), H5Tclose};
        case Element::i32: return {H5Tcopy(H5T_NATIVE_INT32), H5Tclose};
        case Element::e4m3: break;
    }
    throw std::logic_error("no file stores e4m3");
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

Handle create_dataset(hid_t file, const Place& place, hid_t type, const std::vector<hsize_t>& shape,
                      const std::vector<hsize_t>& chunk) {
    const Handle parents(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(parents, 1);
    const Handle layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (!chunk.empty() && std::find(shape.begin(), shape.end(), hsize_t{0}) == shape.end()) {
        H5Pset_chunk(layout, static_cast<int>(chunk.size()), chunk.data());
        H5Pset_shuffle(layout);
        H5Pset_deflate(layout, 1);
        H5Pset_fletcher32(layout);
    }
    const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                       H5Sclose);
    Handle dataset(
        H5Dcreate2(file, place.object.c_str(), type, space, parents, layout, H5P_DEFAULT),
        H5Dclose);
    if (!dataset) refused(place.text());
    return dataset;
}

void write_texts(hid_t file, const Place& place, const std::vector<std::string>& values) {
    std::vector<const char*> raw;
    for (const std::string& value : values) raw.push_back(value.c_str());
    const hsize_t count = raw.size();
    const Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
    const Handle type = text_type();
    const Handle dataset(
        H5Dcreate2(file, place.object.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        H5Dclose);
    if (!dataset) refused(place.text());
    if (count > 0)
        check_write(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.data()), place);
}

std::vector<std::string> read_texts(hid_t file, const Place& place) {
    const Handle dataset = open_object(file, place);
    const std::vector<int64_t> shape = extents(dataset);
    if (shape.size() != 1) bad(place, "must be a list of texts");
    const Handle type = text_type(), space(H5Dget_space(dataset), H5Sclose);
    std::vector<char*> raw(static_cast<size_t>(shape[0]), nullptr);
    if (!raw.empty() && H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.data()) < 0)
        bad(place, "must be a list of texts: " + take_error());
    std::vector<std::string> values;
    for (const char* value : raw) values.emplace_back(value == nullptr ? "" : value);
    if (!raw.empty()) H5Dvlen_reclaim(type, space, H5P_DEFAULT, raw.data());
    return values;
}

}  // namespace msa::io::h5
