// SPDX-License-Identifier: MIT
// The types of datasets, and what one must be before its values are read: stored in the file
// itself, with what this library reads, and no larger than the file can hold.
#include <algorithm>
#include <array>
#include <limits>

#include "core/error.h"
#include "core/io/h5.h"
#include "core/problem.h"

namespace msa::io::h5 {
namespace {

/// Its values would be those of files that no checksum covers.
void require_own_values(hid_t layout, const Place& place) {
    const bool is_virtual = H5Pget_layout(layout) == H5D_VIRTUAL;
    require(!is_virtual && H5Pget_external_count(layout) <= 0, place.text(),
            is_virtual ? " is a virtual dataset" : " has external storage",
            ", whose values lie in other files; must lie in the file itself: read it with h5py and "
            "write its values into a new file");
}

void require_filters(hid_t layout, const Place& place) {
    for (int n = 0; n < std::max(0, H5Pget_nfilters(layout)); ++n) {
        std::array<char, 128> name{};
        unsigned flags = 0, config = 0;
        size_t values = 0;
        const H5Z_filter_t filter =
            H5Pget_filter2(layout, static_cast<unsigned>(n), &flags, &values, nullptr,
                           name.size() - 1, name.data(), &config);
        require(filter >= 0, place.text(), " has an unreadable list of filters: ", take_error());
        if (H5Zfilter_avail(filter) > 0) continue;
        take_error();
        throw InputError(concat(place.text(), " is stored with filter ", filter, " (",
                                name[0] == '\0' ? "without a name" : name.data(),
                                "), which this HDF5 library has not got: write it with gzip, "
                                "shuffle or fletcher32, or without (h5repack -f NONE, where the "
                                "filter is installed)"));
    }
}

/// Bytes of `shape` elements; more than a number of 64 bits counts, too.
double declared(hid_t dataset, const std::vector<int64_t>& shape) {
    const Handle type(H5Dget_type(dataset), H5Tclose);
    auto bytes = static_cast<double>(H5Tget_size(type));
    for (int64_t extent : shape) bytes *= static_cast<double>(static_cast<hsize_t>(extent));
    return bytes;
}

void check_chunk(const Place& place, hid_t type, const std::vector<hsize_t>& chunk) {
    constexpr double kMostBytes = std::numeric_limits<uint32_t>::max();
    auto bytes = static_cast<double>(H5Tget_size(type));
    for (hsize_t extent : chunk) bytes *= static_cast<double>(extent);
    require(bytes <= kMostBytes, place.text(), " needs chunks of ", bytes,
            " bytes, HDF5 takes at most ", kMostBytes);
}

std::vector<int64_t> chunk_of(hid_t layout, size_t rank) {
    std::vector<hsize_t> chunk(rank);
    H5Pget_chunk(layout, static_cast<int>(rank), chunk.data());
    return {chunk.begin(), chunk.end()};
}

Handle half_type() {
    Handle half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    H5Tset_fields(half, 15, 10, 5, 0, 10);
    H5Tset_size(half, 2);
    H5Tset_ebias(half, 15);
    return half;
}

}  // namespace

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
        case Element::e4m3:
        case Element::int8: break;
    }
    throw std::logic_error("no file stores e4m3 or int8");
}

Handle open_dataset(hid_t file, const Place& place) {
    Handle dataset = open_object(file, place);
    require(H5Iget_type(dataset) == H5I_DATASET, place.text(), " must be a dataset");
    const Handle layout(H5Dget_create_plist(dataset), H5Pclose);
    require_own_values(layout, place);
    require_filters(layout, place);
    const H5D_layout_t kind = H5Pget_layout(layout);
    const std::vector<int64_t> shape = extents(dataset);
    double largest = declared(dataset, shape);
    if (kind == H5D_CHUNKED && largest > 0)
        largest = std::max(largest, declared(dataset, chunk_of(layout, shape.size())));
    constexpr double kMostOfDeflate = 1032;  // bytes that one byte of deflate can stand for
    hsize_t of_file = 0;
    H5Fget_filesize(Handle(H5Iget_file_id(dataset), H5Fclose), &of_file);
    const hsize_t stored = H5Dget_storage_size(dataset);
    const double held =
        kind == H5D_CONTIGUOUS && stored > 0
            ? static_cast<double>(of_file)
            : kMostOfDeflate *
                  static_cast<double>(stored > 0 ? std::min(stored, of_file) : of_file);
    require(largest <= held, place.text(), " declares ", largest, " bytes, more than the ",
            stored > 0 ? std::min(stored, of_file) : of_file,
            " bytes that the file stores can hold");
    return dataset;
}

void require_written(hid_t dataset, const Place& place) {
    const Handle layout(H5Dget_create_plist(dataset), H5Pclose);
    const std::vector<int64_t> shape = extents(dataset);
    if (std::ranges::count(shape, 0) > 0) return;
    const hsize_t stored = H5Dget_storage_size(dataset);
    require(stored > 0, place.text(),
            " was never written: the file stores no byte of it; a dataset that is not known must "
            "not be there");
    if (H5Pget_layout(layout) != H5D_CHUNKED) return;
    const std::vector<int64_t> chunk = chunk_of(layout, shape.size());
    hsize_t written = 0, all = 1;
    for (size_t axis = 0; axis < shape.size(); ++axis)
        all *= static_cast<hsize_t>(ceil_div(shape[axis], chunk[axis]));
    const Handle space(H5Dget_space(dataset), H5Sclose);
    if (H5Dget_num_chunks(dataset, space, &written) < 0)
        throw InputError(place.text() + " has an unreadable list of chunks: " + take_error());
    require(written >= all, place.text(), " holds ", written, " of its ", all, " chunks of ",
            chunk[0], " rows: the others were never written");
}

Handle create_dataset(hid_t file, const Place& place, hid_t type, const std::vector<hsize_t>& shape,
                      const Storage& storage) {
    const Handle parents(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
    H5Pset_create_intermediate_group(parents, 1);
    const Handle layout(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_obj_track_times(layout, false);  // the same content, the same bytes
    check_chunk(place, type, storage.chunk);
    if (!storage.chunk.empty() && std::ranges::count(shape, hsize_t{0}) == 0) {
        H5Pset_chunk(layout, static_cast<int>(storage.chunk.size()), storage.chunk.data());
        if (storage.deflated) H5Pset_shuffle(layout);
        if (storage.deflated) H5Pset_deflate(layout, 1);
        H5Pset_fletcher32(layout);
    }
    const Handle space(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                       H5Sclose);
    Handle dataset(
        H5Dcreate2(file, place.object.c_str(), type, space, parents, layout, H5P_DEFAULT),
        H5Dclose);
    if (!dataset) throw SystemError(concat("cannot write ", place.text(), ": ", take_error()));
    return dataset;
}

}  // namespace msa::io::h5
