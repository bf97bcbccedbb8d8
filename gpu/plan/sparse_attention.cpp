// SPDX-License-Identifier: MIT
#include "gpu/plan/sparse_attention.h"

#include <algorithm>
#include <vector>

#include "gpu/half_types.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/sparse_attention_decode_sm90.h"
#include "gpu/kernels/sparse_attention_sm80.h"
#include "gpu/kernels/transpose_values.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/padded_heads.h"
#include "gpu/plan/tuned.h"
#include "gpu/tensor_map.h"

namespace msa::cuda {
namespace {

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

void run_decode_sm90(const Call& call, const SparseCall& sizes, const AttentionInput& in,
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
        // Channels that padded heads do not have are out of bounds, hence 0.
        return tensor_map(in.q.data(), in.q.element(), p.queries(), p.query_heads, in.q.shape()[2],
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

void run_decode(const Call& call, const SparsePlan& plan, const AttentionInput& in,
                View<const int32_t, 3> ids, const AttentionOutput& to,
                const RankExchange* exchange) {
    SparseCall sizes = static_cast<const SparseCall&>(plan.schedule);
    sizes.ids = ids.data();
    sizes.visible = call.visible;
    if (call.device.is_hopper())
        run_decode_sm90(call, sizes, in, to, exchange);
    else
        run_decode_sm80(call, sizes, in, to);
}

/// Returns the marks [Nq Hkv] of rows to be computed again.
Tensor<int32_t, 1> run_tiles(const Call& call, const SparsePlan& plan, const AttentionInput& in,
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
    return marked;
}

/// A call on padded heads; `wide`: its problem for the kernels, as `plan`. Hopper's read keys where
/// they are. Behind a head's own channels they find those of the next head, which the zeros of q
/// multiply, and which only make channels of the output that it does not have. If they are not
/// finite, the rows are marked and computed again.
void run_padded(const Call& call, const Problem& wide, const SparsePlan& plan,
                const AttentionInput& in, View<const int32_t, 3> ids, const AttentionOutput& to) {
    AttentionInput padded = in;
    std::vector<PaddedRows> copies;
    WriteSet ahead = call.ahead;
    const auto pad = [&](const In<3>& rows) -> Out<3> {
        copies.emplace_back(call, rows, wide.head_dim);
        ahead.add(WriteSet(copies.back().view()));
        return copies.back().view();
    };
    const bool hopper = call.device.is_hopper();
    if (plan.decode || !hopper) padded.q = pad(in.q);
    if (!hopper) padded.k = pad(in.k), padded.v = pad(in.v);
    const PaddedRows out(call, in.q.shape(), to.out.element(), wide.head_dim);
    const CallNow now(call, in.k);
    Tensor<int32_t, 1> marked;
    if (plan.decode) {
        run_decode(with_problem(call, wide, ahead), plan, padded, ids, {out.view(), to.lse},
                   nullptr);
        marked = call.scratch<int32_t, 1>({wide.queries() * wide.kv_heads});
        out.copy_to(call, to.out, {to.lse, marked});
    } else {
        marked = run_tiles(with_problem(now, wide, ahead), plan, padded, ids, {out.view(), to.lse});
        out.copy_to(call, to.out);
    }
    attention_repair_any(now, in, ids, to, marked.data());
}

}  // namespace

void sparse_attention_tuned(const Call& call, const AttentionInput& in, View<const int32_t, 3> ids,
                            const AttentionOutput& to, LoopOrder order,
                            const RankExchange* exchange) {
    if (ids.size() == 0) return;
    const Problem wide = kernel_heads(call.problem);
    const SparsePlan plan(wide, ids.extent(2), in.q.element(), order, call.device);
    const bool padded = is_padded(call.problem);
    MSA_CHECK(exchange == nullptr || (plan.decode && !padded));
    if (padded) return run_padded(call, wide, plan, in, ids, to);
    if (plan.decode) return run_decode(call, plan, in, ids, to, exchange);
    const CallNow now(call, in.k);
    const Tensor<int32_t, 1> marked = run_tiles(now, plan, in, ids, to);
    attention_repair_any(now, in, ids, to, marked.data());
}

}  // namespace msa::cuda
