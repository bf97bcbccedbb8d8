// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>

namespace msa::experiments {

/// The folder of the files that programs know by name (hardware, models, sample.h5): MSA_DATA_DIR
/// of the environment, else the place that installing gives it, relative to the running program.
/// The folder need not exist.
std::filesystem::path data_directory();

}  // namespace msa::experiments
