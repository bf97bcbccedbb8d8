// SPDX-License-Identifier: MIT
// Files that get their name only when they are complete, with one writer at a time.
#pragma once

#include <filesystem>
#include <string>

namespace msa::io {

/// Refuses an output path that exists unless it may be `replaced`. A path that is not a regular
/// file (a device, a directory) is always refused.
void check_output(const std::filesystem::path& path, bool replaced);

/// Waits until the bytes of a file are on the disk. SystemError if the system refuses.
void sync(const std::filesystem::path& path);

/// A file that this process alone holds, by flock. The lock ends with the process, however that
/// ends. Over NFS it holds for all hosts that mount the folder. On a file system without locks the
/// user must prevent two writers of one name.
class LockedFile {
public:
    /// Opens `lock`, empty or not. InputError "another process is writing `path`".
    LockedFile(std::filesystem::path lock, const std::filesystem::path& path);
    ~LockedFile() { release(); }
    LockedFile(const LockedFile&) = delete;
    LockedFile& operator=(const LockedFile&) = delete;

    int descriptor() const { return descriptor_; }
    bool is_held() const { return descriptor_ >= 0; }
    /// Removes the file, then releases the lock.
    void remove();
    void release();

private:
    std::filesystem::path lock_;
    int descriptor_ = -1;
};

/// `path`.partial, empty and locked, until finish() renames it; removed without finish(). HDF5 may
/// open it by name with its own locks off (h5::create_file).
class PartialFile {
public:
    PartialFile(std::filesystem::path path, bool overwrite);
    ~PartialFile();

    const std::filesystem::path& path() const { return path_; }
    const std::filesystem::path& partial() const { return partial_; }
    /// Appends. SystemError naming file and reason.
    void write(const std::string& bytes);
    /// Waits until the bytes are on the device, then renames.
    void finish();

private:
    std::filesystem::path path_, partial_;
    LockedFile file_;
    bool finished_ = false;
};

}  // namespace msa::io
