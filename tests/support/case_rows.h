// SPDX-License-Identifier: MIT
// What the tables of cases are made of.
#pragma once

#include <optional>
#include <vector>

#include "tests/support/cases.h"

namespace msa::test {

struct CaseRow {
    const char* name;
    Tags tags;
    Sizes sizes;
    std::vector<int64_t> cu_seqlens_q, cu_seqlens_k;
    SelectionRule rule;
    struct More {
        Values values = Values::normal;
        bool sinks = false;
        std::vector<int64_t> positions = {};
        std::optional<QueryRange> part = {};  // of these queries
        std::optional<int64_t> window = {};
        std::optional<double> softcap = {}, softmax_scale = {}, index_scale = {};
    } more = {};
};

inline constexpr Sizes kSmall{8, 2, 32, 16, 16}, kPaper{32, 2, 128, 128, 128},
    kNarrow{64, 8, 64, 64, 64}, kPilot{64, 16, 64, 64, 32};  // its heads, groups enough
inline const std::vector<int64_t> kRagged{0, 39, 74, 74, 75, 170}, kQueries{0, 100, 101, 138, 438},
    kKeys{0, 228, 358, 395, 895};
inline constexpr Tags kGroupCounts = kTruth | kTuned | kGradient | kKl,
                      kWideGroups = kTuned | kGradient | kKl | kE4m3;
inline constexpr SelectionRule k(int64_t top_k) { return {.top_k = top_k}; }
/// A sequence of `length`, and `count` of one token: each is a tile of its own, so that there are
/// more than two tiles and groups for each of 132 SMs. Of fewer, automatic takes unions alone.
inline std::vector<int64_t> beside_tokens(int64_t length, int64_t count) {
    std::vector<int64_t> starts{0};
    for (int64_t n = 0; n <= count; ++n) starts.push_back(length + n);
    return starts;
}

/// Of heads of 256 channels.
std::vector<CaseRow> cases_of_256();
/// Of heads that tuned kernels take as wider ones.
std::vector<CaseRow> cases_of_padded_heads();

}  // namespace msa::test
