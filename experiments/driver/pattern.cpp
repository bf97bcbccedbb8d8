// SPDX-License-Identifier: MIT
#include "experiments/driver/pattern.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "core/random.h"

namespace msa::experiments {
namespace {

using io::Field;
using io::LayerInfo;

// The planted channels come first: 1 for the sink, kNeedleChannels for needle codes, then pairs
// (cos, sin) of position; the rest is noise.
constexpr int64_t kNeedleChannels = 3;
constexpr int64_t kFirstPair = 1 + kNeedleChannels;
constexpr int64_t kMostPairs = 12;
constexpr double kShortestWave = 48;    // tokens
constexpr double kLeastExponent = 0.3;  // of distances

/// Pairs that leave about half of the channels, at least four, to the noise.
int64_t pairs_of(int64_t channels) {
    return std::min(kMostPairs, (channels / 2 - kFirstPair) / 2 + 2);
}

int64_t planted_channels(int64_t channels) { return kFirstPair + 2 * pairs_of(channels); }

/// Angular frequencies of `pairs` pairs, geometric between the shortest wave length and the
/// longest.
std::vector<double> frequencies(int64_t pairs, double longest) {
    std::vector<double> all;
    for (int64_t m = 0; m < pairs; ++m) {
        const double step = pairs > 1 ? static_cast<double>(m) / static_cast<double>(pairs - 1) : 0;
        all.push_back(2 * std::numbers::pi /
                      (kShortestWave * std::pow(longest / kShortestWave, step)));
    }
    return all;
}

/// Unit code of a needle in the needle channels.
std::array<double, kNeedleChannels> needle_code(uint64_t key) {
    std::array<double, kNeedleChannels> code{};
    double norm = 0;
    for (size_t c = 0; c < code.size(); ++c) {
        code[c] = random_normal(mix(key, static_cast<int64_t>(c)));
        norm += code[c] * code[c];
    }
    for (double& c : code) c /= std::sqrt(norm);
    return code;
}

}  // namespace

Synthesizer::Synthesizer(const io::ActivationsInfo& info, const Pattern& pattern)
    : info_(info), pattern_(pattern) {}

int64_t Synthesizer::sequence_of(int64_t token) const {
    const auto& starts = info_.cu_seqlens;
    return std::upper_bound(starts.begin(), starts.end(), token) - starts.begin() - 1;
}

int64_t Synthesizer::stripe_target(const LayerInfo& layer, int64_t group, int64_t stripe,
                                   int64_t position) const {
    const double drawn = random_uniform(mix(pattern_.seed, 101, layer.layer, group, stripe));
    const auto at = static_cast<double>(position);
    if (!pattern_.by_distance) return static_cast<int64_t>((0.1 + 0.8 * drawn) * at);
    const double share =
        (static_cast<double>(stripe) + drawn) / static_cast<double>(pattern_.stripes);
    return position -
           static_cast<int64_t>(std::pow(at, kLeastExponent + (1 - kLeastExponent) * share));
}

std::vector<Needle> Synthesizer::needles(const LayerInfo& layer, int64_t sequence) const {
    const auto s = static_cast<size_t>(sequence);
    const int64_t tokens = info_.cu_seqlens[s + 1] - info_.cu_seqlens[s];
    std::vector<Needle> planted;
    for (int64_t n = 0; n < pattern_.needles; ++n) {
        const uint64_t key = mix(pattern_.seed, 102, layer.layer, sequence, n);
        const int64_t half = tokens / 2;
        const auto at =
            static_cast<int64_t>(random_uniform(mix(key, 1)) * static_cast<double>(half));
        const int64_t room = std::max<int64_t>(1, tokens - kNeedleQueries - half);
        const auto query =
            half + static_cast<int64_t>(random_uniform(mix(key, 2)) * static_cast<double>(room));
        planted.push_back({at, query, mix(key, 3)});
    }
    std::sort(planted.begin(), planted.end(),
              [](const Needle& a, const Needle& b) { return a.key < b.key; });
    return planted;
}

void Synthesizer::plant_key(const std::vector<double>& waves, const std::vector<Needle>& needles,
                            int64_t position, View<float, 1> head) const {
    // width^(1/4) on either side cancels the 1/sqrt(width) of the score.
    const double unit = std::pow(static_cast<double>(head.size()), 0.25);
    if (position == 0) head(0) = static_cast<float>(unit);
    for (const Needle& needle : needles)
        if (needle.key == position) {
            const auto code = needle_code(needle.code);
            for (int64_t c = 0; c < kNeedleChannels; ++c)
                head(1 + c) += static_cast<float>(unit * code[static_cast<size_t>(c)]);
        }
    for (int64_t m = 0; m < std::ssize(waves); ++m) {
        const double angle = waves[static_cast<size_t>(m)] * static_cast<double>(position);
        head(kFirstPair + 2 * m) = static_cast<float>(unit * std::cos(angle));
        head(kFirstPair + 2 * m + 1) = static_cast<float>(unit * std::sin(angle));
    }
}

void Synthesizer::plant_query(const LayerInfo& layer, const std::vector<double>& waves,
                              const std::vector<Needle>& needles, int64_t group, int64_t position,
                              double gain, View<float, 1> head) const {
    const double unit = gain * std::pow(static_cast<double>(head.size()), 0.25);
    head(0) = static_cast<float>(unit * pattern_.sink);
    for (const Needle& needle : needles)
        if (needle.first_query <= position && position < needle.first_query + kNeedleQueries) {
            const auto code = needle_code(needle.code);
            for (int64_t c = 0; c < kNeedleChannels; ++c)
                head(1 + c) +=
                    static_cast<float>(unit * pattern_.needle * code[static_cast<size_t>(c)]);
        }
    const auto look_at = [&](double strength, int64_t target) {
        const double each = unit * strength / static_cast<double>(std::ssize(waves));
        for (int64_t m = 0; m < std::ssize(waves); ++m) {
            const double angle = waves[static_cast<size_t>(m)] * static_cast<double>(target);
            head(kFirstPair + 2 * m) += static_cast<float>(each * std::cos(angle));
            head(kFirstPair + 2 * m + 1) += static_cast<float>(each * std::sin(angle));
        }
    };
    look_at(pattern_.diagonal, position);
    for (int64_t s = 0; s < pattern_.stripes; ++s)
        look_at(pattern_.stripe, stripe_target(layer, group, s, position));
}

Tensor<float, 3> Synthesizer::make(const LayerInfo& layer, Field field, QueryRange range) const {
    Tensor<float, 3> values({range.end - range.begin, layer.heads(field), layer.channels(field)});
    const bool index = field == Field::index_q || field == Field::index_k;
    const bool query = field == Field::q || field == Field::index_q;
    const bool planted = field != Field::v && field != Field::x;
    const int64_t width = values.extent(2);
    double noise = index ? std::sqrt(pattern_.index_noise) : 1;
    const int64_t first_noise = planted ? planted_channels(width) : 0;
    if (planted)  // logits get theirs from the other channels alone: unit variance all the same
        noise *=
            std::pow(static_cast<double>(width) / static_cast<double>(width - first_noise), 0.25);
    const std::vector<double> waves = frequencies(pairs_of(width), pattern_.longest_wave);
#pragma omp parallel for
    for (int64_t n = 0; n < values.extent(0); ++n) {
        const int64_t token = range.begin + n, sequence = sequence_of(token);
        const int64_t position = token - info_.cu_seqlens[static_cast<size_t>(sequence)];
        const std::vector<Needle> here = needles(layer, sequence);
        for (int64_t h = 0; h < values.extent(1); ++h) {
            const View<float, 1> head = values.view()[n][h];
            const uint64_t key =
                mix(pattern_.seed, 104, layer.layer, static_cast<int64_t>(field), token, h);
            for (int64_t c = first_noise; c < width; ++c)
                head(c) = static_cast<float>(noise * random_normal(mix(key, c)));
            if (!planted) continue;
            const int64_t group = field == Field::q ? h * layer.kv_heads / layer.query_heads : h;
            // The heads of a group differ in how strongly they look.
            const double gain =
                field == Field::q
                    ? 0.8 + 0.4 * random_uniform(mix(pattern_.seed, 105, layer.layer, h))
                    : 1;
            if (query)
                plant_query(layer, waves, here, group, position, gain, head);
            else
                plant_key(waves, here, position, head);
        }
    }
    return values;
}

}  // namespace msa::experiments
