// SPDX-License-Identifier: MIT
// Backends by name: what programs and tests make them with.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

namespace msa {

struct BackendOptions {
    /// OpenMP threads of the cpu's operations, and of work on the host beside any backend's; 0: all
    /// cores.
    int threads = 0;
    int device = 0;  // cuda: device ordinal
};

using BackendFactory = std::function<std::unique_ptr<Backend>(const BackendOptions&)>;

/// One that make_backend knows; `usable` tells whether this machine can start it.
struct BackendInfo {
    std::string name;
    Support usable;
};

/// "reference" and "cpu" are known from the start; a further one announces itself, explicitly.
/// "cpu" uses AVX-512 where the processor has it. There, "cpu-avx2" is known as well: it gives the
/// bits that "cpu" gives on a processor without AVX-512. Backend::device() says which one ran.
void register_backend(BackendInfo info, BackendFactory factory);
std::vector<BackendInfo> list_backends();
/// Throws InputError naming the known backends, UnsupportedError if this one cannot start here.
std::unique_ptr<Backend> make_backend(std::string_view name, const BackendOptions& = {});

}  // namespace msa
