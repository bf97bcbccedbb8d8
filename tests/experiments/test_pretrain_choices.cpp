// SPDX-License-Identifier: MIT
// Options of msa-pretrain that decide what is trained: each changes the weights.
#include "tests/experiments/pretrain_test.h"

namespace msa::test {
namespace {

TEST_F(Pretrain, WhatDecidesATrainingChangesItsWeights) {
    text_file("a.txt");
    const auto train = [&](const char* name, const Words& choice) {
        Words more{"--steps", "4",      "--evaluate", "0",         "--probe",
                   "0",       "--clip", "0.1",        "--signals", "both"};
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

}  // namespace
}  // namespace msa::test
