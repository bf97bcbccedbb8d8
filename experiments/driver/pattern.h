// SPDX-License-Identifier: MIT
// Activations with planted attention structure. Every value depends only on the seed and its
// coordinates, so any token range can be generated on its own.
//
// A head's logit of query i and key j is noise of unit variance plus planted gains, in nats:
//   sink      `sink` on token 0 of the sequence
//   diagonal  `diagonal` at j = i, falling off within a few dozen tokens
//   stripes   `stripe` around slow(i, s) = ratio_s * i for each stripe s of the group, ratio_s < 1:
//             far blocks that consecutive queries share and that move slowly; or, with
//             `by_distance`, around i - i^e_s for exponents e_s that are evenly spread over
//             [0.3, 1]: about as many in every octave of distances
//   needles   `needle` on single tokens that only a short run of later queries looks for
// The Index Branch has the same structure once per group, with `index_noise` times the noise.
#pragma once

#include <cstdint>
#include <vector>

#include "core/io/activations.h"
#include "core/tensor.h"

namespace msa::experiments {

struct Pattern {
    double sink = 14, diagonal = 8, stripe = 8, needle = 14;
    int64_t stripes = 3;  // per group
    int64_t needles = 8;  // per sequence
    bool by_distance = false;
    double longest_wave = 1 << 16;  // tokens, of the channels that tell positions apart
    double index_noise = 1;
    uint64_t seed = 0;
};

/// The position of a needle, for tests and plots.
struct Needle {
    int64_t key;          // position of the needle
    int64_t first_query;  // kNeedleQueries positions from here on attend to it
    uint64_t code;        // selects its direction in the needle channels
};
inline constexpr int64_t kNeedleQueries = 16;

class Synthesizer {
public:
    /// Takes sequences and sizes from `info`; can generate every layer of it.
    Synthesizer(const io::ActivationsInfo& info, const Pattern& pattern);

    /// Tokens [range.begin, range.end) of a field of a layer: [n, heads, channels].
    Tensor<float, 3> make(const io::LayerInfo&, io::Field, QueryRange range) const;

    /// Position that the query at `position` attends to by stripe `stripe` of `group`.
    int64_t stripe_target(const io::LayerInfo&, int64_t group, int64_t stripe,
                          int64_t position) const;
    /// The needles of a sequence, by key.
    std::vector<Needle> needles(const io::LayerInfo&, int64_t sequence) const;

private:
    // Add to a head that is 0 in the planted channels. `waves`: the frequencies of its pairs.
    void plant_key(const std::vector<double>& waves, const std::vector<Needle>& needles,
                   int64_t position, View<float, 1> head) const;
    void plant_query(const io::LayerInfo&, const std::vector<double>& waves,
                     const std::vector<Needle>& needles, int64_t group, int64_t position,
                     double gain, View<float, 1> head) const;
    int64_t sequence_of(int64_t token) const;

    io::ActivationsInfo info_;
    Pattern pattern_;
};

}  // namespace msa::experiments
