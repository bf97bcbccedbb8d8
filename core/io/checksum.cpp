// SPDX-License-Identifier: MIT
#include "core/io/checksum.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/io/file_format.h"
#include "core/io/sha256.h"

namespace msa::io {
namespace {

constexpr char kMark[] = "msa-sha256 ";
constexpr size_t kDigits = 64, kSize = sizeof(kMark) - 1 + kDigits + 1;

}  // namespace

void append_checksum(const std::filesystem::path& path) {
    const std::string line = kMark + sha256_of_file(path) + "\n";
    std::ofstream file(path, std::ios::binary | std::ios::app);
    if (!file.write(line.data(), kSize).flush())
        throw SystemError(concat("cannot write ", path.string(), ": ", std::strerror(errno)));
}

Checksum compare_checksum(const std::filesystem::path& path) {
    require_file(path);
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    require(static_cast<bool>(file), path.string(), ": cannot be read");
    const auto size = static_cast<uint64_t>(file.tellg());
    if (size < kSize) return Checksum::none;
    std::string line(kSize, '\0');
    file.seekg(-static_cast<std::streamoff>(kSize), std::ios::end).read(line.data(), kSize);
    const std::string digits = line.substr(sizeof(kMark) - 1, kDigits);
    // One of the two is still there where the other is damaged.
    if (line.rfind(kMark, 0) != 0 &&
        digits.find_first_not_of("0123456789abcdef") != std::string::npos)
        return Checksum::none;
    return line == kMark + sha256_of_file(path, size - kSize) + "\n" ? Checksum::matches
                                                                     : Checksum::differs;
}

}  // namespace msa::io
