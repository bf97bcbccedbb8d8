// SPDX-License-Identifier: MIT
#include "core/io/sha256.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/io/file_format.h"

namespace msa::io {

std::string sha256_of_file(const std::filesystem::path& path, uint64_t first_bytes) {
    require_file(path);
    std::ifstream file(path, std::ios::binary);
    require(static_cast<bool>(file), path.string(), ": cannot be read");
    const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context(EVP_MD_CTX_new(),
                                                                     EVP_MD_CTX_free);
    EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
    std::vector<char> buffer(size_t{1} << 20);
    for (uint64_t left = first_bytes; left > 0; left -= static_cast<uint64_t>(file.gcount())) {
        file.read(buffer.data(),
                  static_cast<std::streamsize>(std::min<uint64_t>(left, buffer.size())));
        if (file.gcount() == 0) break;
        EVP_DigestUpdate(context.get(), buffer.data(), static_cast<size_t>(file.gcount()));
    }
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned size = 0;
    EVP_DigestFinal_ex(context.get(), digest.data(), &size);
    constexpr const char* kHexDigits = "0123456789abcdef";
    std::string hexadecimal;
    for (unsigned i = 0; i < size; ++i) {
        hexadecimal += kHexDigits[digest[i] >> 4U];
        hexadecimal += kHexDigits[digest[i] & 15U];
    }
    return hexadecimal;
}

}  // namespace msa::io
