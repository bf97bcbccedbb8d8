// SPDX-License-Identifier: MIT
// The fast CPU implementation: float, OpenMP over tiles of queries, one file per operation. Results
// do not depend on `threads`. Contracts: core/backend.h; building blocks: core/cpu/tile.h.
#pragma once

#include <memory>
#include <string_view>

#include "core/host_backend.h"
#include "core/registry.h"

namespace msa {

/// For processors with AVX2 and FMA, or for any processor if the build names no instruction set.
/// Backend::name() returns `name`, which must be a literal.
std::unique_ptr<Backend> make_cpu_backend(std::string_view name, const BackendOptions&);
/// The same sources compiled for AVX-512 (x86-64-v4). Sums have another order, so results agree
/// within the bounds of core/tolerance.h, not bit by bit.
std::unique_ptr<Backend> make_cpu_backend_avx512(std::string_view name, const BackendOptions&);

namespace cpu {

void dense_attention(const Problem&, View<const float, 3> q, const KeyTokens<float>& k,
                     const KeyTokens<float>& v, View<float, 3> out, View<float, 2> lse,
                     int threads);
void index_scores(const Problem&, const FloatIndexInput&, View<float, 3> scores, int threads);
void select_blocks(const Problem&, const SelectionRule&, View<const float, 3> scores,
                   View<int32_t, 3> ids, int threads);
void index_select(const Problem&, const SelectionRule&, const FloatIndexInput&,
                  View<int32_t, 3> ids, View<float, 2> lse, int threads);
void sparse_attention_q_outer(const Problem&, View<const float, 3> q, const KeyTokens<float>& k,
                              const KeyTokens<float>& v, View<const int32_t, 3> ids,
                              View<float, 3> out, View<float, 2> lse, int threads);
void sparse_attention_union(const Problem&, View<const float, 3> q, const KeyTokens<float>& k,
                            const KeyTokens<float>& v, View<const int32_t, 3> ids,
                            View<float, 3> out, View<float, 2> lse, int threads);
void sparse_attention_kv_outer(const Problem&, View<const float, 3> q, const KeyTokens<float>& k,
                               const KeyTokens<float>& v, View<const int32_t, 3> ids,
                               View<float, 3> out, View<float, 2> lse, int threads);
void dense_attention_grad(const Problem&, const AttentionInput&, const AttentionSaved&,
                          const AttentionGradient&, int threads);
void sparse_attention_grad(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                           const AttentionSaved&, const AttentionGradient&, LoopOrder, int threads);
void block_mass(const Problem&, View<const float, 3> q, const KeyTokens<float>& k,
                View<const float, 1> sinks, const BlockMassOutput&, int threads);
void index_kl(const Problem&, const IndexKlInput&, const IndexKlOutput&, int threads);

}  // namespace cpu
}  // namespace msa
