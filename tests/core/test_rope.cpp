// SPDX-License-Identifier: MIT
// Against numbers of transformers 5.23.0, modeling_rope_utils.ROPE_INIT_FUNCTIONS, on heads of 16
// channels. It computes in float32: a frequency is off by a few roundings of a float.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "core/rope.h"
#include "core/tolerance.h"

namespace msa {
namespace {

struct Known {
    const char* name;
    RopeParameters parameters;
    int64_t tokens;
    std::vector<double> inverse;
    double attention_factor;
};

RopeParameters of(RopeType type, double theta, double factor, int64_t original, int64_t most) {
    RopeParameters p;
    p.type = type;
    p.rotary_dim = 16;
    p.theta = theta;
    p.factor = factor;
    p.original_positions = original;
    p.max_positions = most;
    return p;
}

std::vector<Known> known() {
    RopeParameters gpt_oss = of(RopeType::yarn, 150000, 32, 4096, 131072);
    gpt_oss.truncate = false;
    RopeParameters longrope = of(RopeType::longrope, 10000, 32, 4096, 131072);
    longrope.short_factor.assign(8, 1);
    longrope.long_factor = {1, 1.5, 2, 3, 5, 8, 13, 21};
    return {
        {"linear",
         of(RopeType::linear, 10000, 4, 0, 4096),
         100,
         {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
          0.000250000012, 7.90569466e-05},
         1},
        {"dynamic",
         of(RopeType::dynamic, 10000, 4, 0, 4096),
         10000,
         {1, 0.240649298, 0.0579120778, 0.013936501, 0.00335380924, 0.000807091768, 0.000194226057,
          4.67403661e-05},
         1},
        {"llama3",
         of(RopeType::llama3, 500000, 8, 8192, 131072),
         100,
         {1, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05,
          6.64786967e-06, 1.28917316e-06},
         1},
        {"yarn_whole",
         gpt_oss,
         100,
         {1, 0.225418001, 0.0508132726, 0.00679495931, 0.000456483918, 1.8188337e-05,
          4.09997847e-06, 9.24208962e-07},
         1.3465735902799727},
        {"yarn",
         of(RopeType::yarn, 10000, 4, 4096, 16384),
         100,
         {1, 0.316227764, 0.100000001, 0.025693506, 0.00624999963, 0.00138349656, 0.000250000012,
          7.90569466e-05},
         1.138629436111989},
        {"longrope",
         longrope,
         9000,
         {1, 0.210818499, 0.0500000007, 0.010540925, 0.00200000009, 0.000395284733, 7.69230755e-05,
          1.50584656e-05},
         1.1902380714238083},
    };
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
    for (const Known& k : known()) {
        const RopeFrequencies f = rope_frequencies(k.parameters, k.tokens);
        ASSERT_EQ(f.inverse.size(), k.inverse.size()) << k.name;
        for (size_t c = 0; c < k.inverse.size(); ++c)
            // The power, its logarithm times at most ln(theta) = 12, and the mixing, all in float.
            EXPECT_NEAR(f.inverse[c], k.inverse[c], gamma(32) * k.inverse[c]) << k.name << c;
        EXPECT_NEAR(f.attention_factor, k.attention_factor, 1e-14) << k.name;
    }
}

TEST(Rope, LongropeTakesTheShortFactorsOfShortSequences) {
    RopeParameters p = known().back().parameters;
    EXPECT_EQ(rope_frequencies(p, 4096).inverse, plain_frequencies(16, 10000));
    p.short_factor.clear();
    EXPECT_THROW(rope_frequencies(p, 4096), InputError);
}

TEST(Rope, WhatATypeNeedsIsNamed) {
    EXPECT_THROW(rope_frequencies(of(RopeType::llama3, 10000, 8, 0, 0), 100), InputError);
    EXPECT_THROW(rope_frequencies(of(RopeType::dynamic, 10000, 8, 0, 0), 100), InputError);
    EXPECT_THROW(rope_frequencies(of(RopeType::linear, 10000, 0, 0, 0), 100), InputError);
}

}  // namespace
}  // namespace msa
