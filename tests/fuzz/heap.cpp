// SPDX-License-Identifier: MIT
#include "tests/fuzz/heap.h"

#include <algorithm>
#include <cstring>

namespace msa::fuzz {

std::vector<std::pair<size_t, size_t>> heaps_of(std::span<const uint8_t> file) {
    std::vector<std::pair<size_t, size_t>> heaps;
    for (size_t at = 0; at + 16 <= file.size(); at += 8) {
        if (std::memcmp(&file[at], "GCOL", 4) != 0) continue;
        uint64_t size = 0;
        std::memcpy(&size, &file[at + 8], 8);
        heaps.emplace_back(at, at + size);
    }
    return heaps;
}

std::vector<size_t> heap_structure(std::span<const uint8_t> file) {
    constexpr size_t kFirst = 400;
    std::vector<size_t> offsets;
    for (const auto& [begin, end] : heaps_of(file)) {
        for (size_t at = begin; at < std::min(end, begin + kFirst); ++at) offsets.push_back(at);
        for (size_t at = 4; at + 12 <= file.size(); ++at)  // length, address, index
            if (std::memcmp(&file[at], &begin, 8) == 0)
                for (size_t near = at - 4; near < at + 12; ++near) offsets.push_back(near);
    }
    return offsets;
}

}  // namespace msa::fuzz
