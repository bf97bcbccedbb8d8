// SPDX-License-Identifier: MIT
#include "experiments/driver/write_text.h"

#include "core/io/partial_file.h"

namespace msa::experiments {

void write_text(const std::filesystem::path& path, const std::string& content) {
    io::PartialFile file(path, true);
    file.write(content);
    file.finish();
}

}  // namespace msa::experiments
