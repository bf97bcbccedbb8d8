// SPDX-License-Identifier: MIT
// The graphs of cuDNN's frontend: dense attention and its gradient, and what a plan of them depends
// on. Included where cuDNN's headers are.
#pragma once

#include <cudnn_frontend.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "core/backend.h"
#include "gpu/layout.h"
#include "gpu/plan/dense_attention_cudnn.h"
#include "gpu/recent.h"

namespace msa::cuda {

namespace fe = cudnn_frontend;

/// A sequence of a call: consecutive queries on consecutive keys, the last query on the last key.
struct Span {
    int64_t query = 0, queries = 0, key = 0, keys = 0;
    bool operator==(const Span&) const = default;
};

/// The sequences that have queries; nothing where a query sees no key or positions have gaps.
std::vector<Span> spans_of(const Problem&, const std::vector<KeyRange>& visible);

enum class Mask : uint8_t { none, causal, causal_bottom_right };

/// What a plan depends on. Regular sequences are plain tensors. Others, and pieces of a sequence,
/// whose keys are more from piece to piece, are ragged: where they are is said at run time, and the
/// longest is rounded up, so that one plan serves many. So are sequences of a gradient whose keys
/// are not whole tiles of 128: for these the frontend would copy lengths from the host at every
/// call.
struct Sizes {
    Direction direction = Direction::attention;
    bool ragged = false;
    Mask mask = Mask::none;
    int64_t sequences = 0, queries = 0, keys = 0;  // of the longest
    int64_t query_step = 0, key_step = 0;          // rows from sequence to sequence
    int64_t all_queries = 0, all_keys = 0;         // of all, where that bounds the workspace
    int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
    double scale = 0;
    Element element = Element::bf16;  // of operands and outputs, but for lse
    bool operator==(const Sizes&) const = default;

    Sizes(const Problem&, const std::vector<Span>&, Direction, Element);
    bool is_gradient() const { return direction != Direction::attention; }
};

/// Names of the graph's tensors.
enum TensorId : int64_t {
    kQ = 1,
    kK,
    kV,
    kOut,
    kLse,
    kQueries,
    kKeys,
    kQAt,
    kKvAt,
    kLseAt,
    kDOut,
    kDQ,
    kDK,
    kDV,
};

/// The sequences of a call, on the device.
struct Placement {
    std::vector<Span> spans;
    int64_t all_keys = 0;
    Tensor<KeyRange, 1> hidden;  // keys whose values must be finite in the forward pass
    int64_t most_hidden = 0;     // of one sequence
    // Ragged: how long they are; where, in elements, and where the last one ends.
    Tensor<int32_t, 1> queries, keys;
    Tensor<int64_t, 1> q_at, kv_at, lse_at;

    Placement(const Call&, const Sizes&, std::vector<Span>);
    /// Adds the addresses that a ragged graph asks for.
    void add_to(std::unordered_map<int64_t, void*>& pointers);

private:
    void place_ragged(const Call&, const Sizes&);
};

/// Runs `call` of the frontend, which returns what is wrong, or nothing. Where the library lacks a
/// function, the frontend throws.
template <typename Body>
std::string guarded(Body call) {
    try {
        return call();
    } catch (const std::exception& error) {
        return error.what();
    }
}

// Outside a graph, decoding makes a plan for every number of keys.
constexpr size_t kMostPlans = 32, kMostPlacements = 8;

struct Plan {
    Sizes sizes;
    fe::graph::Graph graph;
    std::string refusal;  // empty: it can be run
    int64_t workspace = 0;
    Recent<Placement, kMostPlacements> placements;

    Plan(const Sizes&, cudnnHandle_t);

    /// Where the tensors begin. Ragged sequences have their own offsets, from the start.
    Span first(const Placement& at) const { return sizes.ragged ? Span{} : at.spans.front(); }
    std::shared_ptr<Placement> place(const Call& call, const std::vector<Span>& spans) {
        return placements.get(
            [&](const Placement& known) {
                return known.all_keys == call.problem.keys() && known.spans == spans;
            },
            [&] { return std::make_shared<Placement>(call, sizes, spans); });
    }
};

}  // namespace msa::cuda
