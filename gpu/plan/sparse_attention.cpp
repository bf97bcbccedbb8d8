// SPDX-License-Identifier: MIT
#include "gpu/plan/sparse_attention.h"

#include <algorithm>

#include "gpu/half_types.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/sparse_attention_decode_sm90.h"
#include "gpu/kernels/sparse_attention_sm80.h"
#include "gpu/kernels/transpose_values.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/tuned.h"
#include "gpu/tensor_map.h"

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

/// Scratch memory of a SparseWorkspace, kept until its kernels are queued.
struct AttentionMemory {
    Tensor<UnionBlock, 1> blocks;
    Tensor<int32_t, 1> block_counts, counts, use_ends, slots;
    Tensor<BlockUse, 1> uses;
    Tensor<KeyBlockItem, 1> items;
    Tensor<SparseRound, 1> rounds;
    Tensor<SparseChunkPlace, 1> places;
    Tensor<uint32_t, 1> in_slots;
    Tensor<char, 1> partial_out;
    Tensor<float, 1> partial_lse;

    AttentionMemory(const Call& call, const SparseWorkspaceSize& size, int64_t head_dim)
        : blocks(call.scratch<UnionBlock, 1>({size.blocks})),
          block_counts(call.scratch<int32_t, 1>({size.tile_groups})),
          counts(call.scratch<int32_t, 1>({size.counts})),
          use_ends(call.scratch<int32_t, 1>({size.ends})),
          slots(call.scratch<int32_t, 1>({size.tile_groups})),
          uses(call.scratch<BlockUse, 1>({size.uses})),
          items(call.scratch<KeyBlockItem, 1>({size.items})),
          rounds(call.scratch<SparseRound, 1>({size.chunks})),
          places(call.scratch<SparseChunkPlace, 1>({size.chunks})),
          in_slots(call.scratch<uint32_t, 1>({size.rows})),
          partial_out(call.scratch<char, 1>({size.slot_rows * head_dim * kHalfBytes})),
          partial_lse(call.scratch<float, 1>({size.slot_rows})) {}

    /// For this schedule, all of whose chunks or fewer it has.
    SparseWorkspace view(const SparseSchedule& of) {
        return {.blocks = blocks.data(),
                .block_counts = block_counts.data(),
                .use_counts = counts.data(),
                .slot_counts = counts.data() + of.chunks() * of.lists(),
                .use_ends = use_ends.data(),
                .uses = uses.data(),
                .items = items.data(),
                .rounds = rounds.data(),
                .places = places.data(),
                .in_slots = in_slots.data(),
                .slots = slots.data(),
                .partial_out = partial_out.data(),
                .partial_lse = partial_lse.data()};
    }
};

/// What both kinds of kernels are given of keys and values, for tiles of `keys`.
struct KeyMaps {
    KeyMap rows;
    CUtensorMap k, v;
    KeyMaps(const Call& call, const AttentionInput& in, int64_t keys)
        : rows(in.k, keys, key_starts(call.layout, in.k)),
          k(tensor_map(in.k, rows.box_rows(keys))),
          v(tensor_map(in.v, rows.box_rows(keys))) {}
};
int64_t step_keys(const Problem& p) {
    return is_wide(p.head_dim) ? int64_t{kSparseWideStepKeys} : p.block_size;
}

/// What is of e4m3 operands alone.
void add_scales(const Call& call, const AttentionInput& in, SparseCall& sizes) {
    if (in.q.element() != Element::e4m3) return;
    const Tensor<SequenceBlock, 1>& blocks = call.layout->key_blocks();
    sizes.scales = {DeviceScales(in.scales.q), DeviceScales(in.scales.k), DeviceScales(in.scales.v),
                    blocks.data(), blocks.size()};
}

/// Null where neither scales nor pages ask for a query's sequence.
const QueryTile* tile_of_query(const Call& call, const AttentionInput& in) {
    if (in.q.element() != Element::e4m3 && !in.k.paged()) return nullptr;
    return call.layout->tiles(1, TileOrder::by_query).device.data();
}

/// The values of e4m3 as tiles take them.
Tensor<char, 1> transposed_values(const Call& call, const AttentionInput& in,
                                  const SparseCall& sizes) {
    if (in.q.element() != Element::e4m3) return {};
    auto to = call.scratch<char, 1>({sizes.scales.block_count * sizes.groups *
                                     transposed_tile_bytes(sizes.head_dim, sizes.block_size)});
    check(launch_transpose_values(
              {sizes.scales.blocks, sizes.scales.block_count, in.v.data(), to.data()},
              sizes.head_dim, sizes.block_size, sizes.groups, call.stream()),
          "sparse_attention, values");
    return to;
}

