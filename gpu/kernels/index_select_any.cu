// SPDX-License-Identifier: MIT
// index_scores, then select_blocks, over pieces of the queries, so that only the scores of one
// piece are in memory. index_lse_any: the lse over the selected blocks.
#include "gpu/device/support.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/pieces.h"

namespace msa::cuda {

void index_select_any(const Call& call, const SelectionRule& rule, const IndexInput& in,
                      View<int32_t, 3> ids) {
    const int64_t blocks = call.problem.blocks(), groups = call.problem.kv_heads;
    for_each_piece(call, groups * blocks * int64_t{sizeof(float)},
                   [&](const Call& piece, QueryRange queries) {
                       const int64_t count = queries.end - queries.begin;
                       Tensor<float, 3> scores = piece.scratch<float, 3>({count, groups, blocks});
                       OperandScales scales = in.scales;
                       if (scales.q.extent(0) == call.problem.queries())
                           scales.q = scales.q.slice(queries.begin, count);
                       index_scores_any(piece, call.layout,
                                        {slice(in.index_q, queries), in.index_k, scales}, scores);
                       select_blocks_any(piece, rule, scores, ids.slice(queries.begin, count));
                   });
}

void index_lse_any(const Call& call, const IndexInput& in, View<const int32_t, 3> ids,
                   View<float, 2> lse) {
    if (lse.size() == 0) return;
    by_index_element(in.index_q.element(), [&]<typename T>() {
        attend_to_support(call, index_heads<T>(call.problem, call.layout, in),
                          key_support(call, ids), {}, lse.data());
    });
}

}  // namespace msa::cuda
