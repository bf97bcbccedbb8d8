// SPDX-License-Identifier: MIT
// Options of msa-pretrain that decide what is trained: each changes the weights.
#include <sstream>

#include "experiments/pretrain/options.h"
#include "tests/experiments/pretrain_test.h"

namespace msa::test {
namespace {

TEST_F(Pretrain, WhatDecidesATrainingChangesItsWeights) {
    text_file("a.txt");
    const auto train = [&](const char* name, const Words& choice) {
        Words more{"--steps", "4",      "--eval-every", "0",         "--probe-every",
                   "0",       "--clip", "0.1",          "--signals", "both"};
        more.insert(more.end(), choice.begin(), choice.end());
        const Outcome outcome = run(name, more);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
    };
    train("attached", {"--detach", "off"});
    for (const Words& choice : std::vector<Words>{{"--detach-lm", "on"},
                                                  {"--clip-index", "together"},
                                                  {"--attach-from", "2"},
                                                  {"--attach-until", "1"},
                                                  {"--kl-teacher", "other"},
                                                  {"--freeze-index"},
                                                  {"--kl-weight", "3"},
                                                  {"--begin", "document"},
                                                  {"--bos", "on"}}) {
        Words changed{"--detach", "off", "--overwrite"};
        changed.insert(changed.end(), choice.begin(), choice.end());
        train("changed", changed);
        EXPECT_FALSE(same_weights("changed", "attached")) << choice.front();
    }
}

TEST(PretrainOptions, AWarmUpThatNobodyAskedForIsAtMostTheRun) {
    std::ostringstream none;
    const auto warmups = [&](Words more) {
        more.insert(more.begin(), {"a.txt", "--out", "out"});
        const auto o = experiments::pretrain::parse_pretrain_options(more, none);
        return std::pair{o->training.warmup_steps, o->training.lr_warmup};
    };
    const auto [warmup, lr_warmup] = warmups({});
    EXPECT_EQ(warmups({"--steps", "5"}), std::pair(int64_t{5}, int64_t{5}));
    EXPECT_EQ(warmups({"--steps", "5", "--warmup-steps", "2"}), std::pair(int64_t{2}, int64_t{5}));
    EXPECT_EQ(warmups({"--steps", "1000"}), std::pair(warmup, lr_warmup));
    EXPECT_THROW(warmups({"--steps", "5", "--warmup-steps", "6"}), InputError);
}

}  // namespace
}  // namespace msa::test
