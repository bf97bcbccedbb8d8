// SPDX-License-Identifier: MIT
#include "experiments/driver/data.h"

#include <cstdlib>

namespace msa::experiments {

std::filesystem::path data_directory() {
    const char* asked = std::getenv("MSA_DATA_DIR");
    if (asked != nullptr && *asked != '\0') return asked;
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    return (program.parent_path() / MSA_DATA_FROM_BIN).lexically_normal();
}

}  // namespace msa::experiments
