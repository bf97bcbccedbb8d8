// SPDX-License-Identifier: MIT
// The KL loss of Qwen's QSA indexer and its gradient. The indexer (transformers, models/qwen4_exp,
// class Qwen4ExpTextQSAIndexer) has H query heads and one key m_n per piece, which is `compress`
// neighbouring tokens. Its score of piece n for query i is
//   I_in = didx^(-1/2) sum_h max(0, index_q_ih . m_n),
// over the pieces that end at the query or before. One score serves all groups. How Qwen trains it
// is not public; the loss here is that of core/indexer/lightning_kl.h over pieces: with p_r the
// Main Branch's probability of a piece (the mean over the group's heads, of dense attention),
// scaled to sum to 1 over the pieces of the support, and t the softmax of I on them, a row's loss
// is
//   KL_ir = sum_n p_rn (ln p_rn - ln t_n)    and    d mean_r KL_ir / dI_in = t_n - mean_r p_rn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// Tokens of a piece in Qwen's models.
inline constexpr int64_t kQsaCompress = 4;
/// The most that is taken.
inline constexpr int64_t kMostCompress = 1024;

/// The means of the complete runs of `compress` rows of x [n, width], from the first row on.
Tensor<float, 2> piece_means(View<const float, 2> x, int64_t compress);
/// The first piece of each sequence, followed by the number of all pieces.
std::vector<int64_t> piece_starts(std::span<const int64_t> cu_seqlens, int64_t compress);

struct QsaKlInput {
    View<const float, 3> index_q;  // [Nq, H, didx]
    View<const float, 2> index_k;  // [pieces of all sequences, didx] m
    View<const float, 3> target;   // [Nq, Hkv, >= pieces of a sequence] block_mass of pieces
    int64_t compress = kQsaCompress;
    View<const int32_t, 3> ids = {};  // [Nq, Hkv, k] one choice for all groups: group 0 is read.
                                      // The support is the pieces that reach into these blocks;
                                      // absent: all complete ones

    /// didx^(-1/2).
    double scale() const;
};

/// Any may be absent, the gradients only together. They are those of the mean of kl over rows and
/// groups.
struct QsaKlOutput {
    View<double, 2> kl = {};       // [Nq, Hkv]; 0, without gradient, where the teacher looks at no
                                   // piece of the support
    View<double, 1> entropy = {};  // [Nq] of t, in nats; 0 without a piece
    View<double, 2> target_entropy = {};  // [Nq, Hkv] of p, likewise
    View<float, 3> d_index_q = {};        // [Nq, H, didx]
    View<float, 2> d_index_k = {};        // [pieces, didx]
};

/// Products in float, softmax and sums in double. Results do not depend on `threads`
/// (threads_or_all).
void qsa_kl(const Problem&, const QsaKlInput&, const QsaKlOutput&, int threads = 0);

namespace reference {
/// The same in plain loops with double sums.
void qsa_kl(const Problem&, const QsaKlInput&, const QsaKlOutput&);
}  // namespace reference

}  // namespace msa
