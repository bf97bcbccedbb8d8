// SPDX-License-Identifier: MIT
// Cases of heads of 256 channels, whose kernels take blocks of 128 as two halves: the last one is
// seen partly, not at all, and by some of a tile's queries.
#include "tests/support/case_rows.h"

namespace msa::test {

namespace {

constexpr Sizes kHeads256{32, 2, 256, 128, 128};
const std::vector<CaseRow> kRowsOf256{
    {"sinks_of_h256",
     kOwnAttention,
     {16, 1, 256, 64, 64},
     {0, 81},
     {0, 450},
     k(3),
     {.sinks = true}},
    {"h256", kTuned, kHeads256, {0, 1100}, {0, 1100}, k(2)},
    {"h256_no_last_half", kTuned, {16, 4, 256, 64, 128}, {0, 420}, {0, 420}, k(2)},
    {"h256_packed", kTuned, {16, 4, 256, 128, 128}, kQueries, kKeys, k(3)},
    {"h256_blocks_of_64", kTuned, {48, 12, 256, 64, 64}, kRagged, kRagged, k(3)},
    {"h256_prefix", kTuned, kHeads256, {0, 100}, {0, 1500}, k(6)},
    {"h256_slots",
     kTuned,
     {40, 5, 256, 128, 128},
     beside_tokens(60, 49),
     beside_tokens(1900, 49),
     k(3)},
    {"h256_parts", kTuned, {64, 4, 256, 128, 128}, {0, 43}, {0, 1500}, k(8)},
    {"h256_parts_packed",
     kTuned,
     kHeads256,
     {0, 30, 31, 31, 60, 80},
     {0, 30, 500, 500, 2100, 2120},
     k(10)},
    {"h256_extreme", kTuned, kHeads256, {0, 140}, {0, 700}, k(3), {.values = Values::extreme}},
    {"h256_rising", kTuned, kHeads256, {0, 140}, {0, 700}, k(5), {.values = Values::rising}},
    {"h256_more_queries_than_keys", kTuned, {64, 8, 256, 64, 64}, {0, 90}, {0, 70}, k(2)},
    {"h256_middle", kTuned, kHeads256, {0, 900}, {0, 900}, k(4), {.part = QueryRange{100, 300}}},
    {"h256_decode", kTuned, kHeads256, {0, 1, 2, 10}, {0, 1000, 3500, 4100}, k(16)},
    {"h256_decode_by_4", kTuned, kHeads256, beside_tokens(1, 19), beside_tokens(4000, 19), k(32)},
    {"h256_decode_by_2", kTuned, kHeads256, beside_tokens(1, 79), beside_tokens(4100, 79), k(32)},
    {"h256_g1_ragged",
     kGroupSizes,
     {3, 3, 256, 64, 64},
     {0, 70, 70, 71, 170},
     {0, 70, 70, 71, 170},
     k(3)},
    {"h256_g4_rising",
     kGroupSizes,
     {8, 2, 256, 64, 64},
     {0, 100},
     {0, 700},
     k(6),
     {.values = Values::rising}},
    {"h256_g5_packed",
     kGroupSizes,
     {10, 2, 256, 128, 64},
     {0, 25, 51, 130},
     {0, 25, 300, 900},
     k(5)},
    {"h256_g6_slots",
     kGroupSizes,
     {36, 6, 256, 128, 64},
     beside_tokens(60, 42),
     beside_tokens(1600, 42),
     k(5)},
    {"h256_g64_prefix", kGroupSizes, {64, 1, 256, 64, 64}, {0, 90}, {0, 300}, k(3)},
    {"h256_g71_decode", kGroupSizes, {71, 1, 256, 64, 64}, {0, 1, 2, 5}, {0, 300, 800, 1000}, k(4)},
    {"h256_blocks_of_64", kUnions, {16, 1, 256, 128, 64}, {0, 90}, {0, 571}, k(9)},
    {"h256_gradient", kGradient | kKl, kHeads256, {0, 1000}, {0, 1000}, k(4)},
    {"h256_gradient_packed", kGradient | kKl, {16, 4, 256, 64, 128}, kQueries, kKeys, k(4)},
    {"h256_gradient_blocks_of_64", kGradient, {24, 8, 256, 64, 64}, kRagged, kRagged, k(3)},
    {"h256_gradient_blocks_of_32", kGradient | kKl, {8, 4, 256, 64, 32}, {0, 300}, {0, 300}, k(7)},
    {"h256_gradient_g1", kGradient, {3, 3, 256, 64, 128}, {0, 260}, {0, 420}, k(3)},
    {"h256_gradient_g5", kGradient, {20, 4, 256, 64, 64}, kQueries, kKeys, k(5)},
    {"h256_gradient_g32", kGradient, {32, 1, 256, 64, 128}, {0, 400}, {0, 400}, k(16)},
    {"h256_gradient_k32", kGradient | kKl, {16, 2, 256, 64, 64}, {0, 2500}, {0, 2500}, k(32)},
    {"h256_gradient_more_queries_than_keys",
     kGradient,
     kHeads256,
     {0, 40, 300},
     {0, 20, 280},
     k(2)},
};

}  // namespace

std::vector<CaseRow> cases_of_256() { return kRowsOf256; }

}  // namespace msa::test
