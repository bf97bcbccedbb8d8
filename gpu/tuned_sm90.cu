// SPDX-License-Identifier: MIT
// The host side of the tuned kernels: whether they fit, tiles, tensor maps, scratch memory, pieces.
#include <algorithm>
#include <vector>

#include "gpu/kernels/block_mass_sm90.h"
#include "gpu/kernels/index_select_sm90.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/select_blocks_sm90.h"
#include "gpu/kernels/sparse_attention_sm90.h"
#include "gpu/layout.h"
#include "gpu/tensor_map.h"
#include "gpu/tuned_sm90.h"

namespace msa::cuda {
namespace {

constexpr int64_t kMostSelected = 32;  // a list is one value per lane

bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }
bool is_tuned_width(int64_t width) { return width == 64 || width == 128; }
int narrow(int64_t x) { return static_cast<int>(x); }

int64_t most_queries_of_a_sequence(const Problem& p) {
    int64_t most = 0;
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_q().size(); ++s)
        most = std::max(most, p.batch.cu_seqlens_q()[s + 1] - p.batch.cu_seqlens_q()[s]);
    return most;
}

template <typename View>
bool is_tuned_operand(const View& view, Element element = Element::bf16) {
    return view.element() == element && is_aligned(view.data());
}

/// Multiprocessors of the current device.
int processors() {
    int device = 0, count = 0;
    check(cudaGetDevice(&device), "asking for the device");
    check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
          "asking for the multiprocessors");
    return count;
}

}  // namespace

bool select_blocks_sm90(const Call& call, const SelectionRule& rule, View<const float, 3> scores,
                        View<int32_t, 3> ids) {
    const Problem& p = call.problem;
    if (rule.top_k > kMostSelected) return false;
    if (ids.size() == 0) return true;
    launch_select_blocks_sm90(
        {scores.data(), call.visible, p.queries() * p.kv_heads, narrow(p.kv_heads),
         narrow(p.blocks()), narrow(p.block_size), DeviceRule(rule), ids.data()},
        call.stream());
    check_launch("select_blocks_sm90");
    return true;
}

bool index_select_sm90(const Call& call, const SelectionRule& rule, const IndexInput& in,
                       View<int32_t, 3> ids) {
    const Problem& p = call.problem;
    const Element element = in.index_q.element();
    if (!is_tuned_operand(in.index_q, element == Element::e4m3 ? element : Element::bf16) ||
        !is_aligned(in.index_k.data()) || !is_tuned_width(p.index_dim) ||
        !is_tuned_width(p.block_size) || rule.top_k > kMostSelected || p.kv_heads > kIndexFewRows ||
        p.index_scale() <= 0)
        return false;
    if (ids.size() == 0 || p.keys() == 0) return ids.size() == 0;

    const bool few = most_queries_of_a_sequence(p) * p.kv_heads <= kIndexFewRows;
    const Tiles& tiles = call.layout->tiles((few ? kIndexFewRows : kIndexTileRows) / p.kv_heads,
                                            TileOrder::longest_first);
    // Enough thread blocks to fill the chip, of at least a few tiles of keys each and alike.
    constexpr int64_t kLeastTiles = 2048 / kIndexTileKeys;
    const int64_t wanted = std::min<int64_t>(
        ceil_div((few ? 2 : 1) * processors(), tiles.device.size()), kMostIndexSplits);
    const int64_t key_tiles = ceil_div(tiles.host.front().most_visible, kIndexTileKeys);
    const int64_t splits = std::max<int64_t>(
        1, ceil_div(key_tiles, std::max(ceil_div(key_tiles, wanted), kLeastTiles)));
    const auto partial = call.scratch<int64_t, 1>(
        {splits > 1 ? ids.extent(0) * ids.extent(1) * splits * (kMostSelected + 1) : 0});
    const IndexSelectArgs args{
        in.index_q.data(),
        tensor_map(in.index_k.data(), element, p.keys(), p.index_dim, kIndexTileKeys),
        !call.ahead.writes(in.index_k),
        narrow(element_bytes(element)),
        narrow(p.index_dim),
        tiles.device.data(),
        narrow(tiles.device.size()),
        few,
        call.visible,
        p.queries(),
        narrow(p.kv_heads),
        narrow(p.block_size),
        static_cast<float>(p.index_scale()),
        DeviceRule(rule),
        narrow(splits),
        reinterpret_cast<uint64_t*>(const_cast<int64_t*>(partial.data())),
        ids.data()};
    check(launch_index_select_sm90(args, call.stream()), "index_select_sm90");
    return true;
}

