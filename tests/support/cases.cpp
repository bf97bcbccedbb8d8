// SPDX-License-Identifier: MIT
#include "tests/support/cases.h"

#include <utility>

#include "tests/support/case_rows.h"

namespace msa::test {
namespace {

const std::vector<CaseRow> kRows{
    // Every edge that the contract names, small enough for the reference in a sanitizer build.
    {"regular", kTruth, kSmall, {0, 160}, {0, 160}, k(4)},
    {"tail_block", kTruth, kSmall, {0, 203}, {0, 203}, k(4)},
    {"shorter_than_block", kTruth, kSmall, {0, 11}, {0, 11}, k(4)},
    {"one_token", kTruth, kSmall, {0, 1}, {0, 1}, k(4)},
    {"one_slot", kTruth, kSmall, {0, 100}, {0, 100}, k(1)},
    {"k_is_all_blocks", kTruth, kSmall, {0, 96}, {0, 96}, k(6)},
    {"k_above_blocks", kTruth, kSmall, {0, 70}, {0, 70}, k(9)},
    {"forced_both",
     kTruth,
     kSmall,
     {0, 150},
     {0, 150},
     {.top_k = 5, .forced_local = 2, .forced_first = 2}},
    {"prefix_chunk", kTruth, kSmall, {0, 40}, {0, 170}, k(4)},
    {"decode", kTruth, kSmall, {0, 1}, {0, 190}, k(4)},
    {"packed_ragged", kTruth, kSmall, kRagged, kRagged, k(4)},
    {"packed_prefixes", kTruth, kSmall, {0, 1, 9, 30}, {0, 130, 138, 300}, k(4)},
    {"empty_keys", kTruth, kSmall, {0, 5, 20}, {0, 0, 15}, k(4)},
    {"more_queries_than_keys", kTruth, kSmall, {0, 30}, {0, 20}, k(4)},
    {"sampled_positions",
     kTruth,
     kSmall,
     {0, 7, 12},
     {0, 200, 260},
     k(4),
     {.positions = {0, 3, 17, 17, 90, 143, 199, 5, 31, 40, 58, 59}}},
    {"no_queries", kTruth, kSmall, {0, 0}, {0, 50}, k(4)},
    {"mha", kTruth, {3, 3, 16, 16, 8}, {0, 61}, {0, 61}, k(3)},
    {"mqa", kTruth, {7, 1, 24, 20, 13}, {0, 90}, {0, 90}, k(3)},
    {"forty_heads", kTruth, {40, 1, 16, 16, 8}, {0, 50}, {0, 50}, k(3)},
    {"wide", kTruth, {4, 2, 256, 256, 64}, {0, 40}, {0, 150}, k(2)},
    {"widest", kTruth, {9, 1, 512, 64, 32}, {0, 9}, {0, 100}, k(2)},
    {"above_256", kTruth, {3, 1, 300, 19, 11}, {0, 40}, {0, 40}, k(2)},
    {"odd_dims", kTruth, {6, 2, 37, 19, 11}, {0, 85}, {0, 85}, k(4)},
    {"largest_block", kTruth, {4, 1, 64, 32, 256}, {0, 40}, {0, 600}, k(2)},
    {"paper_heads", kTruth, {16, 1, 128, 128, 128}, {0, 27}, {0, 450}, k(3)},
    // Numbers of groups that are no powers of two: on every backend, and by every tuned kernel.
    {"five_groups_of_8", kGroupCounts, {40, 5, 64, 64, 32}, {0, 8}, {0, 70}, k(2)},
    {"five_groups_of_16", kGroupCounts, {80, 5, 64, 64, 32}, {0, 4}, {0, 40}, k(1)},
    {"six_groups_of_8", kGroupCounts, {48, 6, 64, 64, 32}, {0, 2, 6}, {0, 33, 38}, k(2)},
    {"six_groups_of_16", kGroupCounts, {96, 6, 64, 64, 32}, {0, 5}, {0, 70}, k(2)},
    {"seven_groups_of_8", kGroupCounts, {56, 7, 64, 64, 32}, {0, 5, 15}, {0, 36, 46}, k(4)},
    {"seven_groups_of_16", kGroupCounts, {112, 7, 64, 64, 32}, {0, 4}, {0, 70}, k(2)},
    {"twelve_groups_of_8", kGroupCounts, {96, 12, 64, 64, 32}, {0, 1, 3}, {0, 34, 36}, k(1)},
    {"twelve_groups_of_16", kGroupCounts, {192, 12, 64, 64, 32}, {0, 4}, {0, 36}, k(2)},
    {"all_equal", kTruth, kSmall, {0, 120}, {0, 120}, k(4), {.values = Values::equal}},
    {"extreme_scores", kTruth, kSmall, {0, 120}, {0, 120}, k(4), {.values = Values::extreme}},
    {"rising_scores", kTruth, kSmall, {0, 165}, {0, 165}, k(4), {.values = Values::rising}},
    {"own_scales",
     kTruth,
     kSmall,
     {0, 90},
     {0, 90},
     k(4),
     {.softmax_scale = 0.37, .index_scale = 1.9}},
    // Windows, soft caps and sinks.
    {"window", kOwnAttention, kSmall, {0, 203}, {0, 203}, k(4), {.window = 40}},
    {"window_of_one", kOwnAttention, kSmall, {0, 50}, {0, 50}, k(4), {.window = 1}},
    {"window_of_a_block", kOwnAttention, kSmall, {0, 100}, {0, 100}, k(4), {.window = 16}},
    {"window_over_steps", kOwnAttention, kSmall, {0, 30}, {0, 500}, k(4), {.window = 150}},
    {"window_wider_than_all", kOwnAttention, kSmall, {0, 203}, {0, 203}, k(4), {.window = 1000}},
    {"window_packed", kOwnAttention, kSmall, kRagged, kRagged, k(4), {.window = 20}},
    {"window_sampled",
     kOwnAttention,
     kSmall,
     {0, 7, 12},
     {0, 200, 260},
     k(4),
     {.positions = {0, 3, 17, 17, 90, 143, 199, 5, 31, 40, 58, 59}, .window = 33}},
    {"window_decode", kOwnAttention, kSmall, {0, 1}, {0, 190}, k(4), {.window = 30}},
    {"window_without_keys", kOwnAttention, kSmall, {0, 30}, {0, 20}, k(4), {.window = 7}},
    {"window_odd_dims", kOwnAttention, {6, 2, 37, 19, 11}, {0, 85}, {0, 85}, k(4), {.window = 13}},
    {"window_forty_heads",
     kOwnAttention,
     {40, 1, 16, 16, 8},
     {0, 50},
     {0, 50},
     k(3),
     {.window = 9}},
    {"softcap", kOwnAttention, kSmall, {0, 203}, {0, 203}, k(4), {.softcap = 5.0}},
    {"softcap_of_one", kOwnAttention, kSmall, {0, 203}, {0, 203}, k(4), {.softcap = 1.0}},
    {"softcap_extreme",
     kOwnAttention,
     kSmall,
     {0, 120},
     {0, 120},
     k(4),
     {.values = Values::extreme, .softcap = 30.0}},
    {"softcap_rising",
     kOwnAttention,
     kSmall,
     {0, 165},
     {0, 165},
     k(4),
     {.values = Values::rising, .softcap = 20.0}},
    {"sinks", kOwnAttention, kSmall, {0, 203}, {0, 203}, k(4), {.sinks = true}},
    {"sinks_rising",
     kOwnAttention,
     kSmall,
     {0, 165},
     {0, 165},
     k(4),
     {.values = Values::rising, .sinks = true}},
    {"sinks_extreme",
     kOwnAttention,
     kSmall,
     {0, 120},
     {0, 120},
     k(4),
     {.values = Values::extreme, .sinks = true}},
    {"sinks_without_keys", kOwnAttention, kSmall, {0, 30}, {0, 20}, k(4), {.sinks = true}},
    {"sinks_packed_empty", kOwnAttention, kSmall, {0, 5, 20}, {0, 0, 15}, k(4), {.sinks = true}},
    {"window_softcap_sinks",
     kOwnAttention,
     kSmall,
     kRagged,
     kRagged,
     k(4),
     {.sinks = true, .window = 24, .softcap = 3.0}},
    {"all_of_paper_heads",
     kOwnAttention,
     {16, 1, 128, 128, 128},
     {0, 27},
     {0, 450},
     k(3),
     {.sinks = true, .window = 200, .softcap = 10.0}},
    {"all_of_widest_heads",
     kOwnAttention,
     {9, 1, 512, 64, 32},
     {0, 5, 12},
     {0, 100, 107},
     k(2),
     {.sinks = true, .window = 70, .softcap = 10.0}},
    // Groups enough to fill a chip, or else automatic takes the kernel for few queries. Of at most
    // 4 k blocks, 8 k with 64 channels, it takes unions alone, of more it has slots too.
    {"square", kTuned, kPaper, {0, 1100}, {0, 1100}, k(2)},
    {"square_narrow", kTuned, kNarrow, {0, 700}, {0, 700}, k(5)},
    {"wide_groups", kTuned, {64, 2, 64, 64, 128}, {0, 300}, {0, 900}, k(3)},
    {"many_groups", kTuned, {40, 5, 64, 64, 64}, {0, 150}, {0, 1200}, k(2)},
    {"many_groups_k32", kWideGroups, {96, 48, 128, 128, 64}, {0, 2, 9}, {0, 2100, 4230}, k(32)},
    {"most_groups_k32", kTuned | kGradient | kKl, {64, 64, 128, 64, 64}, {0, 9}, {0, 2300}, k(32)},
    {"odd_groups", kTuned, {30, 10, 64, 64, 64}, {0, 90}, {0, 1200}, k(2)},
    {"few_wide", kTuned, {64, 1, 128, 128, 64}, {0, 3, 12}, {0, 700, 1100}, k(12)},
    {"few_narrow", kTuned, {16, 2, 64, 64, 128}, {0, 2, 20}, {0, 900, 5000}, k(32)},
    {"ragged", kTuned, kNarrow, {0, 39, 74, 74, 75, 370}, {0, 39, 74, 74, 75, 370}, k(3)},
    {"prefix", kTuned, kPaper, {0, 100}, {0, 1500}, k(6)},
    {"middle", kTuned, kPaper, {0, 900}, {0, 900}, k(4), {.part = QueryRange{100, 300}}},
    {"prefixes", kTuned, kNarrow, {0, 1, 9, 30}, {0, 530, 638, 1300}, k(4)},
    {"decode", kTuned, kPaper, {0, 1, 2, 10}, {0, 1000, 3500, 4100}, k(16)},
    // Of so many that 4, 2 and 1 thread blocks have all blocks of a row.
    {"decode_by_4", kTuned, kPaper, beside_tokens(1, 19), beside_tokens(4000, 19), k(32)},
    {"decode_by_2", kTuned, kPaper, beside_tokens(1, 39), beside_tokens(4100, 39), k(32)},
    {"decode_by_1", kTuned, kPaper, beside_tokens(1, 79), beside_tokens(4100, 79), k(32)},
    {"forced",
     kTuned,
     kNarrow,
     {0, 120},
     {0, 2000},
     {.top_k = 7, .forced_local = 3, .forced_first = 2}},
    {"k_above_blocks", kTuned, kNarrow, {0, 300}, {0, 300}, k(32)},
    {"empty_keys", kTuned, kNarrow, {0, 5, 70}, {0, 0, 65}, k(2)},
    {"more_queries_than_keys", kTuned, kNarrow, {0, 90}, {0, 70}, k(2)},
    {"small_blocks", kTuned, kPilot, {0, 715}, {0, 715}, k(5)},
    {"small_blocks_packed",
     kTuned,
     kPilot,
     {0, 39, 74, 74, 75, 370},
     {0, 39, 84, 84, 285, 670},
     {.top_k = 7, .forced_local = 2, .forced_first = 1}},
    {"small_blocks_wide", kTuned, {64, 8, 128, 128, 32}, {0, 300}, {0, 300}, k(32)},
    {"small_decode", kTuned, {16, 4, 64, 64, 32}, {0, 1, 2, 6}, {0, 1000, 3507, 4107}, k(19)},
    {"small_blocks_extreme", kTuned, kPilot, {0, 300}, {0, 300}, k(3), {.values = Values::extreme}},
    {"all_equal", kTuned, kNarrow, {0, 500}, {0, 500}, k(4), {.values = Values::equal}},
    {"extreme_scores", kTuned, kNarrow, {0, 300}, {0, 300}, k(3), {.values = Values::extreme}},
    {"sampled",
     kTuned,
     kPaper,
     {0, 6},
     {0, 1200},
     k(4),
     {.positions = {0, 5, 127, 128, 700, 1199}}},
    // Unions in parts: of unlike lengths, so that some parts are empty, and with scores that leave
    // one part the weight. More of them are among those of few heads and of unions of any size.
    {"parts", kTuned, {64, 4, 128, 128, 128}, {0, 43}, {0, 1500}, k(8)},
    {"parts_packed", kTuned, kPaper, {0, 30, 31, 31, 60, 80}, {0, 30, 500, 500, 2100, 2120}, k(10)},
    {"parts_extreme", kTuned, kPaper, {0, 40}, {0, 1300}, k(8), {.values = Values::extreme}},
    {"parts_rising", kTuned, kPaper, {0, 40}, {0, 700}, k(5), {.values = Values::rising}},
    // Both gradients.
    {"pilot", kGradient | kKl, {16, 4, 64, 64, 64}, {0, 700}, {0, 700}, k(5)},
    {"pilot_packed", kGradient | kKl, {16, 4, 64, 64, 64}, kQueries, kKeys, k(5)},
    {"pilot_blocks_of_32", kGradient | kKl, {16, 4, 64, 64, 32}, kQueries, kKeys, k(8)},
    // More tiles of the groups that are no power of two.
    {"five_wide_groups_of_16", kWideGroups, {80, 5, 128, 128, 64}, {0, 70}, {0, 250}, k(2)},
    {"six_wide_groups_of_8", kWideGroups, {48, 6, 128, 64, 128}, {0, 30, 90}, {0, 30, 290}, k(2)},
    {"seven_wide_groups_of_16", kWideGroups, {112, 7, 128, 128, 128}, {0, 60}, {0, 400}, k(2)},
    {"twelve_wide_groups_of_8", kWideGroups, {96, 12, 128, 128, 64}, {0, 50}, {0, 250}, k(3)},
    // Of attention.
    {"tail_block", kGradient, {32, 2, 128, 64, 128}, {0, 1000}, {0, 1000}, k(4)},
    {"packed", kGradient, {32, 2, 128, 64, 128}, kQueries, kKeys, k(4)},
    {"more_queries_than_keys", kGradient, {32, 2, 128, 64, 128}, {0, 40, 300}, {0, 20, 280}, k(2)},
    {"narrow_wide", kGradient, {24, 8, 64, 64, 128}, {0, 600}, {0, 600}, k(3)},
    {"g1", kGradient, {8, 8, 128, 64, 128}, {0, 600}, {0, 600}, k(3)},
    {"g5", kGradient, {40, 8, 128, 64, 128}, {0, 600}, {0, 600}, k(3)},
    {"g64", kGradient, {64, 1, 128, 64, 128}, {0, 600}, {0, 600}, k(3)},
    {"g1_packed", kGradient, {8, 8, 64, 64, 64}, kQueries, kKeys, k(5)},
    {"g2_blocks_of_32", kGradient, {8, 4, 64, 64, 32}, {0, 710}, {0, 710}, k(7)},
    {"g5_blocks_of_32_packed", kGradient, {20, 4, 64, 64, 32}, kQueries, kKeys, k(8)},
    {"g7_packed", kGradient, {14, 2, 128, 64, 64}, kQueries, kKeys, k(5)},
    {"g20_packed", kGradient, {40, 2, 64, 64, 64}, kQueries, kKeys, k(5)},
    {"k32", kGradient, {16, 2, 64, 64, 64}, {0, 2500}, {0, 2500}, k(32)},
    {"wide_blocks_of_32", kGradient, {24, 2, 128, 64, 32}, {0, 600}, {0, 600}, k(32)},
    // Of the KL loss.
    {"paper", kKl, {64, 4, 128, 128, 128}, {0, 700}, {0, 700}, k(3)},
    {"paper_packed", kKl, kPaper, kQueries, kKeys, k(3)},
    {"narrow_index", kKl, {16, 2, 128, 64, 128}, {0, 600}, {0, 600}, k(3)},
    {"g2_small_blocks", kKl, {8, 4, 64, 64, 16}, {0, 500}, {0, 500}, k(7)},
    {"g8_blocks_of_32", kKl, {16, 2, 128, 128, 32}, {0, 500}, {0, 500}, k(6)},
    {"many_uses", kKl, {8, 2, 64, 64, 64}, {0, 5000}, {0, 5000}, k(4)},
    // The other sizes of index_kl_sm90, and groups that leave columns of its products empty.
    {"g1_wide_blocks", kKl, {2, 2, 64, 64, 128}, {0, 600}, {0, 600}, k(3)},
    {"g3_packed", kKl, {6, 2, 128, 128, 64}, kQueries, kKeys, k(4)},
    {"g5_narrow_index", kKl, {10, 2, 128, 64, 64}, {0, 500}, {0, 500}, k(4)},
    {"g12_packed", kKl, {24, 2, 128, 128, 128}, kQueries, kKeys, k(3)},
    // Operands in e4m3; mixed: unions and slots.
    {"paper", kE4m3, kPaper, {0, 90}, {0, 700}, k(3)},
    {"mixed", kE4m3, {64, 4, 128, 128, 128}, beside_tokens(140, 49), beside_tokens(1700, 49), k(3)},
    {"parts", kE4m3, {16, 2, 128, 128, 128}, {0, 60}, {0, 1500}, k(8)},
    {"packed",
     kE4m3,
     {16, 2, 128, 128, 128},
     {0, 39, 74, 74, 75, 130},
     {0, 39, 280, 280, 475, 830},
     k(3)},
    {"blocks_of_64", kE4m3, {16, 2, 128, 128, 64}, {0, 70}, {0, 500}, k(4)},
    {"narrow", kE4m3, {16, 4, 64, 64, 64}, {0, 80}, {0, 380}, k(4)},
    {"narrow_mixed",
     kE4m3,
     {16, 4, 64, 64, 64},
     beside_tokens(60, 65),
     beside_tokens(1700, 65),
     k(3)},
    {"narrow_parts", kE4m3, {16, 2, 64, 64, 64}, {0, 60}, {0, 1500}, k(12)},
    {"narrow_wide_blocks", kE4m3, {16, 2, 64, 64, 128}, {0, 60}, {0, 600}, k(3)},
    {"g3", kE4m3, {12, 4, 128, 128, 128}, {0, 50}, {0, 700}, k(3)},
    {"g64", kE4m3, {64, 1, 64, 64, 64}, {0, 20}, {0, 400}, k(4)},
    {"blocks_of_32", kE4m3, {16, 2, 128, 128, 32}, {0, 70}, {0, 500}, k(8)},
    {"mixed_blocks_of_32",
     kE4m3,
     {64, 4, 128, 128, 32},
     beside_tokens(140, 49),
     beside_tokens(1700, 49),
     k(6)},
    {"narrow_blocks_of_32", kE4m3, {16, 4, 64, 64, 32}, {0, 80}, {0, 380}, k(8)},
    {"decode_blocks_of_32", kE4m3, {16, 2, 128, 128, 32}, {0, 1, 3}, {0, 200, 777}, k(12)},
    {"decode", kE4m3, kPaper, {0, 1, 2, 10}, {0, 300, 800, 1400}, k(8)},
    {"decode_narrow", kE4m3, {8, 2, 64, 64, 64}, {0, 1, 3}, {0, 200, 777}, k(6)},
    // Groups of many sizes; slots: unions and slots in one tile.
    {"g1_ragged",
     kGroupSizes,
     {3, 3, 64, 64, 64},
     {0, 70, 70, 71, 170},
     {0, 70, 70, 71, 170},
     k(3)},
    {"g1_widest_tables", kGroupSizes, {2, 2, 64, 64, 128}, {0, 70}, {0, 4400}, k(32)},
    {"g2_prefix", kGroupSizes, {4, 2, 128, 128, 64}, {0, 120}, {0, 900}, k(6)},
    {"g3_parts", kGroupSizes, {12, 4, 128, 128, 64}, {0, 50}, {0, 2000}, k(16)},
    {"g3_packed", kGroupSizes, {6, 2, 64, 64, 128}, {0, 50, 130}, {0, 300, 1000}, k(4)},
    {"g4_square", kGroupSizes, {16, 4, 64, 64, 64}, {0, 300}, {0, 300}, k(4)},
    {"g4_rising",
     kGroupSizes,
     {8, 2, 64, 64, 64},
     {0, 100},
     {0, 700},
     k(6),
     {.values = Values::rising}},
    {"g4_wide", kGroupSizes, {8, 2, 128, 128, 128}, {0, 90}, {0, 700}, k(3)},
    {"g5_packed", kGroupSizes, {10, 2, 128, 128, 64}, {0, 25, 51, 130}, {0, 25, 300, 900}, k(5)},
    {"g5_slots", kGroupSizes, {10, 2, 64, 64, 64}, {0, 60}, {0, 2000}, k(3)},
    {"g6_slots",
     kGroupSizes,
     {36, 6, 128, 128, 64},
     beside_tokens(60, 42),
     beside_tokens(1600, 42),
     k(5)},
    {"g6_square", kGroupSizes, {12, 2, 64, 64, 64}, {0, 130}, {0, 130}, k(32)},
    {"g7_prefix", kGroupSizes, {14, 2, 64, 64, 128}, {0, 50}, {0, 640}, k(4)},
    {"g12_wide", kGroupSizes, {24, 2, 128, 128, 128}, {0, 40}, {0, 600}, k(3)},
    {"g24_prefix", kGroupSizes, {24, 1, 64, 64, 64}, {0, 80}, {0, 400}, k(4)},
    {"g33_prefix", kGroupSizes, {33, 1, 128, 128, 64}, {0, 30}, {0, 300}, k(3)},
    {"g40_packed", kGroupSizes, {80, 2, 64, 64, 64}, {0, 17, 31}, {0, 200, 500}, k(4)},
    {"g48_wide", kGroupSizes, {48, 1, 128, 128, 128}, {0, 21}, {0, 420}, k(3)},
    {"g71_decode", kGroupSizes, {71, 1, 64, 64, 64}, {0, 1, 2, 5}, {0, 300, 800, 1000}, k(4)},
    {"g4_blocks_of_32", kGroupSizes, {16, 4, 64, 64, 32}, {0, 41, 300}, {0, 41, 300}, k(8)},
    {"g5_wide_blocks_of_32", kGroupSizes, {10, 2, 128, 128, 32}, {0, 60}, {0, 900}, k(11)},
    {"g71_decode_blocks_of_32",
     kGroupSizes,
     {71, 1, 128, 128, 32},
     {0, 1, 2, 5},
     {0, 300, 800, 1000},
     k(9)},
    // More tiles than a GPU has at work at once: two for each SM with 64 channels, else one.
    {"g4_many_tiles", kManyTiles, {64, 16, 64, 64, 64}, {0, 700}, {0, 900}, k(3)},
    {"g16_many_tiles", kManyTiles, {64, 4, 128, 128, 128}, {0, 400}, {0, 900}, k(3)},
    // 9 blocks, the last of which is short, for unions of any size.
    {"blocks_of_32", kUnions, {8, 2, 64, 64, 32}, {0, 40}, {0, 283}, k(9)},
    {"blocks_of_64", kUnions, {8, 2, 64, 64, 64}, {0, 40}, {0, 571}, k(9)},
    {"blocks_of_128", kUnions, {8, 2, 64, 64, 128}, {0, 40}, {0, 1147}, k(9)},
    {"wide_blocks_of_32", kUnions, {16, 1, 128, 128, 32}, {0, 12}, {0, 283}, k(9)},
    {"wide_blocks_of_64", kUnions, {16, 1, 128, 128, 64}, {0, 12}, {0, 571}, k(9)},
};

Case case_of(const CaseRow& row) {
    const CaseRow::More& more = row.more;
    Case c = make_case(row.name, row.sizes, row.cu_seqlens_q, row.cu_seqlens_k, row.rule);
    Problem& p = c.problem;
    if (!more.positions.empty())
        p.batch = PackedBatch(row.cu_seqlens_q, row.cu_seqlens_k, more.positions);
    if (more.part) p = p.with_queries(*more.part);
    p.window = more.window;
    p.softcap = more.softcap;
    p.softmax_scale_override = more.softmax_scale;
    p.index_scale_override = more.index_scale;
    c.values = more.values;
    c.sinks = more.sinks;
    return c;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

Case make_case(std::string name, const Sizes& s, std::vector<int64_t> cu_seqlens_q,
               std::vector<int64_t> cu_seqlens_k, const SelectionRule& rule) {
    Problem p = square_problem(0, s.query_heads, s.kv_heads, s.head_dim, s.index_dim, s.block_size);
    p.batch = PackedBatch(std::move(cu_seqlens_q), std::move(cu_seqlens_k));
    return {std::move(name), p, rule};
}

std::vector<Case> cases(Tags any) {
    std::vector<Case> some;
    for (const std::vector<CaseRow>& rows : {kRows, cases_of_256(), cases_of_padded_heads()})
        for (const CaseRow& row : rows)
            if ((row.tags & any) != 0) some.push_back(case_of(row));
    return some;
}

std::vector<HalfCase> in_half_types(const std::vector<Case>& cases) {
    std::vector<HalfCase> all;
    for (const Case& c : cases) all.push_back({c, Element::bf16});
    for (Case c : cases) {
        c.name = "f16_" + c.name;
        all.push_back({c, Element::f16});
    }
    return all;
}

std::vector<HalfCase> of_all_families(const std::vector<Case>& cases) {
    std::vector<HalfCase> all = in_half_types(cases);
    for (const std::string family : {"sm80", "sm86"})
        for (HalfCase c : in_half_types(cases)) {
            c.name = family + "_" + c.name;
            c.backend = "cuda-" + family;
            all.push_back(c);
        }
    return all;
}

}  // namespace msa::test
