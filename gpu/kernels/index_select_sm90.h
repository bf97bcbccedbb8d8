// SPDX-License-Identifier: MIT
// Fused index_select (eq:msa-index-score, eq:msa-topk): scores are written only where a call has
// few.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/problem.h"
#include "gpu/kernels/device_rule.h"
#include "gpu/kernels/rank_exchange.h"
#include "gpu/key_pages.h"
#include "gpu/operand_scales.h"
#include "gpu/tile_parts.h"

namespace msa::cuda {

constexpr int kIndexPrefillRows = 256;  // (query, group) rows of a tile
constexpr int kIndexDecodeRows = 64;    // where few queries share their keys
constexpr int kIndexTileKeys = 128;
constexpr int kIndexMergeBlocks = 32;  // whose scores a warp takes at once
constexpr int kMostIndexParts = 512;
/// Keys of a stage of Hopper's ring: half of a tile where rows of 512 bytes leave registers for the
/// sums of no more.
constexpr int index_stage_keys(int64_t row_bytes) {
    return row_bytes > 256 ? kIndexTileKeys / 2 : kIndexTileKeys;
}
constexpr int kMostTilesNow = 1 << 14;  // that a CutNow cuts

/// Scores of blocks of the rows (query, group): -inf of those that are no candidates. What lies
/// behind a row's last scored tile of keys stays as it is.
struct BlockScores {
    float* scores = nullptr;  // [rows, pitch], by id
    int64_t pitch = 0;
    constexpr float* of_row(int64_t row) const { return scores + row * pitch; }
};

struct IndexSelectArgs {
    const void* index_q;    // [Nq, Hkv, didx]
    const void* all_keys;   // [Nk, didx], the same as index_k
    int64_t keys;           // Nk
    CUtensorMap index_k;    // on Hopper: boxes of a stage's keys, or of 64 in pages, x 128 bytes
    KeyMap key_map;         // on Hopper
    bool keys_settled;      // no earlier work in the stream writes index_k, its pages' table and
                            // lengths: they may be read early
    int index_dim;          // 64, 128 or 256; on Hopper from 64 to 256, in rows of 16 bytes
    const TilePart* parts;  // of tiles, the most work first
    int part_count;
    bool decode;  // at most kIndexDecodeRows / Hkv queries a tile, else kIndexPrefillRows / Hkv
    const KeyRange* visible;           // [Nq]
    int64_t queries;                   // Nq
    int groups;                        // Hkv
    int block_size;                    // 32, 64 or 128
    float scale;                       // above 0
    DeviceScales q_scales, k_scales;   // of int8: of rows (query, group), and of all blocks
    BlockScores scores;                // on Hopper, not null: the result, in place of ids
    DeviceRule rule{SelectionRule{}};  // top_k <= 32
    int most_parts;                    // of a tile; <= 512
    const QueryParts* of_query;        // [Nq], where most_parts > 1
    CutNow now;         // on Hopper, where lengths are on the device: then `parts` is null
    uint64_t* partial;  // [parts of all queries, Hkv, 33], of those with more than one
    int32_t* ids;       // [Nq, Hkv, k]
};

/// Operands of type T: __nv_bfloat16, __half, __nv_fp8_e4m3 or int8_t. With an exchange, a message
/// has list_length(k) words, and every tile must have several parts.
template <typename T>
cudaError_t launch_index_select_sm90(const IndexSelectArgs&, cudaStream_t,
                                     const CandidateExchange* = nullptr);
/// Length of a row's list.
constexpr int list_length(int64_t top_k) { return top_k <= 16 ? 16 : 32; }

}  // namespace msa::cuda
