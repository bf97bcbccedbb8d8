// SPDX-License-Identifier: MIT
// What each stage of one attention layer costs, from its sizes alone: FLOPs of sec:msa-flops, bytes
// of sec:kernel:sparse_attn, with the formulas as text. As in the paper, causal halves are N^2 / 2,
// a query selects k whole blocks, and the log-sum-exps (4 bytes per dh outputs) are left out.
// In the formulas e and e_i are the bytes of an element of the Main and the Index Branch; scores
// are 4-byte floats, ids 4-byte integers, B = N / Bk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/hardware.h"

namespace msa::analysis {

/// One layer over one square causal sequence of N tokens, or one decode step behind N tokens.
struct LayerSizes {
    int64_t tokens = 0;  // N
    int64_t query_heads = 0, kv_heads = 0, head_dim = 0, index_dim = 0;
    int64_t block_size = 128, top_k = 16;
    Element element = Element::bf16;        // of q, k, v, outputs and partial outputs
    Element index_element = Element::bf16;  // of index_q and index_k

    int64_t group_size() const { return query_heads / kv_heads; }
    /// Throws InputError unless all are positive, Hkv divides Hq, and k Bk <= N, which the formulas
    /// take for granted.
    void validate() const;
};

struct Stage {
    std::string name;
    Cost cost;
    Element element;  // of its matrix products
    std::string flops_formula, bytes_formula;
};

/// Stages that run one after another and together answer the layer.
struct Pipeline {
    std::string name;  // "dense", "q_outer", "kv_outer"
    std::vector<Stage> stages;

    Cost total() const;
    /// Sum of the stages' roofline times.
    double seconds(const Hardware&) const;
};

/// Dense attention, and MSA in both loop orders, over the whole sequence. Dense comes first.
std::vector<Pipeline> prefill_pipelines(const LayerSizes&);
/// Dense attention, and MSA, for one new token. Dense comes first.
std::vector<Pipeline> decode_pipelines(const LayerSizes&);

/// F_GQA / F_MSA of sec:msa-flops.
double flop_ratio(const LayerSizes&);
/// The Main Branch alone: Q-outer, and KV-outer with the combine.
Cost q_outer_cost(const LayerSizes&);
Cost kv_outer_cost(const LayerSizes&);
/// O_buf and LSE_buf of the KV-outer order, all queries at once: k N Hq (e dh + 4).
double slot_buffer_bytes(const LayerSizes&);

}  // namespace msa::analysis
