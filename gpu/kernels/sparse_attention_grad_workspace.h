// SPDX-License-Identifier: MIT
// The lists of the gradient's schedule, and the memory that its kernels share
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
    int32_t part;   // where d_k and d_v go, of a block that is split; else negative
    int32_t order;  // (group, tile of the first query): items that run together share queries
    int32_t padding[2];
};

/// The parts of a block that is split, in order.
struct __align__(16) GradSplit {
    int32_t group, block, part, parts;
};

/// Of a chunk: how much of each there is, and how much was taken.
struct GradCounts {
    int32_t items, splits, uses, parts;
    int32_t items_taken;  // by the products
    int32_t pairs_taken;  // of the chunk before, whose slots are added beside them
};

/// Device memory that the kernels share. [C ...] holds that of C chunks one behind the other.
struct GradWorkspace {
    float *lse, *delta;       // [Nq Hq + 1]: base 2; one more row that leaves no probability
    int32_t* starts;          // [C chunk_tiles, lists()]: uses of a tile, then where they go
    int32_t* bins;            // [C Hkv chunk_tiles]: items by GradItem::order, then their places
    GradUse* uses;            // [C most_uses()]
    GradItem *found, *items;  // [C most_items()]; as found, and in order
    GradCounts* counts;       // [C]
    GradSplit* splits;        // [C most_splits()]
    void* slots;              // [slot_buffers()][most_uses(), G, dh] of T, channels: grad_channel
    float* parts;             // [most_parts(), 2, keys of a tile, dh]: d_k, d_v
    float *d_k, *d_v;         // [Nk, Hkv, dh]
    // Of f16 alone, see sparse_attention_grad_ends.cu.
    uint32_t* largest;  // [3]: squares of the largest norms of rows of d_out, v and k, as bits
    float* unit;        // [2]: log2 of what P, dS and slots are multiplied by; its inverse
};

}  // namespace msa::cuda
