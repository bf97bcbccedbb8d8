// SPDX-License-Identifier: MIT
// index_kl (eq:msa-kl) by blocks on Hopper: the products of index_kl_blocks.h with wgmma, in
// persistent thread blocks that take work items from a counter.
//
// Products for each (query, group) and key of its support: q . k of G heads, index_q . index_k, and
// t - p, as a sum of two values, times index_k and times index_q. With both dims 128 and G = 16
// these are 4096 + 256 + 2 x 256 + 2 x 256 = 5376 FLOPs, of which 4864 count as useful, 17
// exponentials and a logarithm. At N 128K, k 16 of 128 keys (full support at 32K in brackets), one
// H100:
//   products        5.7 TFLOP (11.6), at the matrix product's 785 TFLOP/s        7.3 ms (14.8)
//   exponentials    19e9 (39e9), 16 a clock and SM at 1.7 GHz                    5.4 ms (10.9)
//   slots, d_keys   written and read, 11 GB (19), 3 TB/s                         3.7 ms (6.4)
//   gathers         q and index_q, 36 GB (72), most of it from L2, at 5.5 TB/s   6.5 ms (13)
// Tensor cores bound it, gathers nearly so. Predicted: 12.5 ms (24), where products and
// exponentials hide half of each other, and slots are read when all products are done.
#pragma once

#include <cuda.h>

#include <bit>

#include "gpu/kernels/index_kl_blocks.h"

namespace msa::cuda {

struct KlTunedArgs {
    KlBlocks blocks;      // Bk 64 or 128, G at most 16
    CUtensorMap q_one;    // [Nq, Hq, dh] of T, boxes of one query's G heads x 64 channels
    CUtensorMap index_k;  // [Nk, didx] of T, boxes of Bk keys x 64 channels
    const float* lse;     // [Nq Hq + 1]: main_lse, base 2; the last gives probability 0
    int64_t queries, keys;
};

/// log2 of kKlUnit. t and p get this factor through lse and the share of a head, which costs no
/// instruction.
template <typename T>
inline constexpr int kKlUnitLog2 = std::countr_zero(static_cast<uint32_t>(kKlUnit<T>));

/// A query takes 2^this columns of a product: G, rounded up to 4, 8 or 16.
constexpr int kl_head_bits(int64_t heads) { return heads > 8 ? 4 : heads > 4 ? 3 : 2; }

/// As launch_kl_blocks.
template <typename T>
cudaError_t launch_kl_blocks_sm90(const KlTunedArgs&, int64_t most_items, int sms, cudaStream_t);

}  // namespace msa::cuda
