// SPDX-License-Identifier: MIT
// The cost of each stage of an attention layer, from its sizes, with the formulas as text. There
// are two accountings:
//   kernels  what the tuned kernels of gpu/ do: padded rows and masked keys are executed, the
//            handle of a (query, block) pair is 16 bytes, scores are never written
//   paper    FLOPs of sec:msa-flops and bytes of sec:kernel:sparse_attn, whose closed forms leave
//            out padding, log-sum-exps and the chip's cache; a handle is 4 bytes
// Both count causal pairs as N^2 / 2 and let every query select k whole blocks.
//
// Letters of the formulas: N tokens, Nq queries (N in prefill, 1 in decode), P visible (query, key)
// pairs (Nq N - Nq^2 / 2, or N for one query), B = N / Bk blocks, e and e_i bytes of an element of
// the Main and the Index Branch. Scores and log-sum-exps are 4-byte floats, ids 4-byte integers. Of
// the kernels (core/kernel_sizes.h): T queries of a tile and R rows of it, U blocks of its union, s
// blocks of a query that go to slots, R1 and Rs rows that a query takes in q_outer and in a pass of
// kv_outer, C rounds of slots.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/hardware.h"

namespace msa::analysis {

/// One layer over one square causal sequence of N tokens, or one decode step after N tokens.
struct LayerSizes {
    int64_t tokens = 0;  // N
    int64_t query_heads = 0, kv_heads = 0, head_dim = 0, index_dim = 0;
    int64_t block_size = 128, top_k = 16;
    /// Window of dense attention; unset: all keys. MSA, which replaces it, selects among all keys.
    std::optional<int64_t> window = {};
    // Type of q, k, v, outputs and partial outputs. Not counted for e4m3: the kernels' outputs and
    // partial outputs in bf16, and the transposition of values.
    Element element = Element::bf16;
    Element index_element = Element::bf16;  // of index_q and index_k
    /// Mean number of distinct blocks that the queries of a tile select, from k (all alike) to T k
    /// (none shared). The model assumes that each query chooses its k blocks at random among b,
    /// with b such that the union b (1 - (1 - k / b)^T) has this size; unset: b = B.
    std::optional<double> given_union_blocks = {};

    int64_t group_size() const { return query_heads / kv_heads; }
    /// T: neighbouring queries of a tile.
    int64_t tile_queries() const;
    /// U of a tile of T queries.
    double union_blocks() const;
    /// How `automatic` splits such a tile.
    struct Sharing {
        double
            shared_blocks;   // b P(X >= L): selected by L = sparse_least_sharing() queries or more
        double slot_blocks;  // of each query, k P(Y < L - 1): the others, where X and Y are how
                             // many of T queries and of the T - 1 others select a block
    };
    Sharing sharing() const;
    /// Throws InputError unless all are positive, Hkv divides Hq, k Bk <= N (which the formulas
    /// assume), and given_union_blocks is in its range.
    void validate() const;
};

struct Stage {
    std::string name;
    Cost cost;        // every operand crosses the memory bus once
    Element element;  // of its matrix products
    std::string flops_formula, bytes_formula;
    /// Bytes of repeated reads of keys and values, and the bytes over which these reads are spread.
    /// A cache that holds a share of the latter saves that share of the reads.
    double repeated_bytes = 0, working_set_bytes = 0;

    /// Bytes from memory, including the repeated reads that miss in a cache of known size.
    double memory_bytes(const Hardware&) const;
    /// Bytes through the cache.
    double cache_bytes() const { return cost.bytes + repeated_bytes; }
    /// The longest of arithmetic, memory and, if its bandwidth is known, cache.
    double seconds(const Hardware&) const;
    /// Which of them is the longest: "arithmetic", "memory" or "cache".
    const char* limit(const Hardware&) const;
};

/// Stages that run one after another and together compute the layer.
struct Pipeline {
    std::string name;
    std::vector<Stage> stages;

    /// FLOPs, and bytes from memory.
    Cost total(const Hardware&) const;
    /// Sum of the stages' times.
    double seconds(const Hardware&) const;
};

// The kernels' accounting. In this order: "dense", attention over all tokens; and MSA with sparse
// attention as "q_outer", one query at a time; "union", a tile of neighbouring queries walks the
// union of their blocks; "kv_outer", a block gathers its queries, partial outputs go to slots and
// are combined; "automatic", union for the blocks that the tile shares, kv_outer for the rest; a
// query alone goes by q_outer.

std::vector<Pipeline> prefill_pipelines(const LayerSizes&);
/// A decode step: one new token.
std::vector<Pipeline> decode_pipelines(const LayerSizes&);
/// A chunk: the last `queries` of the N tokens, after a prefix of all others. Prefill and decode
/// are its special cases.
std::vector<Pipeline> chunk_pipelines(const LayerSizes&, int64_t queries);

// The paper's accounting.

/// "dense", "q_outer" and "kv_outer".
std::vector<Pipeline> paper_prefill_pipelines(const LayerSizes&);
/// "dense" and "msa", for one new token.
std::vector<Pipeline> paper_decode_pipelines(const LayerSizes&);
/// F_GQA / F_MSA of sec:msa-flops.
double paper_flop_ratio(const LayerSizes&);
/// FLOPs of training the Index Branch with the KL loss on one sequence. The selection needs the
/// scores of all visible keys, P per group. The loss and the gradients of index_q and index_k need
/// only the keys of their support: P, or for selected blocks S = N k Bk - (k Bk)^2 / 2, since early
/// queries select all that they see.
struct IndexTraining {
    double scores;     // 2 Hkv didx P
    double loss;       // 2 Hkv (G dh + didx) S: teacher's logits and the index logits, anew
    double gradients;  // 4 Hkv didx S
    double total() const { return scores + loss + gradients; }
};
IndexTraining index_training(const LayerSizes&, bool on_selected);
/// The Main Branch alone: Q-outer, and KV-outer with the combine.
Cost paper_q_outer_cost(const LayerSizes&);
Cost paper_kv_outer_cost(const LayerSizes&);
/// O_buf and LSE_buf of KV-outer for all queries at once: k N Hq (e dh + 4). Our kernels' slots
/// hold one round of queries at a time, kSparseSlotBytes of outputs.
double paper_slot_buffer_bytes(const LayerSizes&);

}  // namespace msa::analysis
