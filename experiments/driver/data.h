// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>

namespace msa::experiments {

/// The folder of the data files (hardware, models, sample.h5): the environment variable
/// MSA_DATA_DIR, else the installed folder relative to the running program. It need not exist.
std::filesystem::path data_directory();

}  // namespace msa::experiments
