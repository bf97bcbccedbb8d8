// SPDX-License-Identifier: MIT
#include <cstdlib>
#include <mutex>
#include <string>

#include "core/io/h5.h"

namespace msa::io::h5 {
namespace {

std::recursive_mutex library;

// At exit HDF5 1.10 would crash on files that a full disk kept open; handles close all others. Each
// thread has its own setting of what is printed. The environment variable overrides our settings of
// locks, and TRUE would lock a file against the lock of its own writer: so we unset it.
void be_quiet() {
    static const bool left_open = [] {
        constexpr const char* kLocking = "HDF5_USE_FILE_LOCKING";
        const char* asked = std::getenv(kLocking);
        if (asked != nullptr && asked != std::string("FALSE") && asked != std::string("0"))
            unsetenv(kLocking);
        return H5dont_atexit() >= 0;
    }();
    thread_local const bool quiet = H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr) >= 0;
    static_cast<void>(left_open && quiet);
}

}  // namespace

Lock::Lock() {
    library.lock();
    be_quiet();
}

Lock::~Lock() { library.unlock(); }

}  // namespace msa::io::h5
