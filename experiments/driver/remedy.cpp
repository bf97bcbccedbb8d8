// SPDX-License-Identifier: MIT
#include "experiments/driver/remedy.h"

#include <filesystem>

#include "core/error.h"

namespace msa::experiments {
namespace {

std::string advice(const InputError& error) {
    switch (error.remedy()) {
        case Remedy::none: return "";
        case Remedy::replace: return "; --overwrite replaces it";
        case Remedy::resume: return "; --resume continues it, --overwrite starts afresh";
        case Remedy::restart: return "; --overwrite starts afresh";
        case Remedy::redo: return "; where it is removed, --resume of its run does it again";
        case Remedy::convert:
            return text("; msalab convert ", error.file(), " --state post_rope --out ",
                        std::filesystem::path(error.file()).replace_extension(".h5").string(),
                        " makes one (layouts, names of arrays: python/README.md)");
        case Remedy::rotate:
            return text("; msalab convert ", error.file(), " --apply-rope --out FILE rotates it");
    }
    return "";
}

}  // namespace

std::string message_of(const std::exception& error) {
    const auto* const refused = dynamic_cast<const InputError*>(&error);
    return refused == nullptr ? error.what() : error.what() + advice(*refused);
}

}  // namespace msa::experiments
