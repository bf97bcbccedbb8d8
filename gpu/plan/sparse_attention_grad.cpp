// SPDX-License-Identifier: MIT
#include "gpu/plan/sparse_attention_grad.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gpu/half_types.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/sparse_attention_grad_sm80.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/padded_heads.h"
#include "gpu/plan/sparse_attention.h"
#include "gpu/plan/tuned.h"
#include "gpu/tensor_map.h"

namespace msa::cuda {
namespace {

static_assert(sizeof(GradUse) == kGradUseBytes);
static_assert(kGradTileQueries % kGradStepQueries == 0);

/// Scratch memory of a GradWorkspace, kept until its kernels are queued.
struct GradMemory {
    Tensor<float, 1> lse, delta, parts, d_k, d_v;
    Tensor<int32_t, 1> starts, bins;
    Tensor<GradCounts, 1> counts;
    Tensor<GradUse, 1> uses;
    Tensor<GradItem, 1> found, items;
    Tensor<GradSplit, 1> splits;
    Tensor<char, 1> slots;
    Tensor<uint32_t, 1> largest;
    Tensor<float, 1> unit;

    GradMemory(const Call& call, const SparseGradArgs& a)
        : lse(call.scratch<float, 1>({a.queries * a.query_heads + 1})),
          delta(call.scratch<float, 1>({a.queries * a.query_heads + 1})),
          parts(call.scratch<float, 1>(
              {a.most_parts() * 2 * sparse_grad_tile_keys(a.block_size) * a.head_dim})),
          d_k(call.scratch<float, 1>({a.keys * a.groups * a.head_dim})),
          d_v(call.scratch<float, 1>({a.keys * a.groups * a.head_dim})),
          starts(call.scratch<int32_t, 1>({int64_t{a.batch_chunks} * a.chunk_tiles * a.lists()})),
          bins(call.scratch<int32_t, 1>({int64_t{a.batch_chunks} * a.chunk_tiles * a.groups})),
          counts(call.scratch<GradCounts, 1>({a.batch_chunks})),
          uses(call.scratch<GradUse, 1>({a.batch_chunks * a.most_uses()})),
          found(call.scratch<GradItem, 1>({a.batch_chunks * a.most_items()})),
          items(call.scratch<GradItem, 1>({a.batch_chunks * a.most_items()})),
          splits(call.scratch<GradSplit, 1>({a.batch_chunks * a.most_splits()})),
          slots(call.scratch<char, 1>({a.slot_buffers() * a.slot_bytes()})),
          largest(call.scratch<uint32_t, 1>({3})),
          unit(call.scratch<float, 1>({2})) {}

