// SPDX-License-Identifier: MIT
// What holds for every policy: its cost, and that it asks the backend alone.
#include "core/select/token_selector.h"
#include "tests/core/select/gate_operands.h"
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
        const PolicyCost cost = make_policy(name)->cost({p});
        EXPECT_EQ(cost.flops, flops) << name;
        EXPECT_EQ(cost.bytes, bytes) << name;
    };
    expect("random", 0, 0);
    expect("window-tokens", 0, 0);
    expect("index", 2 * 2 * 8 * 420, 2 * 8 * 420);
    expect("oracle", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420);
    expect("previous-layer", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420);
    // 3 and 9 blocks before the queries' own
    EXPECT_EQ(make_policy("seerattention")->cost({p, 0, {.gate_dim = 32}}).flops,
              2 * 2 * 32 * (3 + 9));
    expect("mean-key", 2 * 2 * 16 * (4 + 10), 2 * 2 * 16 * (4 + 10));
    expect("quest", 2 * 2 * 16 * 2 * (4 + 10), 2 * 2 * 16 * 2 * (4 + 10));
    expect("quest-pages", 2 * 2 * 16 * 2 * (7 + 20), 2 * 2 * 16 * 2 * (7 + 20));
    expect("sparq", 2 * 4 * 2 * 420, 2 * 2 * 2 * 420);  // 2 of 16 channels
    expect("keydiff", 2 * 2 * 16 * (4 + 10), 2 * 2 * 16 * (4 + 10));
    expect("shadowkv", 2 * 4 * 16 * (4 + 10), 2 * 2 * 16 * (4 + 10));
    expect("oracle-value", 2 * 4 * 16 * 420, 2 * 2 * 16 * 420);
    expect("oracle-error", 2 * 2 * 4 * 16 * 420, 2 * 2 * 2 * 16 * 420);
    expect("double-sparsity", 2 * 4 * 4 * 420, 2 * 4 * 4 * 420 / 4.0);  // 4 channels of 4 bits
    // Quest's bounds, and 1 of 4 and 3 of 10 blocks in 4 bits.
    expect("twilight", 2 * 2 * 16 * 2 * 14 + 2 * 4 * 16 * 128, 2 * 2 * 16 * (2 * 14 + 128 / 4));
    expect("xattention", 2 * 4 * 16 * 16 * 210, 2 * 2 * 16 * 16 * 210);  // 20 rows of tiles
    // Before each of 9 query blocks 32, 64, ..., 288 keys; each of 288 queries once.
    expect("expected-attention", 2 * 4 * 16 * (1440 * 17 + 288 * 16), 2 * 2 * 16 * 1440 * 2);
    expect("expected-attention:covariance=0:values=0", 2 * 4 * 16 * 1440, 2 * 2 * 16 * 1440);
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
    const PolicyCost cost = make_policy("snapkv")->cost({two_queries(), 200});
    EXPECT_EQ(cost.flops, 32 * 2 * 4 * 16 * 200);
    EXPECT_EQ(cost.bytes, 2 * 2 * 16 * 200);
    EXPECT_EQ(make_policy("minference-vs")->cost({two_queries(), 1000}).flops,
              64 * 2 * 4 * 16 * 320);
    EXPECT_EQ(make_policy("minference-bs")->cost({two_queries(), 200}).flops,
              2 * 2 * 16 * (4 + 10));
}

class EveryPolicy : public Policy {
protected:
    EveryPolicy() { read_learned_ = random_gate(p_); }
};

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

