// SPDX-License-Identifier: MIT
#include "core/io/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/io/file_error.h"

namespace msa::io {
namespace {

[[noreturn]] void refused(const std::filesystem::path& path) {
    const int reason = errno;
    throw SystemError(concat("cannot write ", path.string(), ": ", std::strerror(reason)));
}

/// Is `descriptor` still what the name stands for? Its writer may have renamed or removed it.
bool is_named(int descriptor, const std::filesystem::path& name) {
    struct stat open {
    }, named{};
    return ::fstat(descriptor, &open) == 0 && ::stat(name.c_str(), &named) == 0 &&
           open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

}  // namespace

void check_output(const std::filesystem::path& path, bool replaced) {
    if (!std::filesystem::exists(path)) return;
    require(std::filesystem::is_regular_file(path), path.string(), ": is not a regular file");
    if (!replaced) throw FileError(path.string() + ": exists", FileProblem::exists);
}

LockedFile::LockedFile(std::filesystem::path lock, const std::filesystem::path& path)
    : lock_(std::move(lock)) {
    do {
        release();
        descriptor_ = ::open(lock_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (descriptor_ < 0) refused(lock_);
        const bool held_by_another =
            ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (held_by_another) release();
        require(!held_by_another, "another process is writing ", path.string());
    } while (!is_named(descriptor_, lock_));
}

void LockedFile::remove() {
    if (descriptor_ >= 0) ::unlink(lock_.c_str());
    release();
}

void LockedFile::release() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
}

PartialFile::PartialFile(std::filesystem::path path, bool overwrite)
    : path_((check_output(path, overwrite), std::move(path))),
      partial_(path_.string() + ".partial"),
      file_(partial_, path_) {
    try {
        check_output(path_, overwrite);  // another writer may have ended meanwhile
        if (::ftruncate(file_.descriptor(), 0) != 0) refused(partial_);
    } catch (...) {
        file_.remove();
        throw;
    }
}

PartialFile::~PartialFile() {
    if (!finished_) file_.remove();
}

void sync(const std::filesystem::path& path) {
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) refused(path);
    const int outcome = ::fsync(descriptor);
    const int reason = errno;
    ::close(descriptor);
    errno = reason;
    if (outcome != 0) refused(path);
}

void PartialFile::write(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
        const ssize_t written = ::write(file_.descriptor(), bytes.data() + at, bytes.size() - at);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) refused(partial_);
        at += static_cast<size_t>(written);
    }
}

void PartialFile::finish() {
    if (::fsync(file_.descriptor()) != 0) refused(partial_);
    if (::rename(partial_.c_str(), path_.c_str()) != 0) refused(path_);
    finished_ = true;
    file_.release();
}

}  // namespace msa::io
