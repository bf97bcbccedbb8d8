// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include "core/meant.h"

namespace msa {
namespace {

const std::vector<std::string> kNames{"index",    "oracle", "oracle-logit",
                                      "mean-key", "h100",   "h200"};

TEST(Meant, TheNearestNames) {
    EXPECT_EQ(did_you_mean("orcale", kNames), " (did you mean 'oracle'?)");
    EXPECT_EQ(did_you_mean("Mean_Key", kNames), " (did you mean 'mean-key'?)");
    EXPECT_EQ(did_you_mean("meankey", kNames), " (did you mean 'mean-key'?)");
    EXPECT_EQ(did_you_mean("oracle-logits", kNames), " (did you mean 'oracle-logit'?)");
    EXPECT_EQ(did_you_mean("h300", kNames), " (did you mean 'h100' or 'h200'?)");
}

TEST(Meant, NothingThatIsUnlike) {
    for (const char* word : {"best", "", "x", "window", "a-very-long-word-that-nobody-has"})
        EXPECT_EQ(did_you_mean(word, kNames), "") << word;
    EXPECT_EQ(did_you_mean("oracle", {}), "");
}

TEST(Meant, AtMostThree) {
    EXPECT_EQ(nearest_names("abx", {"aba", "abb", "abc", "abd"}).size(), 3U);
}

}  // namespace
}  // namespace msa
