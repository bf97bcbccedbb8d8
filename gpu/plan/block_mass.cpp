// SPDX-License-Identifier: MIT
// block_mass on tensor cores: pieces of the queries, so that the log-sums of a piece fit the
// workspace.
#include <algorithm>
#include <vector>

#include "gpu/half_types.h"
#include "gpu/kernels/block_mass_sm90.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/padded_heads.h"
#include "gpu/plan/tuned.h"
#include "gpu/tensor_map.h"

namespace msa::cuda {
namespace {

/// Tiles of a piece: whole waves of thread blocks, whose workspace is about half a gigabyte.
int64_t tiles_of_piece(const Device& device, const Problem& p, int64_t tile_queries) {
    constexpr int64_t kWorkspaceFloats = int64_t{1} << 27;
    const int64_t fitting = kWorkspaceFloats / (p.query_heads * p.blocks() * tile_queries);
    const int64_t waves = std::max<int64_t>(1, fitting * p.kv_heads / device.sms);
    return std::clamp<int64_t>(waves * device.sms / p.kv_heads, 1, kMassMostTiles);
}

}  // namespace

Support takes_block_mass_tuned(const Device& device, const Problem& asked,
                               const BlockMassRequest& request, bool max_logit, bool aligned,
                               bool sinks) {
    const Problem p = kernel_heads(asked);
    if (request.page_size > 0) return in_pages();
    if (max_logit) return Support::no("max_logit is asked for");
    if (sinks) return Support::no("there are sinks");
    if (p.window || p.softcap) return not_plain(p);
    if (!is_half(request.element)) return not_element(request.element, "bf16 or f16");
    if (!aligned) return not_aligned();
    const bool wide = is_wide(p.head_dim);
    if (wide && !device.is_hopper()) return not_hopper();
    if (!is_tuned_width(p.head_dim) && !wide) return not_kernel_head(asked.head_dim);
    if (!is_tuned_block(p.block_size)) return not_tuned_block(p.block_size);
    if (wide && !is_tuned_width(p.block_size)) return not_tuned("the block size", p.block_size);
    const int64_t rows = mass_tile_rows(p.head_dim);
    if (p.group_size() > rows) return above("G", p.group_size(), rows);
    if (p.softmax_scale() <= 0) return Support::no("the softmax scale is not positive");
    return {};
}

void block_mass_tuned(const Call& call, const BlockMassInput& in, const BlockMassOutput& to) {
    if (to.mass.size() == 0) return;
    const Problem& p = call.problem;
    if (is_padded(p)) {
        const Problem wide = kernel_heads(p);
        const PaddedRows q(call, in.q, wide.head_dim), k(call, in.k, wide.head_dim);
        return block_mass_tuned(with_problem(call, wide, call.ahead), {q.view(), k.view()}, to);
    }
    const int64_t tile_queries = mass_tile_rows(p.head_dim) / p.group_size();
    const std::vector<QueryTile>& tiles =
        call.layout->tiles(tile_queries, TileOrder::by_query).host;
    const int64_t step = tiles_of_piece(call.device, p, tile_queries), all = std::ssize(tiles);
    auto block_lse = call.scratch<float, 1>(
        {std::min(step * tile_queries, p.queries()) * p.query_heads * p.blocks()});
    const bool hopper = call.device.is_hopper();
    const CUtensorMap k_map = hopper ? tensor_map(in.k.data(), in.k.element(), p.keys(),
                                                  p.kv_heads * p.head_dim, kMassTileKeys)
                                     : CUtensorMap{};
    for (int64_t begin = 0; begin < all; begin += step) {
        std::vector<QueryTile> piece(tiles.begin() + begin,
                                     tiles.begin() + std::min(begin + step, all));
        const int64_t first = piece.front().query;
        const int64_t queries = piece.back().query + piece.back().queries - first;
        sort_longest_first(piece);
        const Tensor<QueryTile, 1> here = call.upload(piece);
        const BlockMassArgs args{.q = in.q.data(),
                                 .all_keys = in.k.data(),
                                 .keys = p.keys(),
                                 .k = k_map,
                                 .head_dim = narrow(p.head_dim),
                                 .tiles = here.data(),
                                 .tile_count = narrow(here.size()),
                                 .visible = call.visible,
                                 .first_query = first,
                                 .queries = queries,
                                 .query_heads = narrow(p.query_heads),
                                 .groups = narrow(p.kv_heads),
                                 .blocks = narrow(p.blocks()),
                                 .block_size = narrow(p.block_size),
                                 .scale = static_cast<float>(p.softmax_scale()),
                                 .block_lse = block_lse.data(),
                                 .mass = to.mass[first].data()};
        const auto launch = [&]<typename T>() {
            return (hopper ? launch_block_mass_sm90<T> : launch_block_mass_sm80<T>)(args,
                                                                                    call.stream());
        };
        check(by_half(in.q.element(), launch), "block_mass");
    }
}

}  // namespace msa::cuda
