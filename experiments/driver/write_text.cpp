// SPDX-License-Identifier: MIT
#include "experiments/driver/write_text.h"

#include <fstream>

#include "core/error.h"

namespace msa::experiments {

void write_text(const std::filesystem::path& path, const std::string& content) {
    const std::filesystem::path partial = path.string() + ".partial";
    std::ofstream stream(partial);
    stream << content;
    stream.close();
    if (!stream) throw SystemError("cannot write " + partial.string());
    std::filesystem::rename(partial, path);
}

}  // namespace msa::experiments
