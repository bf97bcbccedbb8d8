// SPDX-License-Identifier: MIT
#include "experiments/driver/remedy.h"

#include <filesystem>

#include "core/io/file_error.h"

namespace msa::experiments {
namespace {

std::string advice(const io::FileError& error) {
    switch (error.problem()) {
        case io::FileProblem::exists: return "; --overwrite replaces it";
        case io::FileProblem::unfinished_run:
            return "; --resume continues it, --overwrite starts afresh";
        case io::FileProblem::other_run: return "; --overwrite starts afresh";
        case io::FileProblem::damaged_unit:
            return "; where it is removed, --resume of its run does it again";
        case io::FileProblem::arrays:
            return concat("; msalab convert ", error.file(), " --state post_rope --out ",
                          std::filesystem::path(error.file()).replace_extension(".h5").string(),
                          " makes one (layouts, names of arrays: python/README.md)");
        case io::FileProblem::before_rope:
            return concat("; msalab convert ", error.file(), " --apply-rope --out FILE rotates it");
    }
    return "";
}

}  // namespace

std::string message_of(const std::exception& error) {
    const auto* const file = dynamic_cast<const io::FileError*>(&error);
    return file == nullptr ? error.what() : error.what() + advice(*file);
}

}  // namespace msa::experiments