void run_decode(const Call& call, const SparseCall& sizes, const AttentionInput& in,
                const AttentionOutput& to, const RankExchange* exchange) {
    const KeyMaps maps(call, in, step_keys(call.problem));
    SparseDecodeArgs args{};
    static_cast<SparseCall&>(args) = sizes;
    args.key_map = maps.rows;
    add_scales(call, in, args);
    args.q = in.q.data();
    args.q_settled = !call.ahead.writes(in.q) && !call.ahead.writes(in.scales.q);
    args.of_query = tile_of_query(call, in);
    args.k = maps.k;
    args.v = maps.v;
    args.scale = static_cast<float>(call.problem.softmax_scale());
    args.out = to.out.data();
    args.lse = to.lse.data();
    check(by_half_or_e4m3(in.q.element(),
                          [&]<typename T>() {
                              return launch_sparse_decode_sm90<T>(args, call.stream(), exchange);
                          }),
          "sparse_attention_sm90");
}

SparseOperands operands_of(const Problem& p, const AttentionInput& in, const AttentionOutput& to) {
    return {.q = in.q.data(),
            .k = in.k.data(),
            .v = in.v.data(),
            .keys = p.keys(),
            .scale = static_cast<float>(p.softmax_scale()),
            .out = to.out.data(),
            .lse = to.lse.data()};
}

void run_decode_sm80(const Call& call, const SparseCall& sizes, const AttentionInput& in,
                     const AttentionOutput& to) {
    SparsePartsArgs args{};
    static_cast<SparseCall&>(args) = sizes;
    static_cast<SparseOperands&>(args) = operands_of(call.problem, in, to);
    add_scales(call, in, args);
    args.of_query = tile_of_query(call, in);
    const int64_t rows =
        decode_part_count(sizes.queries, sizes.groups, sizes.group_size()) * kDecodeHeads;
    auto parts = call.scratch<float, 1>({rows * sizes.head_dim});
    auto sums = call.scratch<float, 1>({rows * 2});
    args.parts = parts.data();
    args.sums = reinterpret_cast<float2*>(sums.data());
    check(by_half_or_e4m3(
              in.q.element(),
              [&]<typename T>() { return launch_sparse_decode_sm80<T>(args, call.stream()); }),
          "sparse_attention_sm80");
}

/// What one schedule covers, round by round.
template <typename T>
void run_scheduled(const SparseSchedule& schedule, SparseTilesArgs& tiles, int sms,
                   cudaStream_t stream) {
    check(launch_sparse_schedule(schedule, false, stream), "sparse_attention_sm80, schedule");
    static_cast<SparseSchedule&>(tiles) = schedule;
    for (tiles.round = 0; tiles.round < schedule.most_rounds(); ++tiles.round) {
        if (schedule.any_slots())
            check(launch_sparse_kv_outer_sm80<T>(tiles, sms, stream),
                  "sparse_attention_sm80, KV-outer");
        check(launch_sparse_union_sm80<T>(tiles, sms, stream), "sparse_attention_sm80, unions");
    }
}
template <typename T>
void run_scheduled(const SparseSchedule& schedule, SparseKvOuterArgs& kv_outer,
                   SparseUnionArgs& tiles, const Device& device, cudaStream_t stream) {
    check(launch_sparse_schedule(schedule, device.begins_early(), stream),
          "sparse_attention_sm90, schedule");
    static_cast<SparseSchedule&>(kv_outer) = schedule;
    static_cast<SparseSchedule&>(tiles) = schedule;
    // Its blocks of 128 are then two boxes.
    if (is_wide(schedule.head_dim))
        kv_outer.key_map.halved = schedule.block_size > kSparseWideStepKeys;
    for (int round = 0; round < schedule.most_rounds(); ++round) {
        kv_outer.round = tiles.round = round;
        if (schedule.any_slots())
            check(launch_sparse_kv_outer_sm90<T>(kv_outer, device.sms, stream),
                  "sparse_attention_sm90, KV-outer");
        check(launch_sparse_union_sm90<T>(tiles, device.sms, stream),
              "sparse_attention_sm90, unions");
    }
}

