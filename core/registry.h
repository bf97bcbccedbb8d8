// SPDX-License-Identifier: MIT
// Creates backends by name.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

namespace msa {

struct BackendOptions {
    /// OpenMP threads of the cpu backend's operations, and of host work beside any backend; 0:
    /// threads_or_all.
    int threads = 0;
    int device = 0;  // cuda: device ordinal
};

using BackendFactory = std::function<std::unique_ptr<Backend>(const BackendOptions&)>;

/// A registered backend; `usable` tells whether it can start on this machine.
struct BackendInfo {
    std::string name;
    Support usable;
};

/// Adds a backend; "reference" and "cpu" are built in. "cpu" uses AVX-512 if the processor has it.
/// Then "cpu-avx2" exists as well, with the bits that "cpu" gives on a processor without AVX-512.
/// Backend::device() says which one ran.
void register_backend(BackendInfo info, BackendFactory factory);
std::vector<BackendInfo> list_backends();
/// Throws InputError naming the known backends if `name` is none of them, UnsupportedError if it
/// cannot start on this machine.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& = {});

}  // namespace msa