bool block_mass_sm90(const Call& call, In<3> q, In<3> k, const BlockMassOutput& to) {
    const Problem& p = call.problem;
    if (!is_tuned_operand(q) || !is_tuned_operand(k) || !is_tuned_width(p.head_dim) ||
        !is_tuned_width(p.block_size) || p.group_size() > kIndexTileRows || to.max_logit ||
        p.softmax_scale() <= 0)
        return false;
    if (to.mass.size() == 0) return true;

    const int64_t tile_queries = kIndexTileRows / p.group_size();
    const std::vector<QueryTile>& tiles =
        call.layout->tiles(tile_queries, TileOrder::by_query).host;
    const auto longest_first = [&](size_t begin, size_t end) {
        std::vector<QueryTile> piece(tiles.begin() + static_cast<int64_t>(begin),
                                     tiles.begin() + static_cast<int64_t>(end));
        sort_longest_first(piece);
        return call.upload(piece);
    };
    // Scratch memory of about half a gigabyte, whole waves of thread blocks.
    constexpr int64_t kScratchFloats = int64_t{1} << 27;
    const int64_t fitting = kScratchFloats / (p.query_heads * p.blocks() * tile_queries);
    const int64_t waves = std::max<int64_t>(1, fitting * p.kv_heads / processors());
    const auto step = static_cast<size_t>(std::max<int64_t>(1, waves * processors() / p.kv_heads));
    const CUtensorMap k_map =
        tensor_map(k.data(), Element::bf16, p.keys(), p.kv_heads * p.head_dim, kIndexTileKeys);
    const int64_t most = std::min(static_cast<int64_t>(step) * tile_queries, p.queries());
    const auto block_lse = call.scratch<float, 1>({most * p.query_heads * p.blocks()});
    for (size_t begin = 0; begin < tiles.size(); begin += step) {
        const size_t end = std::min(begin + step, tiles.size());
        const auto piece = longest_first(begin, end);
        const int64_t first = tiles[begin].query;
        const int64_t queries = tiles[end - 1].query + tiles[end - 1].queries - first;
        const BlockMassArgs args{q.data(),
                                 k_map,
                                 narrow(p.head_dim),
                                 piece.data(),
                                 narrow(piece.size()),
                                 call.visible,
                                 first,
                                 queries,
                                 narrow(p.query_heads),
                                 narrow(p.kv_heads),
                                 narrow(p.blocks()),
                                 narrow(p.block_size),
                                 static_cast<float>(p.softmax_scale()),
                                 const_cast<float*>(block_lse.data()),
                                 to.mass[first].data()};
        check(launch_block_mass_sm90(args, call.stream()), "block_mass_sm90");
    }
    return true;
}

namespace {

/// Blocks that this many of a tile's queries share are walked as a union.
int least_sharing(LoopOrder order, int heads) {
    const int never = SparseArgs::tile_queries_of(heads) + 1;
    switch (order) {
        case LoopOrder::q_outer: return 1;
        case LoopOrder::kv_outer: return never;
        case LoopOrder::automatic: break;
    }
    return narrow(sparse_least_sharing(heads));
}

/// Scratch memory of `chunks` chunks of tiles, kept until their kernels are queued.
struct Workspace {
    Tensor<UnionBlock, 1> blocks;
    Tensor<int32_t, 1> block_counts, use_counts, use_ends, item_count;
    Tensor<BlockUse, 1> uses;
    Tensor<KeyBlockItem, 1> items;
    Tensor<uint32_t, 1> in_slots;
    Tensor<char, 1> partial_out;
    Tensor<float, 1> partial_lse;

    Workspace(const Call& call, const SparseArgs& args, int64_t chunks) {
        const int64_t tile_groups = int64_t{args.chunk_tiles} * args.groups;
        const int64_t lists = int64_t{args.groups} * args.all_blocks;
        const int64_t uses_at_most = args.any_slots() ? args.chunk_rows() * args.top_k : 0;
        const int64_t partial_rows =
            args.any_slots() ? args.slot_row(args.chunk_tiles, 0, 0) : int64_t{0};
        blocks =
            call.scratch<UnionBlock, 1>({chunks * tile_groups * args.top_k * args.tile_queries});
        block_counts = call.scratch<int32_t, 1>({chunks * tile_groups});
        use_counts = call.scratch<int32_t, 1>({chunks * lists});
        use_ends = call.scratch<int32_t, 1>({chunks * lists});
        item_count = call.scratch<int32_t, 1>({chunks});
        uses = call.scratch<BlockUse, 1>({chunks * uses_at_most});
        items = call.scratch<KeyBlockItem, 1>({args.any_slots() ? chunks * args.most_items() : 0});
        in_slots = call.scratch<uint32_t, 1>({chunks * args.chunk_rows()});
        partial_out =
            call.scratch<char, 1>({partial_rows * args.head_dim * element_bytes(Element::bf16)});
        partial_lse = call.scratch<float, 1>({partial_rows});
    }
    SparseWorkspace view() {
        return {blocks.data(),      block_counts.data(), use_counts.data(), use_ends.data(),
                uses.data(),        items.data(),        item_count.data(), in_slots.data(),
                partial_out.data(), partial_lse.data()};
    }
};

}  // namespace