/// A layer that takes another layer's ids is charged nothing for selection, and all its other
/// costs.
TEST_F(EveryPolicy, ChargesNothingForIdsOfAnotherLayer) {
    LearnedSizes own{.gate_dim = 32, .gate_block_size = 32};
    LearnedSizes taken = own;
    taken.source = 3;
    int indexers = 0;
    for (const std::string& name : list_policies()) {
        const std::unique_ptr<msa::Policy> policy = make_policy(name);
        const bool takes = policy->family() == Family::index_branch;
        indexers += takes ? 1 : 0;
        EXPECT_EQ(policy->takes_ids(taken), takes) << name;
        EXPECT_FALSE(policy->takes_ids(own)) << name;
        const PolicyCost cost = policy->cost({p_, 0, taken}), alone = policy->cost({p_, 0, own});
        EXPECT_EQ(cost.flops, takes ? 0 : alone.flops) << name;
        EXPECT_EQ(cost.bytes, takes ? 0 : alone.bytes) << name;
        EXPECT_TRUE(!takes || alone.flops > 0) << name;
    }
    EXPECT_GE(indexers, 5);
}

/// Layers do not share the draws of `random`, and one layer has the same again.
TEST_F(EveryPolicy, RandomDrawsAnewInEveryLayer) {
    SelectorLayer layer = selector_layer();
    std::vector<int64_t> tokens(285);
    std::iota(tokens.begin(), tokens.end(), 0);
    const auto drawn = [&](int64_t number) {
        layer.number = number;
        const std::unique_ptr<Selector> selector = make_selector("random");
        const Mirror<3> scores = selector->score(layer, selector_chunk(layer, p_, tokens));
        const View<const float, 3> host = scores.host();
        return std::vector<float>(host.data(), host.data() + host.size());
    };
    const std::vector<float> of_0 = drawn(0), of_1 = drawn(1);
    EXPECT_EQ(drawn(0), of_0);
    size_t same = 0;
    for (size_t n = 0; n < of_0.size(); ++n) same += of_0[n] == of_1[n] ? 1 : 0;
    EXPECT_LE(same, of_0.size() / 100);  // of 24 bits
}

TEST_F(EveryPolicy, SaysWhatItIs) {
    for (const std::string& name : list_policies()) {
        const std::unique_ptr<msa::Policy> policy = make_policy(name);
        EXPECT_EQ(policy->name(), name);
        EXPECT_GT(policy->rule().size(), 20U) << name;
        EXPECT_GE(policy->cost({p_}).flops, 0) << name;
        for (std::string_view other : policy->other_names())
            EXPECT_EQ(make_policy(other)->name(), name);
    }
}

/// What make_policy() says of a label that it refuses.
std::string refused(const char* label) {
    try {
        make_policy(label);
    } catch (const InputError& fault) {
        return fault.what();
    }
    return "";
}

TEST(PolicyOptions, AreSetByTheLabel) {
    EXPECT_EQ(make_policy("sparq")->label(), "sparq");
    EXPECT_EQ(make_policy("sparq:rank=16")->label(), "sparq:rank=16");
    EXPECT_EQ(make_policy("sparq:rank=0")->label(), "sparq") << "the default";
    EXPECT_EQ(make_policy("lserve:page=08")->label(), "quest-pages:page=8");
    EXPECT_EQ(make_policy("snapkv:pool=5:window=16")->label(), "snapkv:window=16:pool=5");
    EXPECT_EQ(make_policy("flexprefill:tau=2.50e-1")->label(), "flexprefill:tau=0.25");
    EXPECT_EQ(make_policy("streaming-llm:sinks=8")->label(), "streaming-llm:sinks=8");
    EXPECT_EQ(make_policy("sparq:rank=16")->name(), "sparq");
    const std::string plain(make_policy("sparq")->rule());
    EXPECT_EQ(make_policy("sparq")->rule_in_full(), plain);
    EXPECT_EQ(make_policy("sparq:rank=16")->rule_in_full(), plain + "; with rank=16");
}

/// Methods that select nothing here say what there is of them.
TEST(PolicyNames, OfOtherMethodsAreRefusedWithTheReason) {
    for (const auto& [name, says] : {std::pair("csa", "dsa:compress=4"),
                                     {"hca", "selects none"},
                                     {"index-share", "msa-fit-indexer --every 4"}}) {
        EXPECT_NE(refused(name).find(says), std::string::npos) << refused(name);
        EXPECT_EQ(refused(name).find("there are:"), std::string::npos);
        EXPECT_THROW(make_selector(name), InputError);
    }
    EXPECT_NO_THROW(make_policy("dsa:compress=4"));
}

