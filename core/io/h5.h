// SPDX-License-Identifier: MIT
// A thin layer over the HDF5 C library. Handles close themselves; failed reads and writes throw
// exceptions that name file and object.
#pragma once

#include <hdf5.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace msa::io::h5 {

/// A recursive lock around HDF5, which is not thread-safe. Every public function of core/io that
/// calls HDF5 takes it. While it is held, HDF5 prints no errors.
class Lock {
public:
    Lock();
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
};

/// Owns one HDF5 identifier.
class Handle {
public:
    using Close = herr_t (*)(hid_t);
    Handle() = default;
    Handle(hid_t id, Close close) : id_(id), close_(close) {}
    Handle(Handle&& other) noexcept
        : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
    Handle& operator=(Handle&& other) noexcept;
    ~Handle() { reset(); }
    void reset();
    operator hid_t() const { return id_; }
    explicit operator bool() const { return id_ >= 0; }

private:
    hid_t id_ = H5I_INVALID_HID;
    Close close_ = nullptr;
};

/// An object of a file, for messages: "capture.h5: /layers/3/q".
struct Place {
    std::filesystem::path file;
    std::string object;
    std::string text() const { return file.string() + ": " + object; }
};

/// The innermost message of HDF5's error stack, and what to do where it is about a version; empties
/// it.
std::string take_error();

/// Opens for reading. InputError for a missing, empty, truncated or non-HDF5 file.
Handle open_file(const std::filesystem::path& path);
/// Opens a file in memory and keeps a copy; `name` is for messages.
Handle open_bytes(const std::filesystem::path& name, std::span<const uint8_t> bytes);
/// Creates or truncates a file without HDF5's own lock; the caller holds one (partial_file.h).
/// SystemError if the system refuses.
Handle create_file(const std::filesystem::path& path);
/// Opens a file that create_file() made, to add to it.
Handle open_to_add(const std::filesystem::path& path);
/// Flushes and closes `file`, then waits, without the library's lock, until the bytes are on the
/// disk.
void close_durably(Handle file, const std::filesystem::path& path);

/// InputError where the path leads through another file.
bool exists(hid_t location, const std::string& path);
/// Orders names that end in a number ("layer 10" after "layer 9") as a reader would.
bool natural_less(const std::string& a, const std::string& b);
/// Links directly under a group, in natural order.
std::vector<std::string> links(hid_t group);
/// Opens a group or dataset; InputError "is missing" with the place, and where a link leads into
/// another file.
Handle open_object(hid_t file, const Place& place);
/// Opens a dataset. InputError if its values lie in other files, if it is stored with a filter that
/// this library lacks, or if it declares more bytes, or a larger chunk, than its stored bytes could
/// hold. So the file's real size bounds what readers allocate.
Handle open_dataset(hid_t file, const Place& place);
/// InputError unless every value of the dataset was written: HDF5 reads the others as 0.
void require_written(hid_t dataset, const Place& place);
/// Opens a group, made with its parents where missing.
Handle make_group(hid_t file, const Place& place);
/// `to` names the same object as `from`.
void link(hid_t file, const Place& from, const Place& to);

bool has_attribute(hid_t object, const std::string& name);
/// Text of a fixed or variable-length string attribute; InputError when missing or no text.
std::string text_attribute(hid_t object, const std::string& name, const Place& place);
/// A number, or a number as text; InputError when missing or neither.
double number_attribute(hid_t object, const std::string& name, const Place& place);
/// All numbers of an attribute, one for a scalar.
std::vector<double> numbers_attribute(hid_t object, const std::string& name, const Place& place);
int64_t integer_attribute(hid_t object, const std::string& name, const Place& place);
/// Writes texts of up to 60000 bytes with a fixed length, longer ones with variable length.
void set_attribute(hid_t object, const std::string& name, const std::string& value);
void set_attribute(hid_t object, const std::string& name, double value);
void set_attribute(hid_t object, const std::string& name, int64_t value);
void set_attribute(hid_t object, const std::string& name, const std::vector<double>& values);

std::vector<int64_t> extents(hid_t dataset);
/// Element type of a dataset: f32, f16 (IEEE half), bf16 (uint16 with logical_dtype), i32, f64;
/// nothing for any other.
std::optional<Element> element(hid_t dataset, const Place& place);
/// HDF5 type of an element in memory; bf16 is its uint16 payload.
Handle memory_type(Element element);
/// HDF5 type of a C++ number in memory.
template <typename T>
Handle native_type() {
    if constexpr (std::is_same_v<T, float>) return {H5Tcopy(H5T_NATIVE_FLOAT), H5Tclose};
    if constexpr (std::is_same_v<T, double>) return {H5Tcopy(H5T_NATIVE_DOUBLE), H5Tclose};
    if constexpr (std::is_same_v<T, int32_t>) return {H5Tcopy(H5T_NATIVE_INT32), H5Tclose};
    if constexpr (std::is_same_v<T, int64_t>) return {H5Tcopy(H5T_NATIVE_INT64), H5Tclose};
}

/// A hyperslab: offset and count per axis.
struct Slab {
    std::vector<hsize_t> offset, count;
};
/// Reads or writes a slab from or to row-major memory. InputError or SystemError.
void read(hid_t dataset, hid_t memory, const Slab& slab, void* to, const Place& place);
void write(hid_t dataset, hid_t memory, const Slab& slab, const void* from, const Place& place);

/// How a dataset lies in its file: contiguous without a chunk, otherwise in chunks with fletcher32.
struct Storage {
    std::vector<hsize_t> chunk;
    bool deflated = true;  // chunks are shuffled and deflated (1) before
};
/// Creates a dataset with its groups. InputError when a chunk is above HDF5's limit.
Handle create_dataset(hid_t file, const Place& place, hid_t type, const std::vector<hsize_t>& shape,
                      const Storage& storage);

/// A list of texts like `/done`: a dataset of one axis. Texts are written with variable length and
/// read with either.
void write_texts(hid_t file, const Place& place, const std::vector<std::string>& values);
std::vector<std::string> read_texts(hid_t file, const Place& place);

}  // namespace msa::io::h5
