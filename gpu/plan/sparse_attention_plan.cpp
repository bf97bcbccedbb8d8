// SPDX-License-Identifier: MIT
// Which calls of sparse_attention the tuned kernels take, and how they cut them.
#include <algorithm>

#include "gpu/half_types.h"
#include "gpu/kernels/sparse_attention_decode_sm90.h"
#include "gpu/kernels/sparse_attention_sm80.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/padded_heads.h"
#include "gpu/plan/sparse_attention.h"
#include "gpu/plan/tuned.h"

namespace msa::cuda {
namespace {

/// Few queries of few heads: a query alone in its sequence would leave most rows of a tile empty.
bool is_decode(const Problem& p, LoopOrder order, int sms) {
    const int64_t clusters = sparse_decode_clusters(p.queries(), p.kv_heads, p.group_size());
    const int64_t most = p.batch.longest_queries() == 1 ? 2 * sms : sms / 2;
    return order == LoopOrder::automatic && clusters <= most;
}

/// Whether a thread block holds the keys and values of a block.
bool has_kv_outer(const Problem& p, const Device& device) {
    return device.is_hopper() || !is_wide(p.head_dim) ||
           sparse_kv_outer_bytes_sm80(p.head_dim, p.block_size) <= device.shared_bytes;
}

/// Blocks that this many of a tile's queries share are walked as a union. `alone`: all are.
int least_sharing(const Problem& p, int64_t top_k, Element element, LoopOrder order,
                  int tile_queries, bool alone) {
    const int never = tile_queries + 1;
    if (order == LoopOrder::tile_union) return 1;
    if (order == LoopOrder::kv_outer) return never;
    // Where a tile holds all queries of a sequence, no other tile reads its blocks.
    if (alone || p.batch.longest_queries() <= tile_queries) return 1;
    return narrow(sparse_least_sharing(p.group_size(), p.head_dim, element_bytes(element),
                                       p.blocks(), top_k));
}

SparseCall sizes_of(const Problem& p, int64_t top_k) {
    SparseCall sizes{};
    sizes.queries = p.queries();
    sizes.query_heads = narrow(p.query_heads);
    sizes.groups = narrow(p.kv_heads);
    sizes.head_dim = narrow(p.head_dim);
    sizes.block_size = narrow(p.block_size);
    sizes.top_k = narrow(top_k);
    return sizes;
}

}  // namespace

int64_t count_tiles(const Problem& p, int64_t tile_queries) {
    int64_t tiles = 0;
    const std::vector<int64_t>& ends = p.batch.cu_seqlens_q();
    for (size_t s = 0; s + 1 < ends.size(); ++s)
        tiles += ceil_div(ends[s + 1] - ends[s], tile_queries);
    return tiles;
}

Support takes_sparse_attention_tuned(const Device& device, const Problem& asked,
                                     const SparseAttentionRequest& request, bool aligned) {
    const Problem p = kernel_heads(asked);
    if (request.order == LoopOrder::q_outer)
        return Support::no("it has no kernel for one query at a time");
    if (p.window || p.softcap) return not_plain(p);
    const bool e4m3 = request.element == Element::e4m3;
    if (request.page_size > 0 && (e4m3 || !device.is_hopper())) return in_pages();
    if (Support pages = takes_page_size(request.page_size); !pages.yes) return pages;
    if (e4m3 && !multiplies_e4m3(device)) return compiled_before_e4m3(device);
    if (!is_half(request.element) && !e4m3)
        return not_element(request.element, "bf16, f16 or e4m3");
    const Element out = e4m3 ? Element::bf16 : request.element;
    if (request.out != out) return not_element(request.out, to_string(out));
    if (!aligned) return not_aligned();
    const bool wide = is_wide(p.head_dim);
    if (e4m3 && !is_tuned_width(asked.head_dim)) return not_tuned("the head dim", asked.head_dim);
    if (!is_tuned_width(p.head_dim) && !wide) return not_kernel_head(asked.head_dim);
    if (!is_tuned_block(p.block_size)) return not_tuned_block(p.block_size);
    if ((wide || (e4m3 && !device.is_hopper())) && !is_tuned_width(p.block_size))
        return not_tuned("the block size", p.block_size);
    if (request.order == LoopOrder::kv_outer && !has_kv_outer(p, device))
        return little_shared(device.shared_bytes,
                             sparse_kv_outer_bytes_sm80(p.head_dim, p.block_size));
    if (request.top_k > kMostSelected) return above("k", request.top_k, kMostSelected);
    if (is_padded(asked) && !device.is_hopper() && is_decode(p, request.order, device.sms))
        return Support::no("all keys would be padded for few queries");
    if (p.softmax_scale() <= 0) return Support::no("the softmax scale is not positive");
    if (p.keys() == 0 && p.queries() > 0) return Support::no("there are no keys");
    if (p.group_size() > kSparseMostHeads && !is_decode(p, request.order, device.sms))
        return above("G", p.group_size(), kSparseMostHeads);
    return {};
}

SparseWorkspaceSize::SparseWorkspaceSize(const SparseSchedule& s, int64_t of_chunks)
    : chunks(of_chunks),
      blocks(chunks * s.chunk_rows() * s.top_k),
      tile_groups(chunks * s.tile_groups()),
      counts(chunks * (s.lists() + 1)),
      ends(chunks * s.lists()),
      uses(s.any_slots() ? chunks * s.chunk_rows() * s.top_k : 0),
      items(s.any_slots() ? chunks * s.most_items() : 0),
      rows(chunks * s.chunk_rows()),
      slot_rows(s.chunk_slots() * s.slot_rows()) {}

SparsePlan::SparsePlan(const Problem& p, int64_t top_k, Element element, LoopOrder order,
                       const Device& device)
    : decode(is_decode(p, order, device.sms)) {
    static_cast<SparseCall&>(schedule) = sizes_of(p, top_k);
    if (decode) return;
    schedule.tile_queries = SparseSchedule::tile_queries_of(narrow(p.group_size()));
    tiles = count_tiles(p, schedule.tile_queries);
    const int64_t unions = tiles * p.kv_heads;
    const bool few = device.is_hopper() && unions <= kFewUnions * device.sms &&
                     sparse_union_teams(p.head_dim, p.block_size, element_bytes(element)) == 1;
    const bool alone =
        (few && schedule.tile_queries <= kFewTileQueries) || !has_kv_outer(p, device);
    schedule.least_sharing = least_sharing(p, top_k, element, order, schedule.tile_queries, alone);
    schedule.parts =
        few && !schedule.any_slots() ? union_parts(unions, top_k * p.block_size, device.sms) : 1;
    schedule.all_blocks = narrow(block_starts(p).back());

    int64_t chunk_tiles = tiles;
    if (schedule.any_slots())
        chunk_tiles = std::min(tiles, sparse_chunk_tiles(p.query_heads, p.group_size(), p.head_dim,
                                                         top_k, element_bytes(element)));
    const auto list_bytes = [&](int64_t chunks) {
        schedule.chunk_tiles = narrow(chunk_tiles);
        return SparseWorkspaceSize(schedule, chunks).list_bytes();
    };
    while (list_bytes(1) > kMostListBytes && chunk_tiles > 1)
        chunk_tiles = ceil_div(chunk_tiles, 2);
    chunks_at_once =
        std::min(sparse_scheduled_chunks(p.group_size()), ceil_div(tiles, chunk_tiles));
    while (list_bytes(chunks_at_once) > kMostListBytes && chunks_at_once > 1) --chunks_at_once;
    MSA_CHECK(schedule.parts == 1 || chunks_at_once == 1);  // slots are those of one chunk
}

}  // namespace msa::cuda
