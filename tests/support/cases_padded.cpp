// SPDX-License-Identifier: MIT
// Cases of heads that tuned kernels take as wider ones, mostly of 96 and 192 channels.
#include "tests/support/case_rows.h"

namespace msa::test {

namespace {

constexpr Sizes kHeads96{32, 2, 96, 128, 128}, kHeads192{32, 2, 192, 128, 128};
const std::vector<CaseRow> kPaddedRows{
    {"h96", kTuned, kHeads96, {0, 1100}, {0, 1100}, k(2)},
    {"h96_packed", kTuned, {16, 4, 96, 64, 64}, kQueries, kKeys, k(5)},
    {"h96_blocks_of_32", kTuned, {64, 16, 96, 64, 32}, {0, 300}, {0, 300}, k(8)},
    {"h96_slots",
     kTuned,
     {40, 5, 96, 128, 128},
     beside_tokens(60, 49),
     beside_tokens(1900, 49),
     k(3)},
    {"h96_parts", kTuned, {64, 4, 96, 128, 128}, {0, 43}, {0, 1500}, k(8)},
    {"h96_extreme", kTuned, kHeads96, {0, 140}, {0, 700}, k(3), {.values = Values::extreme}},
    {"h96_rising", kTuned, kHeads96, {0, 140}, {0, 700}, k(5), {.values = Values::rising}},
    {"h96_more_queries_than_keys", kTuned, {64, 8, 96, 64, 64}, {0, 90}, {0, 70}, k(2)},
    {"h96_middle", kTuned, kHeads96, {0, 900}, {0, 900}, k(4), {.part = QueryRange{100, 300}}},
    {"h96_decode", kTuned, kHeads96, {0, 1, 2, 10}, {0, 1000, 3500, 4100}, k(16)},
    {"h96_decode_by_2", kTuned, kHeads96, beside_tokens(1, 39), beside_tokens(4100, 39), k(32)},
    {"h72_g3", kTuned, {9, 3, 72, 64, 64}, kRagged, kRagged, k(3)},
    {"h192", kTuned, kHeads192, {0, 1100}, {0, 1100}, k(2)},
    {"h192_packed", kTuned, {16, 4, 192, 128, 128}, kQueries, kKeys, k(3)},
    {"h192_decode", kTuned, kHeads192, {0, 1, 2, 10}, {0, 1000, 3500, 4100}, k(16)},
    {"h248_blocks_of_64", kTuned, {48, 12, 248, 64, 64}, kRagged, kRagged, k(3)},
    {"h96_gradient", kGradient | kKl, {16, 4, 96, 64, 64}, {0, 700}, {0, 700}, k(5)},
    {"h96_gradient_packed", kGradient | kKl, {32, 2, 96, 64, 128}, kQueries, kKeys, k(4)},
    {"h96_gradient_blocks_of_32", kGradient | kKl, {8, 4, 96, 64, 32}, {0, 300}, {0, 300}, k(7)},
    {"h96_gradient_more_queries_than_keys", kGradient, kHeads96, {0, 40, 300}, {0, 20, 280}, k(2)},
    {"h80_gradient_g5", kGradient, {20, 4, 80, 64, 64}, kQueries, kKeys, k(5)},
    {"h192_gradient", kGradient | kKl, kHeads192, {0, 1000}, {0, 1000}, k(4)},
    {"h192_gradient_packed", kGradient, {16, 4, 192, 64, 128}, kQueries, kKeys, k(4)},
};

}  // namespace

std::vector<CaseRow> cases_of_padded_heads() { return kPaddedRows; }

}  // namespace msa::test
