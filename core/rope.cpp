// SPDX-License-Identifier: MIT
#include "core/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace msa {
namespace {

constexpr double kTurn = 2 * std::numbers::pi;

double positions_of(const RopeParameters& p) {
    const int64_t positions = p.original_positions > 0 ? p.original_positions : p.max_positions;
    require(positions > 0, "RoPE of this type needs original_max_position_embeddings");
    return static_cast<double>(positions);
}

/// The base grows with the sequence, so that the slowest pairs turn as far as in training.
std::vector<double> dynamic(const RopeParameters& p, int64_t tokens) {
    require(p.max_positions > 0, "RoPE of type dynamic needs max_position_embeddings");
    const auto trained = static_cast<double>(p.max_positions);
    const double length = std::max(static_cast<double>(tokens), trained);
    const auto dim = static_cast<double>(p.rotary_dim);
    const double grown = p.factor * length / trained - (p.factor - 1);
    return plain_frequencies(p.rotary_dim, p.theta * std::pow(grown, dim / (dim - 2)));
}

/// Slow pairs are interpolated, fast ones are left, those between are mixed.
std::vector<double> llama3(const RopeParameters& p) {
    const double trained = positions_of(p);
    std::vector<double> inverse = plain_frequencies(p.rotary_dim, p.theta);
    for (double& f : inverse) {
        const double turns = trained * f / kTurn;  // over the context of training
        if (turns < p.low_freq_factor) {
            f /= p.factor;
        } else if (turns <= p.high_freq_factor) {
            const double smooth =
                (turns - p.low_freq_factor) / (p.high_freq_factor - p.low_freq_factor);
            f = (1 - smooth) * f / p.factor + smooth * f;
        }
    }
    return inverse;
}

std::vector<double> yarn(const RopeParameters& p) {
    const auto dim = static_cast<double>(p.rotary_dim);
    const auto pair_of = [&](double rotations) {
        return dim * std::log(positions_of(p) / (rotations * kTurn)) / (2 * std::log(p.theta));
    };
    double low = pair_of(p.beta_fast), high = pair_of(p.beta_slow);
    if (p.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    if (low == high) high += 0.001;  // no division by zero
    std::vector<double> inverse = plain_frequencies(p.rotary_dim, p.theta);
    for (size_t c = 0; c < inverse.size(); ++c) {
        const double ramp = std::clamp((static_cast<double>(c) - low) / (high - low), 0.0, 1.0);
        inverse[c] = inverse[c] / p.factor * ramp + inverse[c] * (1 - ramp);
    }
    return inverse;
}

double yarn_attention(const RopeParameters& p) {
    const auto mscale = [&](double of) {
        return p.factor <= 1 ? 1.0 : 0.1 * of * std::log(p.factor) + 1;
    };
    if (p.attention_factor > 0) return p.attention_factor;
    if (p.mscale != 0 && p.mscale_all_dim != 0) return mscale(p.mscale) / mscale(p.mscale_all_dim);
    return mscale(1);
}

RopeFrequencies longrope(const RopeParameters& p, int64_t tokens) {
    const double trained = positions_of(p);
    const bool is_long = static_cast<double>(tokens) > trained;
    const std::vector<double>& divisors = is_long ? p.long_factor : p.short_factor;
    RopeFrequencies f{plain_frequencies(p.rotary_dim, p.theta), p.attention_factor};
    require(divisors.size() == f.inverse.size(), "RoPE of type longrope has ", divisors.size(),
            is_long ? " long" : " short", " factors, must have one per pair = ", f.inverse.size());
    for (size_t c = 0; c < divisors.size(); ++c) f.inverse[c] /= divisors[c];
    if (f.attention_factor > 0) return f;
    const double factor = p.original_positions > 0 && p.max_positions > 0
                              ? static_cast<double>(p.max_positions) / trained
                              : p.factor;
    f.attention_factor = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(trained));
    return f;
}

}  // namespace

std::vector<double> plain_frequencies(int64_t rotary_dim, double theta) {
    std::vector<double> inverse;
    for (int64_t c = 0; c < rotary_dim / 2; ++c)
        inverse.push_back(
            std::pow(theta, -2.0 * static_cast<double>(c) / static_cast<double>(rotary_dim)));
    return inverse;
}

RopeFrequencies rope_frequencies(const RopeParameters& p, int64_t tokens) {
    require(p.theta > 0, "rope_theta is ", p.theta, ", must be positive");
    require(p.type == RopeType::plain || p.factor > 0, "the factor of RoPE is ", p.factor,
            ", must be positive");
    switch (p.type) {
        case RopeType::plain: break;
        case RopeType::linear: {
            RopeFrequencies f{plain_frequencies(p.rotary_dim, p.theta), 1};
            for (double& inverse : f.inverse) inverse /= p.factor;
            return f;
        }
        case RopeType::dynamic: return {dynamic(p, tokens), 1};
        case RopeType::llama3: return {llama3(p), 1};
        case RopeType::yarn: return {yarn(p), yarn_attention(p)};
        case RopeType::longrope: return longrope(p, tokens);
    }
    return {plain_frequencies(p.rotary_dim, p.theta), 1};
}

}  // namespace msa
