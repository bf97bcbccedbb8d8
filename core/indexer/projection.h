// SPDX-License-Identifier: MIT
// From hidden states to the operands of attention: projection, per-head RMS norm, partial RoPE
// (eq:msa-index-proj and its Main Branch counterparts; norm and RoPE as in the MiniMax-M3 layer of
// transformers, models/minimax_m3_vl). Float with double sums where it is cheap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/rope.h"
#include "core/tensor.h"

namespace msa {

/// heads [N, H, d] from x [N, d_model] and weight [H * d, d_model] (rows are outputs).
/// Throws InputError when the columns of x and weight differ or H does not divide the rows.
Tensor<float, 3> project(View<const float, 2> x, View<const float, 2> weight, int64_t heads);

/// In place, per token and head: h / sqrt(mean(h^2) + epsilon) * (offset + weight), weight [d].
/// Gemma-style norms store weight - 1: offset 1; Llama-style ones offset 0.
void rms_norm(View<float, 3> heads, View<const float, 1> weight, double epsilon, float offset);

/// In place: rotates the first 2n channels of every head, channel c with channel c + n, by
/// position * inverse_frequencies[c]; the others pass. positions [N]. Throws InputError unless
/// there is a frequency and 2n is at most d.
void apply_rope(View<float, 3> heads, const std::vector<int64_t>& positions,
                std::span<const double> inverse_frequencies);
/// The same with the frequencies theta^(-2c/rotary_dim). Throws InputError unless rotary_dim is
/// even, positive and at most d.
void apply_rope(View<float, 3> heads, const std::vector<int64_t>& positions, int64_t rotary_dim,
                double theta);

/// In place: channels 2c and 2c + 1 of the first 2n of every head go to c and c + n.
void split_pairs(View<float, 3> heads, int64_t pairs);
/// In place, the inverse of apply_rope: returns heads to their state before RoPE. The two channels
/// of pair c end up at c and c + n, whatever layout they had. Does nothing without frequencies.
void undo_rope(View<float, 3> heads, std::span<const int64_t> positions, const RopePairs&);

}  // namespace msa
