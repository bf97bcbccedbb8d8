// SPDX-License-Identifier: MIT
// The data of a layer for programs that measure layers: on the host, in the backend's space, and as
// input of selectors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/io/activations.h"
#include "core/mirror.h"
#include "core/select/policy.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/layers.h"

namespace msa::experiments::measure {

/// All keys and values of a layer on the host. Queries are G times as many, so they are read from
/// the file on use.
class LayerData {
public:
    /// `layer` is one of the file's; both must outlive this. `views` > 1: heads do not share a
    /// choice. The layer then consists of this many views with one head per group, so every
    /// operation by group works by head.
    LayerData(const io::ActivationsReader&, const io::LayerInfo&, const LayerElements&,
              int64_t views = 1);

    const io::LayerInfo& info;
    LayerElements elements;
    int64_t views;
    Tensor<float, 3> k, v, index_k;  // [N, heads, channels]; index_k may be absent

    /// [n, Hq / views, dh] of a view, for packed tokens, ascending.
    Tensor<float, 3> q(std::span<const int64_t> tokens, size_t view = 0) const;
    /// [n, Hkv, didx] likewise; may be absent.
    Tensor<float, 3> index_q(std::span<const int64_t> tokens) const;
    /// SelectorLayer::read_learned.
    ReadLearned learned() const { return read_.learned(); }
    /// [Hq / views] of a view; absent without sinks.
    Tensor<float, 1> sinks(size_t view = 0) const;
    /// The problem of a view of the whole layer.
    Problem problem(int64_t block_size) const;
    /// P_b [n, Hkv, B] of a view at packed tokens.
    Mirror<3> mass(Backend&, std::span<const int64_t> tokens, int64_t block_size,
                   size_t view) const;

private:
    /// All heads of q for packed tokens. Many policies read the same queries, and the file
    /// decompresses a thousand tokens to read one. So rows are cached if all rows together are
    /// small. Not thread-safe.
    Tensor<float, 3> q_rows(std::span<const int64_t> tokens) const;

    const io::ActivationsInfo& file_;
    LayerReader read_;
    mutable Tensor<float, 3> kept_;    // [N, Hq, dh], absent if too large
    mutable std::vector<bool> known_;  // [N] rows of it
};

/// A view of a layer in the backend's space.
struct LayerView {
    /// `of` must outlive this.
    LayerView(Backend& backend, const LayerData& of, size_t view = 0);
    LayerView(const LayerView&) = delete;
    LayerView& operator=(const LayerView&) = delete;

    /// The input that selectors need for any query; the caller adds budgets and phase.
    SelectorLayer selector_layer(const Problem& whole, uint64_t seed) const;

    Backend& backend;
    const LayerData& data;
    size_t index;
    Operand<3> k_there, v_there;
    Operand<2> index_k_there;
    Tensor<float, 1> host_sinks;
    Sinks sinks;
    Mirror<3> k, v;
    Mirror<2> index_k;
};

/// Some queries of a view of the layer, in the backend's space and as input of selectors.
struct ChunkView {
    /// `of`: the whole layer. `packed`: the tokens of `queries`, kept alive by the caller. Other
    /// arguments are those of SelectorChunk.
    ChunkView(const SelectorLayer& of, const LayerView& view, Problem queries,
              std::span<const int64_t> packed, bool with_logits = false,
              std::function<Mirror<3>()> previous = {});
    ChunkView(const ChunkView&) = delete;
    ChunkView& operator=(const ChunkView&) = delete;

    Backend& backend() const { return of_.backend; }
    Element element() const { return of_.data.elements.main.computed; }
    View<const float, 1> host_sinks() const { return of_.host_sinks; }
    const LayerView& view() const { return of_; }
    /// Input of attention to the layer's keys.
    AttentionInput input() const { return {q.view(), of_.k_there, of_.v_there, of_.sinks}; }
    /// Attention over all of them.
    Attention dense() const { return attend(of_.backend, problem, input(), {}); }
    /// The input with the keys in place of the values, for entropies.
    AttentionInput mean_key_input() const {
        return {q.view(), of_.k_there, of_.k_there, of_.sinks};
    }

    Problem problem;
    std::span<const int64_t> tokens;
    Tensor<float, 3> host_q;
    Operand<3> q;
    Tensor<float, 3> host_index_q;
    Operand<3> index_q;
    SelectorChunk chunk;

private:
    const LayerView& of_;
};

}  // namespace msa::experiments::measure
