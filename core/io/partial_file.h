// SPDX-License-Identifier: MIT
// What is being written under a name has the name when it is whole, and one writer at a time.
#pragma once

#include <filesystem>
#include <string>

namespace msa::io {

/// Refuses the name of an output that exists unless it may be `replaced`; what is no regular file
/// (a device, a directory) is never replaced.
void check_output(const std::filesystem::path& path, bool replaced);

/// A file that this process alone holds, by flock. The lock ends with the process, however it ends.
/// NFS keeps it for all hosts that mount the folder; where a file system has no locks there is
/// none, and two writers of one name are the user's to prevent.
class LockedFile {
public:
    /// Opens `lock`, empty or not. InputError "another process is writing `path`".
    LockedFile(std::filesystem::path lock, const std::filesystem::path& path);
    ~LockedFile() { release(); }
    LockedFile(const LockedFile&) = delete;
    LockedFile& operator=(const LockedFile&) = delete;

    int descriptor() const { return descriptor_; }
    bool is_held() const { return descriptor_ >= 0; }
    /// Removes the file, then lets go of it.
    void remove();
    void release();

private:
    std::filesystem::path lock_;
    int descriptor_ = -1;
};

/// `path`.partial, empty and locked, until finish() gives it its name; removed without it.
/// HDF5 may open it by name, with locks of its own off (h5::create_file).
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