    GradWorkspace view() {
        return {.lse = lse.data(),
                .delta = delta.data(),
                .starts = starts.data(),
                .bins = bins.data(),
                .uses = uses.data(),
                .found = found.data(),
                .items = items.data(),
                .counts = counts.data(),
                .splits = splits.data(),
                .slots = slots.data(),
                .parts = parts.data(),
                .d_k = d_k.data(),
                .d_v = d_v.data(),
                .largest = largest.data(),
                .unit = unit.data()};
    }
};

/// How the TMA unit sees the operands.
void bind_maps(SparseGradArgs& args, const Problem& p, const AttentionInput& in,
               const AttentionSaved& saved) {
    const auto rows = [&](const void* data) {
        return tensor_map(data, in.q.element(), p.queries(), p.query_heads, p.head_dim, 1,
                          p.group_size());
    };
    const auto keys = [&](const void* data) {
        return tensor_map(data, in.q.element(), p.keys(), p.kv_heads * p.head_dim,
                          sparse_grad_tile_keys(args.block_size));
    };
    args.q_one = rows(in.q.data());
    args.d_out_one = rows(saved.d_out.data());
    args.k = keys(in.k.data());
    args.v = keys(in.v.data());
}

void bind(SparseGradArgs& args, const AttentionInput& in, View<const int32_t, 3> ids,
          const AttentionSaved& saved, const AttentionGradient& to) {
    args.q = in.q.data();
    args.out = saved.out.data();
    args.d_out = saved.d_out.data();
    args.all_k = in.k.data();
    args.all_v = in.v.data();
    args.lse = saved.lse.data();
    args.ids = ids.data();
    args.d_q = to.d_q.data();
    args.d_k = to.d_k.data();
    args.d_v = to.d_v.data();
    args.d_q_is_float = to.d_q.element() == Element::f32;
    args.d_k_is_float = to.d_k.element() == Element::f32;
    args.d_v_is_float = to.d_v.element() == Element::f32;
}

/// Have steps of the kernels of compute capability 8.0 half as many rows? So they have with 256
/// channels, and where there is too little shared memory for whole ones.
bool takes_small_steps(const Device& device, const Problem& p) {
    if (device.is_hopper()) return false;
    const int keys = sparse_grad_tile_keys(narrow(p.block_size));
    return is_wide(p.head_dim) || device.shared_bytes < grad_shared_sm80(narrow(p.head_dim), keys);
}
constexpr int kWideTile = 64;  // keys
bool takes_halves(const Problem& p) { return is_wide(p.head_dim) && p.block_size > kWideTile; }

/// The ids of a problem in blocks of twice the size, as those of the call's.
Tensor<int32_t, 3> halves_of(const Call& call, View<const int32_t, 3> ids) {
    auto halves = call.scratch<int32_t, 3>({ids.extent(0), ids.extent(1), 2 * ids.extent(2)});
    check(launch_halves(ids.data(), call.visible, ids.extent(0) * ids.extent(1),
                        narrow(ids.extent(1)), narrow(ids.extent(2)),
                        narrow(call.problem.block_size), halves.data(), call.stream()),
          "sparse_attention_grad, halves of blocks");
    return halves;
}

/// On copies of all operands; channels that a head does not have get no gradient.
void run_padded(const Call& call, const Problem& asked, const AttentionInput& in,
                View<const int32_t, 3> ids, const AttentionSaved& saved,
                const AttentionGradient& to) {
    const int64_t width = call.problem.head_dim;
    const PaddedRows q(call, in.q, width), k(call, in.k, width), v(call, in.v, width),
        out(call, saved.out, width), d_out(call, saved.d_out, width);
    const auto result = [&](const Out<3>& of) {
        return PaddedRows(call, of.shape(), of.element(), width);
    };
    const PaddedRows d_q = result(to.d_q), d_k = result(to.d_k), d_v = result(to.d_v);
    AttentionInput padded = in;
    padded.q = q.view(), padded.k = k.view(), padded.v = v.view();
    AttentionSaved padded_saved = saved;
    padded_saved.out = out.view(), padded_saved.d_out = d_out.view();
    sparse_attention_grad_tuned(call, kernel_heads(asked), padded, ids, padded_saved,
                                {d_q.view(), d_k.view(), d_v.view(), to.d_sinks});
    d_q.copy_to(call, to.d_q);
    d_k.copy_to(call, to.d_k);
    d_v.copy_to(call, to.d_v);
}

}  // namespace

Support takes_sparse_attention_grad_tuned(const Device& device, const Problem& asked,
                                          const SparseAttentionGradRequest& request, bool aligned) {
    const Problem p = kernel_heads(asked);
    if (request.order == LoopOrder::q_outer)
        return Support::no("it has no kernel for one query at a time");
    if (request.order == LoopOrder::tile_union)
        return Support::no("it has no kernel for unions of blocks");
    if (!is_half(request.element)) return not_element(request.element, "bf16 or f16");
    if (request.saved != request.element)
        return not_element(request.saved, to_string(request.element));
    if (!aligned) return not_aligned();
    if (!is_tuned_width(p.head_dim) && !is_wide(p.head_dim)) return not_kernel_head(asked.head_dim);
    if (!is_tuned_block(p.block_size)) return not_tuned_block(p.block_size);
    const int64_t most = takes_halves(p) ? kMostSelected / 2 : kMostSelected;
    if (request.top_k > most) return above("k", request.top_k, most);
    if (p.group_size() > kGradStepRows) return above("G", p.group_size(), kGradStepRows);
    if (p.softmax_scale() <= 0) return Support::no("the softmax scale is not positive");
    if (takes_small_steps(device, p) && p.group_size() > kGradSmallRows)
        return above("G", p.group_size(), kGradSmallRows);
    const int least =
        is_wide(p.head_dim) ? grad_shared_sm80(narrow(p.head_dim), kWideTile) : kLeastShared;
    if (!device.is_hopper() && device.shared_bytes < least)
        return little_shared(device.shared_bytes, least);
    if (p.queries() == 0 || p.keys() == 0) return Support::no("there are no queries or no keys");
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (p.queries() * p.query_heads >= kMost)
        return above("Nq Hq", p.queries() * p.query_heads, kMost - 1);
    if (p.keys() > kMost) return above("Nk", p.keys(), kMost);
    return {};
}

SparseGradPlan::SparseGradPlan(const Problem& p, int64_t top_k) {
    sizes.queries = p.queries();
    sizes.keys = p.keys();
    sizes.query_heads = narrow(p.query_heads);
    sizes.groups = narrow(p.kv_heads);
    sizes.head_dim = narrow(p.head_dim);
    sizes.block_size = narrow(p.block_size);
    sizes.top_k = narrow(top_k);
    sizes.scale = static_cast<float>(p.softmax_scale());
    sizes.derive();
    sizes.all_blocks = narrow(block_starts(p).back());
    sizes.tile_count = narrow(count_tiles(p, kGradTileQueries));
    const int64_t queries =
        sparse_grad_chunk_queries(p.queries(), p.query_heads, p.head_dim, top_k);
    sizes.chunk_tiles = std::min(sizes.tile_count, narrow(queries / kGradTileQueries));
    // Of the chunk as wanted, also where the lists' bound leaves less of it.
    sizes.item_uses = narrow(sparse_grad_item_uses(sizes.most_uses(), p.group_size()));
    sizes.batch_chunks = 1;
    while (list_bytes() > kMostListBytes && sizes.chunk_tiles > 1)
        sizes.chunk_tiles = (sizes.chunk_tiles + 1) / 2;
    sizes.batch_chunks = std::min(16, sizes.chunks());
    while (list_bytes() > kMostListBytes && sizes.batch_chunks > 1) --sizes.batch_chunks;
}

int64_t SparseGradPlan::list_bytes() const {
    const auto bytes = [](int64_t count, size_t each) {
        return count * static_cast<int64_t>(each);
    };
    const int64_t tiles = sizes.chunk_tiles;
    return sizes.batch_chunks *
           (bytes(tiles * (sizes.lists() + sizes.groups), sizeof(int32_t)) +
            bytes(1, sizeof(GradCounts)) + bytes(sizes.most_uses(), sizeof(GradUse)) +
            bytes(2 * sizes.most_items(), sizeof(GradItem)) +
            bytes(sizes.most_splits(), sizeof(GradSplit)));
}

Problem grad_problem(const Problem& asked) {
    Problem p = kernel_heads(asked);
    if (takes_halves(p)) p.block_size /= 2;
    return p;
}

void sparse_attention_grad_tuned(const Call& call, const Problem& asked, const AttentionInput& in,
                                 View<const int32_t, 3> asked_ids, const AttentionSaved& saved,
                                 const AttentionGradient& to) {
    if (is_padded(asked)) return run_padded(call, asked, in, asked_ids, saved, to);
    const Problem& p = call.problem;
    Tensor<int32_t, 3> halves;
    if (p.block_size != asked.block_size) halves = halves_of(call, asked_ids);
    const View<const int32_t, 3> ids =
        halves.data() != nullptr ? std::as_const(halves).view() : asked_ids;
    SparseGradArgs args = SparseGradPlan(p, ids.extent(2)).sizes;
    const auto& tiles = call.layout->tiles(kGradTileQueries, TileOrder::by_query).device;
    const auto& blocks = call.layout->key_blocks();
    MSA_CHECK(tiles.size() == args.tile_count && blocks.size() == args.all_blocks);
    GradMemory work(call, args);
    args.workspace = work.view();
    args.tiles = tiles.data();
    args.key_blocks = blocks.data();
    args.visible = call.visible;
    bind(args, in, ids, saved, to);
    const bool hopper = call.device.is_hopper(), small = takes_small_steps(call.device, p);
    if (hopper) bind_maps(args, p, in, saved);
    if (small) args.step_queries = std::min(kGradSmallRows / args.group_size, kGradStepQueries);
    const int64_t rows = p.queries() * p.kv_heads, lists = args.lists();
    auto marked = call.scratch<int32_t, 1>({rows + lists});
    check(cudaMemsetAsync(marked.data(), 0, sizeof(int32_t) * static_cast<size_t>(marked.size()),
                          call.stream()),
          "clearing memory");
    args.marked_rows = marked.data();
    args.marked_blocks = marked.data() + rows;
    check(by_half(in.q.element(),
                  [&]<typename T>() {
                      return hopper ? launch_sparse_attention_grad_sm90<T>(args, call.device.sms,
                                                                           call.stream())
                                    : launch_sparse_attention_grad_sm80<T>(
                                          args, !small, call.device.sms, call.stream());
                  }),
          hopper ? "sparse_attention_grad_sm90" : "sparse_attention_grad_sm80");
    sink_gradient(call, in.sinks, saved.lse.data(), work.delta.data(), to.d_sinks);
    sparse_attention_grad_repair_any(call, in, ids, saved, to, work.delta.data(),
                                     {args.marked_rows, args.marked_blocks});
}

}  // namespace msa::cuda
