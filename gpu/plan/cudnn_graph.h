// SPDX-License-Identifier: MIT
// The cuDNN frontend's graphs of dense attention and its gradient, and the sizes that a plan
// depends on. Included only if cuDNN's headers are found.
#pragma once

#include <cudnn_frontend.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "core/backend.h"
#include "gpu/layout.h"
#include "gpu/lru_cache.h"
#include "gpu/plan/dense_attention_cudnn.h"

namespace msa::cuda {

namespace fe = cudnn_frontend;

/// A sequence of a call: consecutive queries on consecutive keys, the last query at the last key.
struct Span {
    int64_t query = 0, queries = 0, key = 0, keys = 0;
    bool operator==(const Span&) const = default;
};

/// The sequences that have queries; empty if a query sees no key or positions have gaps.
std::vector<Span> spans_of(const Problem&, const std::vector<KeyRange>& visible);

enum class Mask : uint8_t { none, causal, causal_bottom_right };

/// The sizes that a plan depends on. Regular sequences are plain tensors. Others are ragged:
/// offsets are given at run time, and the longest length is rounded up, so one plan serves many
/// calls. Pieces of a sequence are ragged too, since the number of keys grows from piece to piece.
/// So are sequences of a gradient whose keys are not whole tiles of 128, for which the frontend
/// would copy lengths from the host in every call.
struct Sizes {
    Direction direction = Direction::attention;
    bool ragged = false;
    Mask mask = Mask::none;
    int64_t sequences = 0, queries = 0, keys = 0;  // of the longest
    int64_t query_step = 0, key_step = 0;          // rows from sequence to sequence
    int64_t all_queries = 0, all_keys = 0;         // of all, if that bounds the workspace
    int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
    double scale = 0;
    Element element = Element::bf16;  // of operands and outputs except lse
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
    // Ragged: lengths; offsets in elements, with the end.
    Tensor<int32_t, 1> queries, keys;
    Tensor<int64_t, 1> q_at, kv_at, lse_at;

    Placement(const Call&, const Sizes&, std::vector<Span>);
    /// Adds the addresses that a ragged graph needs.
    void add_to(std::unordered_map<int64_t, void*>& pointers);

private:
    void place_ragged(const Call&, const Sizes&);
};

/// Runs the frontend's `call` and returns its error, or nothing. If the library lacks a function,
/// the frontend throws.
template <typename Body>
std::string guarded(Body call) {
    try {
        return call();
    } catch (const std::exception& error) {
        return error.what();
    }
}

// Outside a graph, decoding builds a plan for every number of keys, and training on packed
// documents two for every number of them in a batch, which is from 1 to 50 or so.
constexpr size_t kMostPlans = 128, kMostPlacements = 8;

struct Plan {
    Sizes sizes;
    fe::graph::Graph graph;
    std::string refusal;  // empty: it can be run
    int64_t workspace = 0;
    LruCache<Placement, kMostPlacements> placements;

    Plan(const Sizes&, cudnnHandle_t);

    /// Where the tensors begin. Ragged sequences have offsets from the start.
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
