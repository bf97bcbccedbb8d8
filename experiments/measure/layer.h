// SPDX-License-Identifier: MIT
// A layer of a file, open: what every program that measures layers reads of it, on the host and
// where the backend works, and as selectors see it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/io/activations.h"
#include "core/mirror.h"
#include "core/select/policy.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/own_attention.h"

namespace msa::experiments::measure {

/// The operands of a layer on the host: all keys and values. Queries, which are G times as many,
/// are read from the file when they are looked at.
class LayerData {
public:
    /// `layer` is one of the file's; both must outlive this. `views` > 1: heads do not share a
    /// choice. The layer is then so many views of one head a group, and every operation that works
    /// by group is one that works by head.
    LayerData(const io::ActivationsReader&, const io::LayerInfo&, const LayerElements&,
              int64_t views = 1);

    const io::LayerInfo& info;
    LayerElements elements;
    int64_t views;
    Tensor<float, 3> k, v, index_k;  // [N, heads, channels]; index_k absent where not there

    /// [n, Hq / views, dh] of a view, of the packed tokens, ascending.
    Tensor<float, 3> q(std::span<const int64_t> tokens, size_t view = 0) const;
    /// [n, Hkv, didx] likewise; absent where not there.
    Tensor<float, 3> index_q(std::span<const int64_t> tokens) const;
    /// SelectorLayer::read_learned.
    ReadLearned learned() const { return read_.learned(); }
    /// [Hq / views] of a view; absent without.
    Tensor<float, 1> sinks(size_t view = 0) const;
    /// The whole layer as a view has it.
    Problem problem(int64_t block_size) const;

private:
    /// All heads of q, of the packed tokens: many policies look at the same queries, and a file
    /// unpacks a thousand tokens to give one. Where all rows together are small, those once read
    /// are kept. Not for several threads at once.
    Tensor<float, 3> q_rows(std::span<const int64_t> tokens) const;

    const io::ActivationsInfo& file_;
    LayerReader read_;
    mutable Tensor<float, 3> kept_;    // [N, Hq, dh], absent where too large
    mutable std::vector<bool> known_;  // [N] rows of it
};

/// Of q [n, Hq, dh]: what the view `view` of a layer that is shared by head sees, [n, Hkv, dh].
Tensor<float, 3> one_of_each_group(View<const float, 3> q, int64_t group_size, int64_t view);

/// [Hq / views] The sinks of the view; absent without.
Tensor<float, 1> sinks_of_view(const io::LayerInfo&, int64_t views, int64_t view);

/// A view of a layer in the backend's space.
struct LayerView {
    /// `of` must outlive this.
    LayerView(Backend& backend, const LayerData& of, size_t view = 0);
    LayerView(const LayerView&) = delete;
    LayerView& operator=(const LayerView&) = delete;

    /// What selectors need for any query on its own; a caller adds budgets and phase.
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

/// Some queries of the layer as a view of it has them, in the backend's space and as selectors see
/// them.
struct ChunkView {
    /// `of`: the whole layer; `packed`: the tokens of `queries`, which the caller keeps. The rest
    /// is SelectorChunk's.
    ChunkView(const SelectorLayer& of, const LayerView& view, Problem queries,
              std::span<const int64_t> packed, bool with_logits = false,
              std::function<Mirror<3>()> previous = {});
    ChunkView(const ChunkView&) = delete;
    ChunkView& operator=(const ChunkView&) = delete;

    Backend& backend() const { return of_.backend; }
    Element element() const { return of_.data.elements.main.computed; }
    View<const float, 1> host_sinks() const { return of_.host_sinks; }
    const LayerView& view() const { return of_; }
    /// Of attention to the layer's keys.
    AttentionInput input() const { return {q.view(), of_.k_there, of_.v_there, of_.sinks}; }
    /// Over all of them.
    Attention dense() const { return attend(of_.backend, problem, input(), {}); }
    /// The operands with the keys in place of the values: what an entropy is made of.
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