TEST(PolicyOptions, RefusedNameTheOnesThereAre) {
    EXPECT_EQ(refused("snapkv:wide=3"),
              "snapkv has no option 'wide'; its options and their defaults: window=32, pool=7");
    EXPECT_EQ(refused("window:wide=3"),
              "window has no option 'wide'; its options and their defaults: none");
    EXPECT_EQ(refused("sparq:"), "sparq has no option ''; its options and their defaults: rank=0");
    EXPECT_EQ(refused("sparq:rank=1:rank=2"), "sparq has the option 'rank' twice");
    for (const char* value : {"rank", "rank=", "rank=x", "rank=1x", "rank=1.5", "rank=-1",
                              "rank=513", "rank= 1", "rank=99999999999999999999"})
        EXPECT_NE(
            refused(concat("sparq:", value).c_str()).find("', must be an integer from 0 to 512"),
            std::string::npos)
            << value;
    for (const char* value : {"tau=nan", "tau=1.1", "tau=-0.1", "tau="})
        EXPECT_NE(
            refused(concat("flexprefill:", value).c_str()).find("must be a number from 0 to 1"),
            std::string::npos)
            << value;
}

/// Every default lies within its bounds, and a label of all options is taken back.
TEST(PolicyOptions, OfEveryPolicyCanBeSet) {
    for (const std::string& name : list_policies())
        for (const PolicyOption& option : make_policy(name)->options())
            for (const double bound : {option.low, option.high}) {
                const bool whole = std::holds_alternative<int64_t*>(option.value);
                const std::string value =
                    whole ? std::to_string(static_cast<int64_t>(bound)) : concat(bound);
                const std::string label = concat(name, ":", option.name, "=", value);
                const std::unique_ptr<msa::Policy> policy = make_policy(label);
                EXPECT_EQ(make_policy(policy->label())->label(), policy->label());
                EXPECT_FALSE(option.help.empty()) << label;
                EXPECT_GE(policy->cost({two_queries(), 0}).flops, 0) << label;
            }
}

class Options : public Policy {};

/// An option that nothing reads would leave the scores as they are.
TEST_F(Options, ChangeTheScores) {
    for (const char* label :
         {"ada-oracle:safeguard=1", "quest-pages:page=4", "sparq:rank=8", "shadowkv:outliers=1024",
          "infllm:representatives=9", "nsa:piece=16", "nsa:stride=8", "infllm-v2:piece=8",
          "infllm-v2:stride=4", "minference-vs:probe=8", "flexprefill:tau=1", "snapkv:window=16",
          "snapkv:pool=1", "top-p:p=0.5", "xattention:stride=4", "xattention:threshold=0.5",
          "twilight:candidates=1", "twilight:bits=2", "twilight:p=0.2"}) {
        const std::string name(name_of_label(label));
        const Tensor<float, 3> plain = scores(name), set = scores(label);
        int64_t differ = 0;
        for (int64_t i = 0; i < 285; ++i)
            for (int64_t r = 0; r < 2; ++r)
                for (int64_t b = 0; b < blocks(i); ++b) differ += plain(i, r, b) != set(i, r, b);
        EXPECT_GT(differ, 0) << label;
    }
}

TEST_F(Options, TopPOfAFixedShareKeepsItWhateverTheBudget) {
    const Tensor<float, 3> got = scores("top-p:p=0.5"), mass = mass_of(p_, q_.view());
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t r = 0; r < 2; ++r) {
            double sum = 0, least = HUGE_VAL;
            for (int64_t b = 0; b < blocks(i); ++b) {
                if (got(i, r, b) == -INFINITY) continue;
                sum += mass(i, r, b);
                if (b + 1 < blocks(i)) least = std::min(least, double{mass(i, r, b)});
            }
            ASSERT_GE(sum, 0.5 - votes_bound(1)) << i;
            if (std::isfinite(least)) {
                ASSERT_LT(sum - least, 0.5 + votes_bound(1)) << i;
            }
        }
}

}  // namespace
}  // namespace msa::test
