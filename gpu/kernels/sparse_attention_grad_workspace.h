// SPDX-License-Identifier: MIT
// The lists of the gradient's schedule, and the workspace of its kernels
// (sparse_attention_grad_sm90.h).
#pragma once

#include <cstdint>

namespace msa::cuda {

/// A (query, block) pair.
struct __align__(16) GradUse {
    int32_t query;
    int32_t slot;  // in the chunk
    int32_t seen;  // keys of the block that the query sees
    int32_t padding;
};

/// Uses [begin, begin + count) of one block, ascending by query.
struct __align__(16) GradItem {
    int32_t group, block, begin, count;
    int32_t part;   // where d_k and d_v of a split block go; else negative
    int32_t order;  // (group, tile of the first query): items that run together share queries
    int32_t padding[2];
};

/// The parts of a split block, in order.
struct __align__(16) GradSplit {
    int32_t group, block, part, parts;
};

/// Counters of a chunk: entries of each list, and how many were taken.
struct GradCounts {
    int32_t items, splits, uses, parts;
    int32_t items_taken;  // by the products
    int32_t pairs_taken;  // of the previous chunk, whose slots are added meanwhile
};

/// The workspace. [C ...] holds C chunks, one after the other.
struct GradWorkspace {
    float *lse, *delta;  // [Nq Hq + 1]: base 2; the last row gives probability 0
    int32_t* starts;     // [C chunk_tiles, lists()]: counts of a tile's uses, then their offsets
    int32_t* bins;       // [C Hkv chunk_tiles]: counts of items by GradItem::order, then offsets
    GradUse* uses;       // [C most_uses()]
    GradItem *found, *items;  // [C most_items()]; unsorted and sorted
    GradCounts* counts;       // [C]
    GradSplit* splits;        // [C most_splits()]
    void* slots;   // [slot_buffers()][most_uses(), G, dh] of T; order of channels: grad_channel()
    float* parts;  // [most_parts(), 2, keys of a tile, dh]: d_k, d_v
    float *d_k, *d_v;  // [Nk, Hkv, dh]
    // Only for f16, see sparse_attention_grad_ends.cu.
    uint32_t* largest;  // [3]: squares of the largest norms of rows of d_out, v and k, as bits
    float* unit;        // [2]: log2 of the factor on P, dS and slots; its inverse
};

}  // namespace msa::cuda
