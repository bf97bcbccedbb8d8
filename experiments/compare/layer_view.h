// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <span>
#include <utility>

#include "core/mirror.h"
#include "core/select/policy.h"
#include "experiments/compare/layer_data.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/own_attention.h"

namespace msa::experiments::compare {

/// The layer as one view of its heads has it, in the backend's space and on the host.
struct LayerView {
    LayerView(Backend& backend, const LayerData& data, Problem problem, size_t view)
        : index(view),
          whole(std::move(problem)),
          k_there(backend, host_view(data.k), data.elements.main.computed),
          v_there(backend, host_view(data.v), data.elements.main.computed),
          index_k_there(backend, host_index_k(data), data.elements.index.computed),
          host_sinks(data.sinks(view)),
          sinks(backend, host_sinks),
          k(backend, k_there.view(), host_view(data.k)),
          v(backend, v_there.view(), host_view(data.v)) {
        if (data.index_k.data() != nullptr)
            index_k = {backend, index_k_there.view(), host_index_k(data)};
    }
    size_t index;
    Problem whole;
    Operand<3> k_there, v_there;
    Operand<2> index_k_there;
    Tensor<float, 1> host_sinks;
    Sinks sinks;
    Mirror<3> k, v;
    Mirror<2> index_k;

private:
    static View<const float, 2> host_index_k(const LayerData& data) {
        return {data.index_k.data(), {data.index_k.extent(0), data.index_k.extent(2)}};
    }
};

/// Some queries of the layer as a view of it has them, in the backend's space and as selectors see
/// them.
struct ChunkView {
    /// `of`: the whole layer; `packed`: the tokens of `queries`, which the caller keeps. The rest
    /// is SelectorChunk's.
    ChunkView(const SelectorLayer& of, const LayerData& data, const LayerView& view,
              Problem queries, std::span<const int64_t> packed, bool with_logits,
              std::function<Mirror<3>()> previous)
        : problem(std::move(queries)),
          tokens(packed),
          host_q(data.q(tokens, view.index)),
          q(of.backend, host_view(host_q), data.elements.main.computed),
          host_index_q(data.index_q(tokens)),
          index_q(of.backend, host_view(host_index_q), data.elements.index.computed),
          chunk(of, problem, tokens, {of.backend, q.view(), host_view(host_q)},
                host_index_q.data() == nullptr
                    ? Mirror<3>()
                    : Mirror<3>(of.backend, index_q.view(), host_view(host_index_q)),
                with_logits, std::move(previous)) {}
    ChunkView(const ChunkView&) = delete;
    ChunkView& operator=(const ChunkView&) = delete;

    Problem problem;
    std::span<const int64_t> tokens;
    Tensor<float, 3> host_q;
    Operand<3> q;
    Tensor<float, 3> host_index_q;
    Operand<3> index_q;
    SelectorChunk chunk;
};

}  // namespace msa::experiments::compare
