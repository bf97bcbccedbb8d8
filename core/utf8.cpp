// SPDX-License-Identifier: MIT
#include "core/utf8.h"

#include <cstdint>

namespace msa {
namespace {

/// A well-formed character at the start of a text (The Unicode Standard, table 3-7).
struct Character {
    size_t size = 0;  // bytes; 0: none is there
    uint32_t code = 0;
};

Character first_character(std::string_view words) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(words[i]); };
    if (byte(0) < 0x80) return {1, byte(0)};
    const size_t size = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
    constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (byte(0) < 0xc2 || byte(0) > 0xf4 || words.size() < size) return {};
    uint32_t code = byte(0) & (0x7fU >> size);
    for (size_t i = 1; i < size; ++i) {
        if ((byte(i) & 0xc0U) != 0x80) return {};
        code = code << 6U | (byte(i) & 0x3fU);
    }
    const bool surrogate = 0xd800 <= code && code <= 0xdfff;
    if (code < kSmallest[size] || code > 0x10ffff || surrogate) return {};
    return {size, code};
}

template <typename IsKept>
std::string escaped(std::string_view words, const IsKept& is_kept) {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string result;
    while (!words.empty()) {
        const Character next = first_character(words);
        const std::string_view bytes = words.substr(0, next.size == 0 ? 1 : next.size);
        words.remove_prefix(bytes.size());
        if (next.size > 0 && is_kept(next.code)) {
            result += bytes;
            continue;
        }
        for (char c : bytes) {
            const auto byte = static_cast<uint8_t>(c);
            result += {'\\', 'x', kDigits[byte >> 4U], kDigits[byte & 15U]};
        }
    }
    return result;
}

}  // namespace

std::string valid_utf8(std::string_view words) {
    return escaped(words, [](uint32_t) { return true; });
}

std::string printable(std::string_view words, std::string_view kept) {
    return escaped(words, [&](uint32_t code) {
        const bool control = code < 0x20 || (0x7f <= code && code < 0xa0);
        return !control || (code < 0x80 && kept.find(static_cast<char>(code)) != kept.npos);
    });
}

}  // namespace msa
