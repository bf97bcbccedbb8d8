// SPDX-License-Identifier: MIT
// The file behind a DatasetReader.
#pragma once

#include <filesystem>

#include "core/io/dataset_reader.h"
#include "core/io/h5.h"

namespace msa::io {

struct DatasetReader::Impl {
    std::filesystem::path path;
    h5::Handle file;

    h5::Place at(const std::string& object) const { return {path, object}; }
};

}  // namespace msa::io
