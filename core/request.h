// SPDX-License-Identifier: MIT
// What Backend::supports() is asked, and its answer. The operations: core/backend.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "core/tensor.h"

namespace msa {

/// Loop order of sparse_attention and of sparse_attention_grad. supports() says which orders a
/// backend has for a problem. Of a gradient it is the order of d_q; d_k and d_v are always sums
/// over the queries of a block.
enum class LoopOrder : uint8_t {
    automatic,   // the backend's fastest; it may mix the others
    q_outer,     // one query of one group at a time walks its own blocks
    tile_union,  // a tile of neighbouring queries walks the union of their blocks, masked
    kv_outer,    // each block gathers its queries; partial outputs, or partial d_q, go to slots,
                 // which a second phase combines (sec:kernel:sparse_attn)
};
/// "automatic", "q_outer", "union", "kv_outer"
const char* to_string(LoopOrder);

/// What the group's heads, each a softmax on the support, teach by index_kl: their mean
/// (eq:msa-pp), or per key their maximum, over its sum on the support.
enum class Teacher : uint8_t { mean, max };

// What supports() is asked, one struct per operation. `element` is that of the operands q, k, v or
// index_q, index_k; top_k the number of ids per row.

struct DenseAttentionRequest {
    Element element = Element::f32;
};
struct DenseAttentionGradRequest {
    Element element = Element::f32;
};
struct IndexScoresRequest {
    Element element = Element::f32;
};
struct SelectBlocksRequest {
    int64_t top_k = 0;
};
struct IndexSelectRequest {
    Element element = Element::f32;
    int64_t top_k = 0;
};
struct SparseAttentionRequest {
    Element element = Element::f32;
    int64_t top_k = 0;
    LoopOrder order = LoopOrder::automatic;
    Element out = Element::f32;  // of the result
};
struct SparseAttentionGradRequest {
    Element element = Element::f32;
    int64_t top_k = 0;
    LoopOrder order = LoopOrder::automatic;
    Element saved = Element::f32;  // of the saved out and of d_out; f32 where one of them is
};
struct BlockMassRequest {
    Element element = Element::f32;
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
/// Of its operands; f32 for select_blocks, whose scores always are.
Element operand_element(const Request&);
/// automatic for operations without one.
LoopOrder loop_order(const Request&);

/// An answer with its reason.
struct Support {
    bool yes = true;
    std::string why_not;  // one sentence; empty when yes
    static Support no(std::string reason) { return {false, std::move(reason)}; }
};

}  // namespace msa
