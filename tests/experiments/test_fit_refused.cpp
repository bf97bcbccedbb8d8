// SPDX-License-Identifier: MIT
// What msa-fit-indexer refuses, and in which words.
#include <cmath>

#include "tests/experiments/fit_test.h"

namespace msa::test {
namespace {

struct RefusedFit {
    std::vector<std::string> args;
    std::string message;
};
std::ostream& operator<<(std::ostream& out, const RefusedFit& r) { return out << r.message; }

class FitRefused : public Fit, public testing::WithParamInterface<RefusedFit> {};

TEST_P(FitRefused, WithTheValueAndTheRule) {
    const Outcome outcome = run({write("a.h5")}, "out", GetParam().args);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find(GetParam().message), std::string::npos) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5")));
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5.partial")));
}

const RefusedFit kRefusedFits[] = {
    {{"--bogus"}, "unrecognised option '--bogus'"},
    {{"--layers", "4"}, "a.h5: has no layer 4; there are: 3"},
    {{"--architecture", "seer"},
     "--architecture is 'seer', must be one of: msa, dsa, seerattention"},
    {{"--index-heads", "4"},
     "--index-heads is 4, which --architecture msa lacks: it has one head per group"},
    {{"--architecture", "dsa", "--index-heads", "0"}, "--index-heads is 0, must be at least 1"},
    {{"--architecture", "dsa", "--index-heads", "3"},
     "--index-heads is 3, must be a multiple of the 2 groups that divides the 4 query heads"},
    {{"--index-dim", "8"}, "--index-dim is 8, must be from 16 to 256"},
    {{"--block-size", "7"}, "--block-size is 7, must be from 8 to 256"},
    {{"--top-k", "0"}, "--top-k is 0, must be at least 1"},
    {{"--forced-first", "4"}, "forced_local + forced_first is 5, must not exceed top_k = 4"},
    {{"--taught-by", "none"}, "--taught-by is 'none', must be one of: all, own"},
    {{"--index-norm", "layer"}, "--index-norm is 'layer', must be one of: none, rms"},
    {{"--init", "zero"}, "--init is 'zero', must be one of: normal, from-qk, pca"},
    {{"--teacher", "min"}, "--teacher is 'min', must be one of: mean, max"},
    {{"--split", "luck"}, "--split is 'luck', must be one of: position, sequence, token"},
    {{"--split", "sequence"}, "--split is sequence, must be position: there is one sequence"},
    {{"--index-rotary", "5"}, "--index-rotary is 5, must be even"},
    {{"--index-rotary", "18"}, "--index-rotary is 18, must be from 0 to 16"},
    {{"--index-rotary", "6", "--rope-pairs", "every-nth"},
     "--index-rotary is 6, must divide the model's rotary_dim = 8"},
    {{"--index-rotary", "0"}, "--index-rotary is 0, must divide the model's rotary_dim = 8"},
    {{"--rope-theta", "-1"}, "--rope-theta is -1, must be positive"},
    {{"--rope-theta", "7"}, "--rope-theta is 7, which makes the frequency of pair 1 "},
    {{"--warmup-steps", "13"}, "--warmup-steps is 13, must be from 0 to 12"},
    {{"--queries-per-step", "0"}, "--queries-per-step is 0, must be at least 1"},
    {{"--train", "10:10"}, "--train is 10:10, must be a non-empty range of positions within 0:192"},
    {{"--eval", "100:193"}, "--eval is 100:193, must be a non-empty range of positions"},
    {{"--eval", "100:"}, "--eval is 100:192, must share no query with --train = 0:144"},
    {{"--eval-every", "0"}, "--eval-every is 0, must be at least 1"},
    {{"--lr", "-1"}, "--lr is -1, must be at least 0"},
    {{"--lr", "fast"}, "'fast') for option '--lr' is invalid, must be a number"},
    {{"--devices", "0,1"}, "--devices names 2 GPUs, must be one without --together"},
    {{"--seed", "-1"}, "--seed is -1, must be at least 0"},
    {{"--backend", "abacus"}, "no backend is called 'abacus'"},
};
INSTANTIATE_TEST_SUITE_P(All, FitRefused, testing::ValuesIn(kRefusedFits));

using FitRefusal = Fit;

TEST_F(FitRefusal, NeedsInputOutputAndHiddenStates) {
    EXPECT_NE(kFit({}).err.find("no input"), std::string::npos);
    EXPECT_NE(kFit({write("a.h5")}).err.find("no output"), std::string::npos);
    const Outcome outcome = run({write("no-x.h5", {.with_x = false})}, "out");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("no-x.h5: /layers/3 has no x"), std::string::npos) << outcome.err;
}

TEST_F(FitRefusal, RefusesFilesThatDoNotAgree) {
    const std::string one = write("one.h5");
    const Outcome heads = run({one, write("two.h5", {.query_heads = 8})}, "out");
    EXPECT_NE(heads.err.find("two.h5: /layers/3/q is f32, 8 heads of 16 channels, in "),
              std::string::npos)
        << heads.err;
    const Outcome rope = run({one, write("three.h5", {.rotary_dim = 4})}, "out");
    EXPECT_NE(rope.err.find("attribute rotary_dim is 4, in "), std::string::npos) << rope.err;
}

TEST_F(FitRefusal, RefusesWhatStandsBeforeRope) {
    const Outcome outcome = run({write("pre.h5", {.state = io::RopeState::pre_rope})}, "out");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("q_state is pre_rope"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("convert " + path("pre.h5") + " --apply-rope --out"),
              std::string::npos)
        << outcome.err;
}

TEST_F(FitRefusal, NeedsToKnowRope) {
    const Outcome outcome = run({write("a.h5", {.rotary_dim = 0})}, "out");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find(
                  path("a.h5") +
                  ": /layers/3 does not say rotary_dim; give --index-rotary and --rope-theta"),
              std::string::npos)
        << outcome.err;
}

TEST_F(FitRefusal, RefusesNanAndLeavesNothing) {
    const std::string file = write("a.h5");
    poke(file, "/layers/3/q", {10, 0, 0}, std::nanf(""));
    const Outcome outcome = run({file}, "out");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("/layers/3/q holds 1 values that are NaN or Inf"),
              std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5.partial")));
}

}  // namespace
}  // namespace msa::test