/// The tiles' kernels in Hopper's own instructions, for each part of the call that `each_part` sets
/// `schedule` to.
template <typename EachPart>
void run_on_hopper(const Call& call, const AttentionInput& in, const AttentionOutput& to,
                   SparseSchedule& schedule, const EachPart& each_part) {
    const Problem& p = call.problem;
    const KeyMaps maps(call, in, step_keys(p));
    schedule.key_map = maps.rows;
    const auto q_map = [&](int64_t queries) {
        return tensor_map(in.q.data(), in.q.element(), p.queries(), p.query_heads, p.head_dim,
                          queries, p.group_size());
    };
    SparseKvOuterArgs kv_outer{};
    kv_outer.q = q_map(1);
    kv_outer.k = maps.k;
    kv_outer.v = maps.v;
    kv_outer.scale = static_cast<float>(p.softmax_scale());
    SparseUnionArgs by_tile{};
    by_tile.q = q_map(schedule.tile_queries);
    by_tile.k = maps.k;
    by_tile.v = maps.v;
    by_tile.scale = kv_outer.scale;
    by_tile.out = to.out.data();
    by_tile.lse = to.lse.data();
    each_part([&] {
        by_half_or_e4m3(in.q.element(), [&]<typename T>() {
            run_scheduled<T>(schedule, kv_outer, by_tile, call.device, call.stream());
        });
    });
}

void run_tiles(const Call& call, const SparsePlan& plan, const AttentionInput& in,
               View<const int32_t, 3> ids, const AttentionOutput& to) {
    const Problem& p = call.problem;
    SparseSchedule schedule = plan.schedule;
    const Tiles& tiles = call.layout->tiles(schedule.tile_queries, TileOrder::by_query);
    MSA_CHECK(tiles.device.size() == plan.tiles);
    AttentionMemory work(call, SparseWorkspaceSize(schedule, plan.chunks_at_once), p.head_dim);
    schedule.ids = ids.data();
    schedule.visible = call.visible;
    add_scales(call, in, schedule);
    const Tensor<char, 1> values = transposed_values(call, in, schedule);
    schedule.values = values.data();
    auto marked = call.scratch<int32_t, 1>({p.queries() * p.kv_heads});
    schedule.marked = marked.data();

    const int64_t step = plan.chunks_at_once * schedule.chunk_tiles;
    const auto each_part = [&](const auto& run) {
        for (int64_t begin = 0; begin < plan.tiles; begin += step) {
            schedule.tiles = tiles.device.data() + begin;
            schedule.tile_count = narrow(std::min(step, plan.tiles - begin));
            schedule.workspace = work.view(schedule);
            run();
        }
    };
    if (!call.device.is_hopper()) {
        SparseTilesArgs args{};
        static_cast<SparseOperands&>(args) = operands_of(p, in, to);
        each_part([&] {
            by_half_or_e4m3(in.q.element(), [&]<typename T>() {
                run_scheduled<T>(schedule, args, call.device.sms, call.stream());
            });
        });
    } else {
        run_on_hopper(call, in, to, schedule, each_part);
    }
    attention_repair_any(call, in, ids, to, marked.data());
}

}  // namespace

int64_t count_tiles(const Problem& p, int64_t tile_queries) {
    int64_t tiles = 0;
    const std::vector<int64_t>& ends = p.batch.cu_seqlens_q();
    for (size_t s = 0; s + 1 < ends.size(); ++s)
        tiles += ceil_div(ends[s + 1] - ends[s], tile_queries);
    return tiles;
}

Support takes_sparse_attention_tuned(const Device& device, const Problem& p,
                                     const SparseAttentionRequest& request, bool aligned) {
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
    if (e4m3 ? !is_tuned_width(p.head_dim) : !is_tuned_width(p.head_dim) && !wide)
        return not_tuned("the head dim", p.head_dim, !e4m3);
    if (!is_tuned_block(p.block_size)) return not_tuned_block(p.block_size);
    if ((e4m3 || wide) && !is_tuned_width(p.block_size))
        return not_tuned("the block size", p.block_size);
    if (request.order == LoopOrder::kv_outer && !has_kv_outer(p, device))
        return little_shared(device.shared_bytes,
                             sparse_kv_outer_bytes_sm80(p.head_dim, p.block_size));
    if (request.top_k > kMostSelected) return above("k", request.top_k, kMostSelected);
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

void sparse_attention_tuned(const Call& call, const AttentionInput& in, View<const int32_t, 3> ids,
                            const AttentionOutput& to, LoopOrder order,
                            const RankExchange* exchange) {
    if (ids.size() == 0) return;
    const SparsePlan plan(call.problem, ids.extent(2), in.q.element(), order, call.device);
    MSA_CHECK(exchange == nullptr || (plan.decode && is_half(in.q.element())));
    if (!plan.decode) return run_tiles(CallNow(call, in.k), plan, in, ids, to);
    SparseCall sizes = static_cast<const SparseCall&>(plan.schedule);
    sizes.ids = ids.data();
    sizes.visible = call.visible;
    if (call.device.is_hopper())
        run_decode(call, sizes, in, to, exchange);
    else
        run_decode_sm80(call, sizes, in, to);
}

}  // namespace msa::cuda