bool sparse_attention_sm90(const Call& call, const AttentionInput& in, View<const int32_t, 3> ids,
                           const AttentionOutput& to, LoopOrder order) {
    const Problem& p = call.problem;
    const int heads = narrow(p.group_size());
    const int64_t top_k = ids.extent(2);
    if (!is_tuned_operand(in.q) || !is_tuned_operand(in.k) || !is_tuned_operand(in.v) ||
        to.out.element() != Element::bf16 || !is_aligned(to.out.data()) ||
        !is_tuned_width(p.head_dim) || !is_tuned_width(p.block_size) || top_k > kMostSelected ||
        p.softmax_scale() <= 0)
        return false;
    if (ids.size() == 0 || p.keys() == 0) return ids.size() == 0;

    SparseArgs args{};
    args.q = in.q.data();
    args.q_settled = !call.ahead.writes(in.q);
    const int64_t key_width = p.kv_heads * p.head_dim;
    args.k = tensor_map(in.k.data(), Element::bf16, p.keys(), key_width, p.block_size);
    args.v = tensor_map(in.v.data(), Element::bf16, p.keys(), key_width, p.block_size);
    args.ids = ids.data();
    args.visible = call.visible;
    args.queries = p.queries();
    args.query_heads = narrow(p.query_heads);
    args.groups = narrow(p.kv_heads);
    args.head_dim = narrow(p.head_dim);
    args.block_size = narrow(p.block_size);
    args.top_k = narrow(top_k);
    args.scale = static_cast<float>(p.softmax_scale());
    args.out = to.out.data();
    args.lse = to.lse.data();
    // A query alone in its sequence would leave most rows of a tile empty.
    const int64_t most_queries = most_queries_of_a_sequence(p);
    const int waves = most_queries == 1 ? 16 : 4;
    if (order == LoopOrder::automatic && few_blocks(args) <= waves * processors()) {
        check(launch_sparse_few_sm90(args, call.stream()), "sparse_attention_sm90");
        return true;
    }
    if (heads > kSparseMostHeads) return false;
    const int64_t per_tile = args.tile_queries = SparseArgs::tile_queries_of(heads);
    const Tiles& tiles = call.layout->tiles(per_tile, TileOrder::by_query);
    // Where a tile holds all queries of a sequence, no other tile reads its blocks.
    const bool alone = order == LoopOrder::automatic && most_queries <= per_tile;
    const int sharing = alone ? 1 : least_sharing(order, heads);
    const bool slots = sharing > 1;
    // Slots of at most two gigabytes at a time: four times as many are no faster. The schedule of
    // some chunks at once, which would be too little work alone.
    const int64_t most_chunks = std::min<int64_t>(16, 4 * heads);  // small groups have many uses
    const int64_t at_once = slots ? sparse_chunk_tiles(p.query_heads, heads, p.head_dim, top_k,
                                                       element_bytes(Element::bf16))
                                  : ceil_div(p.queries(), per_tile);
    args.chunk_tiles = narrow(std::min(at_once, tiles.device.size()));
    args.all_blocks = narrow(block_starts(p).back());
    args.least_sharing = sharing;
    const int64_t chunks = std::min(most_chunks, ceil_div(tiles.device.size(), args.chunk_tiles));
    Workspace work(call, args, chunks);
    args.workspace = work.view();
    args.q_tile = tensor_map(in.q.data(), Element::bf16, p.queries(), p.query_heads, p.head_dim,
                             per_tile, heads);
    args.q_one =
        tensor_map(in.q.data(), Element::bf16, p.queries(), p.query_heads, p.head_dim, 1, heads);
    auto marked = call.scratch<int32_t, 1>({p.queries() * p.kv_heads});
    args.marked = marked.data();
    check(cudaMemsetAsync(args.marked, 0, sizeof(int32_t) * static_cast<size_t>(marked.size()),
                          call.stream()),
          "clearing memory");
    const int64_t step = chunks * args.chunk_tiles;
    for (int64_t begin = 0; begin < tiles.device.size(); begin += step) {
        args.tiles = tiles.device.data() + begin;
        args.tile_count = narrow(std::min(step, tiles.device.size() - begin));
        check(launch_sparse_attention_sm90(args, processors(), call.stream()),
              "sparse_attention_sm90");
    }
    sparse_attention_repair_any(call, in, ids, to, args.marked);
    return true;
}

}  // namespace msa::cuda
