// SPDX-License-Identifier: MIT
#include "core/io/file_format.h"

#include "core/error.h"
#include "core/io/h5.h"
#include "core/io/layout.h"

namespace msa::io {

void require_file(const std::filesystem::path& path) {
    std::error_code error;
    require(std::filesystem::exists(path, error), path.string(), ": there is no such file");
    require(std::filesystem::is_regular_file(path, error), path.string(), ": is not a file");
}

FileFormat file_format(const std::filesystem::path& path) {
    const h5::Lock lock;
    const h5::Handle file = h5::open_file(path);
    const h5::Place root{path, "/"};
    const std::string format = h5::text_attribute(h5::open_object(file, root), "format", root);
    if (format == kActivationsFormat) return FileFormat::activations;
    if (format == kResultsFormat) return FileFormat::results;
    throw InputError(concat(root.text(), " attribute format is '", format, "', must be '",
                            kActivationsFormat, "' or '", kResultsFormat, "'"));
}

}  // namespace msa::io
