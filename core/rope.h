// SPDX-License-Identifier: MIT
// RoPE frequencies, plain and scaled for long contexts. Formulas and names are those of
// transformers' modeling_rope_utils.py; a model's configuration has its parameters.
#pragma once

#include <cstdint>
#include <vector>

namespace msa {

enum class RopeType : uint8_t { plain, linear, dynamic, yarn, longrope, llama3 };

/// RoPE parameters of a model's configuration. 0 or empty: not given.
struct RopeParameters {
    RopeType type = RopeType::plain;
    int64_t rotary_dim = 0;  // channels that are rotated, in pairs
    double theta = 1e4;
    double factor = 1;
    int64_t max_positions = 0;       // max_position_embeddings
    int64_t original_positions = 0;  // original_max_position_embeddings; 0: max_positions
    double low_freq_factor = 1, high_freq_factor = 4;  // llama3
    double beta_fast = 32, beta_slow = 1;              // yarn
    bool truncate = true;                              // yarn
    double attention_factor = 0;                       // yarn, longrope
    double mscale = 0, mscale_all_dim = 0;             // yarn
    std::vector<double> short_factor, long_factor;     // longrope, [rotary_dim / 2]
};

/// What is needed to rotate stored rows further.
struct RopePairs {
    std::vector<double> frequencies;  // [pairs] radians per position; empty: there is no RoPE
    bool interleaved = false;         // pair c is channels 2c and 2c+1; else c and c + pairs
};

struct RopeFrequencies {
    std::vector<double> inverse;  // [rotary_dim / 2] radians per position of each pair
    double attention_factor = 1;  // factor on cosine and sine
};

/// theta^(-2c / rotary_dim) of each pair c.
std::vector<double> plain_frequencies(int64_t rotary_dim, double theta);

/// Frequencies for a sequence of `tokens` (dynamic and longrope depend on its length). Throws
/// InputError naming a parameter that the type needs and that is missing.
RopeFrequencies rope_frequencies(const RopeParameters&, int64_t tokens);

}  // namespace msa
