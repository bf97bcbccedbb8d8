// SPDX-License-Identifier: MIT
#include "tests/support/cases.h"

namespace msa::test {
namespace {

Problem sizes(int64_t query_heads, int64_t kv_heads, int64_t head_dim, int64_t index_dim,
              int64_t block_size) {
    Problem p = square_problem(0, query_heads, kv_heads, head_dim, index_dim, block_size);
    return p;
}

Problem packed(Problem p, std::vector<int64_t> cu_seqlens_q, std::vector<int64_t> cu_seqlens_k) {
    p.batch = PackedBatch(std::move(cu_seqlens_q), std::move(cu_seqlens_k));
    return p;
}

Problem at(Problem p, std::vector<int64_t> positions) {
    p.batch = PackedBatch(p.batch.cu_seqlens_q(), p.batch.cu_seqlens_k(), std::move(positions));
    return p;
}

std::vector<Case> make_cases() {
    const Problem gqa = sizes(8, 2, 32, 16, 16);
    const SelectionRule k4{.top_k = 4};
    std::vector<Case> all{
        {"regular", packed(gqa, {0, 160}, {0, 160}), k4},
        {"tail_block", packed(gqa, {0, 203}, {0, 203}), k4},
        {"shorter_than_block", packed(gqa, {0, 11}, {0, 11}), k4},
        {"one_token", packed(gqa, {0, 1}, {0, 1}), k4},
        {"one_slot", packed(gqa, {0, 100}, {0, 100}), {.top_k = 1}},
        {"k_is_all_blocks", packed(gqa, {0, 96}, {0, 96}), {.top_k = 6}},
        {"k_above_blocks", packed(gqa, {0, 70}, {0, 70}), {.top_k = 9}},
        {"forced_both",
         packed(gqa, {0, 150}, {0, 150}),
         {.top_k = 5, .forced_local = 2, .forced_first = 2}},
        {"prefix_chunk", packed(gqa, {0, 40}, {0, 170}), k4},
        {"decode", packed(gqa, {0, 1}, {0, 190}), k4},
        {"packed_ragged", packed(gqa, {0, 39, 74, 74, 75, 170}, {0, 39, 74, 74, 75, 170}), k4},
        {"packed_prefixes", packed(gqa, {0, 1, 9, 30}, {0, 130, 138, 300}), k4},
        {"empty_keys", packed(gqa, {0, 5, 20}, {0, 0, 15}), k4},
        {"more_queries_than_keys", packed(gqa, {0, 30}, {0, 20}), k4},
        {"sampled_positions",
         at(packed(gqa, {0, 7, 12}, {0, 200, 260}),
            {0, 3, 17, 17, 90, 143, 199, 5, 31, 40, 58, 59}),
         k4},
        {"no_queries", packed(gqa, {0, 0}, {0, 50}), k4},
        {"mha", packed(sizes(3, 3, 16, 16, 8), {0, 61}, {0, 61}), {.top_k = 3}},
        {"mqa", packed(sizes(7, 1, 24, 20, 13), {0, 90}, {0, 90}), {.top_k = 3}},
        {"forty_heads", packed(sizes(40, 1, 16, 16, 8), {0, 50}, {0, 50}), {.top_k = 3}},
        {"wide", packed(sizes(4, 2, 256, 256, 64), {0, 40}, {0, 150}), {.top_k = 2}},
        {"odd_dims", packed(sizes(6, 2, 37, 19, 11), {0, 85}, {0, 85}), k4},
        {"largest_block", packed(sizes(4, 1, 64, 32, 256), {0, 40}, {0, 600}), {.top_k = 2}},
        {"paper_heads", packed(sizes(16, 1, 128, 128, 128), {0, 27}, {0, 450}), {.top_k = 3}},
        {"five_groups_of_8", packed(sizes(40, 5, 64, 64, 32), {0, 40}, {0, 40}), {.top_k = 2}},
        {"six_groups_of_16", packed(sizes(96, 6, 64, 64, 32), {0, 9}, {0, 70}), {.top_k = 2}},
        {"seven_groups_of_8", packed(sizes(56, 7, 64, 64, 32), {0, 5, 22}, {0, 40, 57}), k4},
        {"twelve_groups_of_16", packed(sizes(192, 12, 64, 64, 32), {0, 9}, {0, 40}), {.top_k = 2}},
        {"all_equal", packed(gqa, {0, 120}, {0, 120}), k4, Values::equal},
        {"extreme_scores", packed(gqa, {0, 120}, {0, 120}), k4, Values::extreme},
        {"rising_scores", packed(gqa, {0, 165}, {0, 165}), k4, Values::rising},
    };
    Problem scaled = packed(gqa, {0, 90}, {0, 90});
    scaled.softmax_scale_override = 0.37;
    scaled.index_scale_override = 1.9;
    all.push_back({"own_scales", scaled, k4});
    return all;
}

std::vector<Case> make_own_attention_cases() {
    const Problem gqa = sizes(8, 2, 32, 16, 16);
    const SelectionRule k4{.top_k = 4};
    const auto with = [](Problem p, std::optional<int64_t> window, std::optional<double> softcap) {
        p.window = window;
        p.softcap = softcap;
        return p;
    };
    const auto plain = Values::normal;
    const Problem tail = packed(gqa, {0, 203}, {0, 203});
    const Problem ragged = packed(gqa, {0, 39, 74, 74, 75, 170}, {0, 39, 74, 74, 75, 170});
    const Problem sampled =
        at(packed(gqa, {0, 7, 12}, {0, 200, 260}), {0, 3, 17, 17, 90, 143, 199, 5, 31, 40, 58, 59});
    return {
        {"window", with(tail, 40, {}), k4},
        {"window_of_one", with(packed(gqa, {0, 50}, {0, 50}), 1, {}), k4},
        {"window_of_a_block", with(packed(gqa, {0, 100}, {0, 100}), 16, {}), k4},
        {"window_over_steps", with(packed(gqa, {0, 30}, {0, 500}), 150, {}), k4},
        {"window_wider_than_all", with(tail, 1000, {}), k4},
        {"window_packed", with(ragged, 20, {}), k4},
        {"window_sampled", with(sampled, 33, {}), k4},
        {"window_decode", with(packed(gqa, {0, 1}, {0, 190}), 30, {}), k4},
        {"window_without_keys", with(packed(gqa, {0, 30}, {0, 20}), 7, {}), k4},
        {"window_odd_dims", with(packed(sizes(6, 2, 37, 19, 11), {0, 85}, {0, 85}), 13, {}), k4},
        {"window_forty_heads",
         with(packed(sizes(40, 1, 16, 16, 8), {0, 50}, {0, 50}), 9, {}),
         {.top_k = 3}},
        {"softcap", with(tail, {}, 5.0), k4},
        {"softcap_of_one", with(tail, {}, 1.0), k4},
        {"softcap_extreme", with(packed(gqa, {0, 120}, {0, 120}), {}, 30.0), k4, Values::extreme},
        {"softcap_rising", with(packed(gqa, {0, 165}, {0, 165}), {}, 20.0), k4, Values::rising},
        {"sinks", tail, k4, plain, true},
        {"sinks_rising", packed(gqa, {0, 165}, {0, 165}), k4, Values::rising, true},
        {"sinks_extreme", packed(gqa, {0, 120}, {0, 120}), k4, Values::extreme, true},
        {"sinks_without_keys", packed(gqa, {0, 30}, {0, 20}), k4, plain, true},
        {"sinks_packed_empty", packed(gqa, {0, 5, 20}, {0, 0, 15}), k4, plain, true},
        {"window_softcap_sinks", with(ragged, 24, 3.0), k4, plain, true},
        {"all_of_paper_heads",
         with(packed(sizes(16, 1, 128, 128, 128), {0, 27}, {0, 450}), 200, 10.0),
         {.top_k = 3},
         plain,
         true},
    };
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

const std::vector<Case>& cases() {
    static const std::vector<Case> all = make_cases();
    return all;
}

const std::vector<Case>& own_attention_cases() {
    static const std::vector<Case> all = make_own_attention_cases();
    return all;
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
