// SPDX-License-Identifier: MIT
// Layout of a global heap: "HDF5 File Format Specification Version 3.0", III.E.
#include "core/io/global_heap.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace msa::io::h5 {
namespace {

constexpr uint64_t kHeader = 16;  // of a heap, and of an object in it
constexpr uint64_t kLongestText = uint64_t{1} << 24;

uint64_t little_endian(const uint8_t* bytes, size_t count) {
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8U | bytes[i];
    return value;
}

/// HDF5 converts in place; the references need no change.
herr_t keep_reference(hid_t from, hid_t to, H5T_cdata_t* state, size_t, size_t, size_t, void*,
                      void*, hid_t) {
    if (state->command != H5T_CONV_INIT) return 0;
    state->need_bkg = H5T_BKG_NO;
    constexpr size_t kSize = sizeof(HeapReference);
    return H5Tget_size(from) == kSize && H5Tget_size(to) == kSize ? 0 : -1;
}

bool register_conversion(hid_t reference) {
    const Handle texts(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(texts, H5T_VARIABLE);
    return H5Tregister(H5T_PERS_SOFT, "heap reference", texts, reference, keep_reference) >= 0;
}

/// What the property lists of an open file say.
struct Lists {
    hid_t file = H5I_INVALID_HID;
    bool valid = false, in_memory = false;
    hsize_t user_block = 0;
};

/// Property lists take HDF5 longer to copy than all texts of a file to read, so that those of the
/// file that was asked for last are kept. HDF5 gives no number to two files.
Lists lists_of(hid_t file) {
    const Lock lock;
    static Lists last;
    if (last.file == file) return last;
    last = {.file = file};
    const Handle access(H5Fget_access_plist(file), H5Pclose);
    const Handle creation(H5Fget_create_plist(file), H5Pclose);
    last.in_memory = H5Pget_driver(access) == H5FD_CORE;
    last.valid = H5Pget_userblock(creation, &last.user_block) >= 0;
    return last;
}

/// The bytes of an open file, on disk or in memory.
class FileBytes {
public:
    explicit FileBytes(hid_t object) : file_(H5Iget_file_id(object), H5Fclose) {
        const Lists lists = lists_of(file_);
        in_memory_ = lists.in_memory;
        base_ = lists.user_block;
        hsize_t size = 0;
        if (!lists.valid || H5Fget_filesize(file_, &size) < 0 ||
            H5Fget_vfd_handle(file_, H5P_DEFAULT, &handle_) < 0)
            handle_ = nullptr;
        size_ = size > base_ ? size - base_ : 0;
    }
    uint64_t size() const { return size_; }
    /// Addresses count from the end of the user block. False beyond the end.
    bool read(uint64_t address, uint64_t count, void* to) const {
        if (handle_ == nullptr || address > size_ || count > size_ - address) return false;
        if (in_memory_) {
            std::memcpy(to, *static_cast<uint8_t**>(handle_) + base_ + address, count);
            return true;
        }
        return ::pread(*static_cast<int*>(handle_), to, count,
                       static_cast<off_t>(base_ + address)) == static_cast<ssize_t>(count);
    }

private:
    Handle file_;
    void* handle_ = nullptr;
    bool in_memory_ = false;
    uint64_t base_ = 0, size_ = 0;
};

}  // namespace

Handle heap_reference_type() {
    Handle type(H5Tcreate(H5T_OPAQUE, sizeof(HeapReference)), H5Tclose);
    static const bool registered = register_conversion(type);
    MSA_CHECK(registered);
    return type;
}

std::optional<std::string> find_text(const HeapFile& file, const HeapReference& reference) {
    const uint64_t length = little_endian(reference.data(), 4);
    const uint64_t heap = little_endian(reference.data() + 4, 8);
    const uint64_t wanted = little_endian(reference.data() + 12, 4);
    if (length == 0) return "";
    std::array<uint8_t, kHeader> header{};
    if (length > kLongestText || !file.read(heap, kHeader, header.data()) ||
        std::memcmp(header.data(), "GCOL\1", 5) != 0)
        return std::nullopt;
    const uint64_t size = little_endian(header.data() + 8, 8);
    if (size > file.size - heap) return std::nullopt;
    for (uint64_t at = kHeader; at + kHeader <= size;) {
        if (!file.read(heap + at, kHeader, header.data())) return std::nullopt;
        const uint64_t index = little_endian(header.data(), 2);
        const uint64_t bytes = little_endian(header.data() + 8, 8);
        at += kHeader;
        if (index == 0 || bytes > size - at) break;  // 0: the free rest of the heap
        if (index == wanted) {
            std::string value(length, '\0');
            if (length > bytes || !file.read(heap + at, length, value.data())) return std::nullopt;
            value.resize(std::strlen(value.c_str()));
            return value;
        }
        at += (bytes + 7) / 8 * 8;
    }
    return std::nullopt;
}

std::string heap_text(hid_t object, const HeapReference& reference, const Place& place) {
    const FileBytes file(object);
    const std::optional<std::string> found =
        find_text({file.size(), [&](auto... of_read) { return file.read(of_read...); }}, reference);
    if (!found) throw InputError(place.text() + " holds an unreadable text, the file is damaged");
    return *found;
}

}  // namespace msa::io::h5
