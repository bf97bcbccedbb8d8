// SPDX-License-Identifier: MIT
#include "core/io/unit_file.h"

#include <cctype>
#include <nlohmann/json.hpp>

#include "core/io/checksum.h"
#include "core/io/file_error.h"

namespace msa::io {

std::string file_name_of_unit(const std::string& unit) {
    constexpr const char* kHex = "0123456789ABCDEF";
    std::string name = "unit-";
    for (char c : unit) {
        const auto byte = static_cast<unsigned char>(c);
        if (std::isalnum(byte) != 0)
            name += c;
        else if (c == ' ')
            name += '-';
        else
            name += std::string("%") + kHex[byte / 16] + kHex[byte % 16];
    }
    return name + ".h5";
}

std::string unit_of_file(const std::filesystem::path& path, const RunRecord& run) {
    const Checksum found = compare_checksum(path);
    if (found != Checksum::matches)
        throw FileError(
            concat(path.string(), ": this finished unit ",
                   found == Checksum::none ? "has no checksum at its end"
                                           : "is damaged, its bytes do not match its checksum"),
            FileProblem::damaged_unit);
    const h5::Lock lock;
    const h5::Handle file = h5::open_file(path);
    const h5::Place root{path, "/"};
    const h5::Handle group = h5::open_object(file, root);
    const bool says_run = h5::has_attribute(group, "run");
    require_of_run(path.string(), says_run ? h5::text_attribute(group, "run", root) : "", run);
    return h5::text_attribute(group, "unit", root);
}

std::map<std::string, std::string> notes_of_file(const std::filesystem::path& path) {
    const h5::Lock lock;
    const h5::Handle file = h5::open_file(path);
    const h5::Place root{path, "/"};
    const h5::Handle group = h5::open_object(file, root);
    if (!h5::has_attribute(group, "notes")) return {};
    try {
        return nlohmann::json::parse(h5::text_attribute(group, "notes", root))
            .get<std::map<std::string, std::string>>();
    } catch (const nlohmann::json::exception&) {
        throw InputError(root.text() + " attribute notes must be a JSON object of texts");
    }
}

}  // namespace msa::io
