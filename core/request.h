// SPDX-License-Identifier: MIT
// Argument and result of Backend::supports(). The operations: core/backend.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "core/tensor.h"

namespace msa {

/// Loop order of sparse_attention and sparse_attention_grad. supports() says which orders a backend
/// has for a problem. In a gradient it is the order of d_q; d_k and d_v are always sums over the
/// queries of a block.
enum class LoopOrder : uint8_t {
    automatic,   // the backend's fastest; it may mix the others
    q_outer,     // one query of one group at a time walks its own blocks
    tile_union,  // a tile of neighbouring queries walks the union of their blocks, masked
    kv_outer,    // each block gathers its queries; partial outputs, or partial d_q, go to slots,
                 // which a second phase combines (sec:kernel:sparse_attn)
};
/// "automatic", "q_outer", "union", "kv_outer": a name in C++ cannot be `union`.
const char* to_string(LoopOrder);

/// The teacher of index_kl, made of the softmax of each of a group's heads on the support: their
/// mean (eq:msa-pp), or their maximum per key divided by its sum over the support.
enum class Teacher : uint8_t { mean, max };

// One request struct per operation. `element` is that of q, k, v or of index_q, index_k; top_k is
// the number of ids per row; page_size that of keys in pages, 0 of packed ones.

struct DenseAttentionRequest {
    Element element = Element::f32;
    int64_t page_size = 0;
};
struct DenseAttentionGradRequest {
    Element element = Element::f32;
};
struct IndexScoresRequest {
    Element element = Element::f32;
    int64_t page_size = 0;
};
struct SelectBlocksRequest {
    int64_t top_k = 0;
};
struct IndexSelectRequest {
    Element element = Element::f32;
    int64_t top_k = 0;
    int64_t page_size = 0;
};
struct SparseAttentionRequest {
    Element element = Element::f32;
    int64_t top_k = 0;
    LoopOrder order = LoopOrder::automatic;
    Element out = Element::f32;  // of the result
    int64_t page_size = 0;
};
struct SparseAttentionGradRequest {
    Element element = Element::f32;
    int64_t top_k = 0;
    LoopOrder order = LoopOrder::automatic;
    Element saved = Element::f32;  // of the saved out and of d_out; f32 if either is f32
};
struct BlockMassRequest {
    Element element = Element::f32;
    int64_t page_size = 0;
};
struct IndexKlRequest {
    Element element = Element::f32;
    int64_t top_k = 0;  // 0: the full causal support
    Teacher teacher = Teacher::mean;
};

using Request = std::variant<DenseAttentionRequest, DenseAttentionGradRequest, IndexScoresRequest,
                             SelectBlocksRequest, IndexSelectRequest, SparseAttentionRequest,
                             SparseAttentionGradRequest, BlockMassRequest, IndexKlRequest>;

/// "sparse_attention"
const char* operation_name(const Request&);
/// The request's element; f32 for select_blocks, whose scores are always float.
Element operand_element(const Request&);
/// The request's page size; 0 for operations that take packed keys alone.
int64_t page_size(const Request&);
/// The request's loop order; automatic for operations without one.
LoopOrder loop_order(const Request&);

/// Whether a request is supported, and why not.
struct Support {
    bool yes = true;
    std::string why_not;  // one sentence; empty when yes
    static Support no(std::string reason) { return {false, std::move(reason)}; }
};

}  // namespace msa
