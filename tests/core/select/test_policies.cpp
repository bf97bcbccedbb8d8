// SPDX-License-Identifier: MIT
// What holds for every policy: its cost, and that it asks the backend alone.
#include "core/select/token_selector.h"
#include "tests/core/select/policy.h"
#include "tests/support/far_backend.h"

namespace msa::test {
namespace {

/// Two queries that see 100 and 320 keys: Hq 4, Hkv 2, dh 16, didx 8, blocks of 32.
Problem two_queries() {
    Problem p = square_problem(0, 4, 2, 16, 8, 32);
    p.batch = PackedBatch({0, 2}, {0, 320}, {99, 319});
    return p;
}

TEST(PolicyCosts, ByHand) {
    const Problem p = two_queries();
    const auto expect = [&](const char* name, double flops, double bytes) {
        const PolicyCost cost = make_policy(name)->cost(p, 0);
        EXPECT_EQ(cost.flops, flops) << name;
        EXPECT_EQ(cost.bytes, bytes) << name;
    };
    expect("random", 0, 0);
    expect("window-tokens", 0, 0);
    expect("index", 2 * 2 * 8 * 420, 2 * 8 * 420);
    expect("oracle", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420);
    expect("previous-layer", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420);
    expect("mean-key", 2 * 2 * 16 * (4 + 10), 2 * 2 * 16 * (4 + 10));
    expect("quest", 2 * 2 * 16 * 2 * (4 + 10), 2 * 2 * 16 * 2 * (4 + 10));
    expect("quest-pages", 2 * 2 * 16 * 2 * (7 + 20), 2 * 2 * 16 * 2 * (7 + 20));
    expect("sparq", 2 * 4 * 2 * 420, 2 * 2 * 2 * 420);  // 2 of 16 channels
    expect("keydiff", 2 * 2 * 16 * (4 + 10), 2 * 2 * 16 * (4 + 10));
    expect("shadowkv", 2 * 4 * 16 * (4 + 10), 2 * 2 * 16 * (4 + 10));
    expect("ada-oracle", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420);
    expect("tova", 0, 0);
    // Pieces [0, 32), [16, 48), ... that end by 100 and by 320: 5 and 19.
    expect("nsa", 2 * 4 * 16 * 24, 2 * 2 * 16 * 24);
    expect("minference-vs", 64 * 2 * 4 * 16 * 320, 2 * 2 * 16 * 320);
    expect("minference", 64 * 2 * 4 * 16 * 320, 2 * 2 * 16 * 320);
    expect("snapkv", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420 / 32.0);
    // Once for each of the 10 query blocks, which see 1, 2, ..., 10 blocks.
    expect("minference-bs", 2 * 2 * 16 * 55, 2 * 2 * 16 * 55);
}

TEST(PolicyCosts, OfThePromptInDecode) {
    const PolicyCost cost = make_policy("snapkv")->cost(two_queries(), 200);
    EXPECT_EQ(cost.flops, 32 * 2 * 4 * 16 * 200);
    EXPECT_EQ(cost.bytes, 2 * 2 * 16 * 200);
    EXPECT_EQ(make_policy("minference-vs")->cost(two_queries(), 1000).flops, 64 * 2 * 4 * 16 * 320);
    EXPECT_EQ(make_policy("minference-bs")->cost(two_queries(), 200).flops, 2 * 2 * 16 * (4 + 10));
}

class EveryPolicy : public Policy {};

/// On a device whose memory the host cannot touch, bit by bit what the host gives.
TEST_F(EveryPolicy, GivesTheSameWhereverTheBackendWorks) {
    register_far_backend();
    for (const std::string& name : list_selectors()) {
        const int64_t prompt = make_selector(name)->needs().phases == Phases::decode ? 40 : 0;
        backend_ = make_backend("cpu", {.threads = 2});
        const Tensor<float, 3> want = scores(name, prompt);
        backend_ = make_backend("far", {.threads = 2});
        const Tensor<float, 3> got = scores(name, prompt);
        for (int64_t i = 0; i < 285; ++i)
            for (int64_t r = 0; position(i) >= prompt && r < 2; ++r)
                for (int64_t b = 0; b < blocks(i); ++b)
                    ASSERT_EQ(got(i, r, b), want(i, r, b)) << name << ", token " << i;
    }
}

/// The fused way gives the ids of the scores.
TEST_F(EveryPolicy, SelectsWhatItsScoresSay) {
    const SelectionRule rule{.top_k = 4};
    const SelectorLayer layer = selector_layer(0, rule);
    std::vector<int64_t> tokens(285);
    std::iota(tokens.begin(), tokens.end(), 0);
    for (const std::string& name : list_pointwise_selectors()) {
        const std::unique_ptr<Selector> selector = make_selector(name);
        selector->prepare(layer);
        const SelectorChunk chunk = selector_chunk(layer, p_, tokens);
        const Tensor<int32_t, 3> got = selector->select(layer, chunk, rule);
        Tensor<int32_t, 3> want(got.shape());
        backend_->select_blocks(p_, rule, selector->score(layer, chunk).floats(), want);
        for (int64_t at = 0; at < got.size(); ++at)
            ASSERT_EQ(got.data()[at], want.data()[at]) << name;
    }
}

TEST_F(EveryPolicy, SaysWhatItIs) {
    for (const std::string& name : list_policies()) {
        const std::unique_ptr<msa::Policy> policy = make_policy(name);
        EXPECT_EQ(policy->name(), name);
        EXPECT_GT(policy->rule().size(), 20U) << name;
        EXPECT_GE(policy->cost(p_, 0).flops, 0) << name;
        for (std::string_view other : policy->other_names())
            EXPECT_EQ(make_policy(other)->name(), name);
    }
}

}  // namespace
}  // namespace msa::test
