// SPDX-License-Identifier: MIT
// index_select on tensor cores: tiles of queries, and how many parts the keys are split into, so
// that few queries fill the chip.
#include <algorithm>

#include "gpu/half_types.h"
#include "gpu/kernels/index_select_sm80.h"
#include "gpu/kernels/index_select_sm90.h"
#include "gpu/kernels/select_blocks_warp.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/padded_heads.h"
#include "gpu/plan/tuned.h"
#include "gpu/tensor_map.h"

namespace msa::cuda {
namespace {

constexpr int64_t kLongPart = 2048;  // keys that are worth a list in a decode

// What is written in place of lists: rows that a warp reads in at most two pieces, in all no more
// than the scratch memory that stays between calls, which L2 holds.
constexpr int64_t kMostScoredBlocks = 2048, kMostScoredBytes = 15 << 20;

/// Parts for as many thread blocks as the chip holds, of at least a few tiles of keys each.
TileCut cut_of(const Device& device, bool decode, bool scored, int64_t least_parts = 1) {
    return {.thread_blocks = (decode ? int64_t{2} : 1) * device.sms,
            .least_keys = (decode && !scored) || least_parts > 1 ? kLongPart : 512,
            .most_parts = kMostIndexParts,
            .least_parts = least_parts};
}

/// Few queries, or drafts, of each sequence.
bool is_decode(const Problem& p) {
    return p.batch.longest_queries() * p.kv_heads <= kIndexDecodeRows;
}

/// No call on Hopper has more tiles.
int64_t most_tiles(const Problem& p) {
    return p.sequences() + (is_decode(p) ? 0 : p.queries() / (kIndexPrefillRows / p.kv_heads));
}

/// What both kernels take.
Support takes_sizes(const Problem& p, const IndexSelectRequest& request, bool aligned) {
    if (!aligned) return not_aligned();
    if (!is_tuned_block(p.block_size)) return not_tuned_block(p.block_size);
    if (request.top_k > kMostSelected) return above("k", request.top_k, kMostSelected);
    if (p.kv_heads > kIndexDecodeRows) return above("Hkv", p.kv_heads, kIndexDecodeRows);
    if (p.index_scale() <= 0) return Support::no("the index scale is not positive");
    if (p.keys() == 0 && p.queries() > 0) return Support::no("there are no keys");
    return {};
}

/// Of index_q and index_k, as a kernel takes them.
int64_t row_bytes(const Problem& p, const IndexInput& in) {
    return kernel_head_dim(p.index_dim) * element_bytes(in.index_k.element());
}

/// Row length of scores, in whole merges of a warp.
int64_t score_pitch(const Problem& p) {
    return ceil_div(p.blocks(), kIndexMergeBlocks) * kIndexMergeBlocks;
}

int64_t score_count(const Problem& p) { return p.queries() * p.kv_heads * score_pitch(p); }

/// Whether writing scores, which are then selected from, takes less than merging lists of parts.
bool has_few_scores(const Problem& p) {
    return p.blocks() <= kMostScoredBlocks &&
           score_count(p) * int64_t{sizeof(float)} <= kMostScoredBytes;
}

/// How the tiles of a call are cut, and memory for the lists of their parts or for scores.
struct IndexPlan {
    bool decode;
    const TilePart* parts = nullptr;  // null: the device cuts
    CutNow now;
    Tensor<PartNow, 1> found;
    int64_t part_count = 0, list_count = 0;  // or the most that there may be
    int most_parts = 1;                      // of a tile, likewise
    const QueryParts* of_query = nullptr;
    Tensor<QueryParts, 1> of_query_now;
    Tensor<int32_t, 1> seen_now;
    Tensor<int64_t, 1> partial;
    Tensor<float, 1> scores;

    /// Without memory for results of parts, which are to be scores or lists.
    IndexPlan(const Call& call, const IndexInput& in, int prefill_rows, bool scored,
              int64_t least_parts = 1)
        : decode(is_decode(call.problem)) {
        const int64_t rows = (decode ? kIndexDecodeRows : prefill_rows) / call.problem.kv_heads;
        const TileCut cut = cut_of(call.device, decode, scored, least_parts);
        if (in.index_k.seqused_k()) {
            cut_on_device(call, call.layout->tiles(rows, TileOrder::by_query), cut);
        } else {
            const PartsOfTiles& tiles = call.layout->parts(rows, cut);
            parts = tiles.parts.data();
            part_count = tiles.parts.size();
            list_count = tiles.all;
            most_parts = tiles.most;
            of_query = tiles.of_query.data();
        }
    }

    void make_room(const Call& call, bool scored) {
        const int64_t list = call.problem.kv_heads * (kMostSelected + 1);
        if (scored) scores = call.scratch<float, 1>({score_count(call.problem)});
        if (!scored) partial = call.scratch<int64_t, 1>({list_count * list});
    }

    /// By what lengths up to those of `tiles` can lead to.
    void cut_on_device(const Call& call, const Tiles& tiles, const TileCut& cut) {
        MSA_CHECK(cut.least_parts == 1);
        int most_queries = 0;
        for (const QueryTile& tile : tiles.host)
            most_queries = std::max(most_queries, tile.queries);
        of_query_now = call.scratch<QueryParts, 1>({call.problem.queries()});
        seen_now = call.scratch<int32_t, 1>({call.problem.queries()});
        of_query = of_query_now.data();
        now = {.tiles = tiles.device.data(),
               .tile_count = narrow(tiles.device.size()),
               .thread_blocks = narrow(cut.thread_blocks),
               .least_keys = narrow(cut.least_keys),
               .most_parts = narrow(std::min(cut.most_parts, cut.thread_blocks)),
               .most_queries = most_queries,
               .of_query = of_query_now.data(),
               .seen = seen_now.data()};
        for (const QueryTile& tile : tiles.host) {
            const int most = parts_of(tile.most_visible, now.least_keys, true, now.most_parts);
            most_parts = std::max(most_parts, most);
            part_count += most;
        }
        // Each tile has at least one, and those of more than one share what the chip holds.
        part_count = std::min(part_count, cut.thread_blocks + now.tile_count);
        if (most_parts > 1) list_count = std::min(part_count, cut.thread_blocks) * most_queries;
        if (decode) return;
        found = call.scratch<PartNow, 1>({part_count});
        now.found = found.data();
    }

    IndexSelectArgs args(const Call& call, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids) {
        const Problem& p = call.problem;
        IndexSelectArgs to{};
        to.index_q = in.index_q.data();
        to.all_keys = in.index_k.data();
        to.keys = p.keys();
        to.index_dim = narrow(p.index_dim);
        to.parts = parts;
        to.part_count = narrow(part_count);
        to.decode = decode;
        to.visible = call.visible;
        to.queries = p.queries();
        to.groups = narrow(p.kv_heads);
        to.block_size = narrow(p.block_size);
        to.scale = static_cast<float>(p.index_scale());
        to.q_scales = DeviceScales(in.scales.q);
        to.k_scales = DeviceScales(in.scales.k);
        to.rule = DeviceRule(rule);
        to.most_parts = most_parts;
        to.of_query = of_query;
        to.now = now;
        to.partial = reinterpret_cast<uint64_t*>(partial.data());
        to.scores = {scores.data(), score_pitch(p)};
        to.ids = ids.data();
        return to;
    }
};

}  // namespace

Support takes_index_select_sm90(const Device& device, const Problem& p,
                                const IndexSelectRequest& request, bool aligned) {
    if (!device.is_hopper()) return not_hopper();
    if (!is_half(request.element) && request.element != Element::e4m3 &&
        request.element != Element::int8)
        return not_element(request.element, "bf16, f16, e4m3 or int8");
    const int64_t width = kernel_head_dim(p.index_dim), step = 16 / element_bytes(request.element);
    if ((!is_tuned_width(width) && !is_wide(width)) || p.index_dim % step != 0)
        return Support::no(concat("the index dim is ", p.index_dim, ", must be a multiple of ",
                                  step, " from 64 to 256"));
    const Support pages = takes_page_size(request.page_size);
    return pages.yes ? takes_sizes(p, request, aligned) : pages;
}

Support takes_index_select_sm80(const Device& device, const Problem& p,
                                const IndexSelectRequest& request, bool aligned) {
    if (request.page_size > 0) return in_pages();
    if (request.element == Element::e4m3) {
        if (!multiplies_e4m3(device)) return compiled_before_e4m3(device);
    } else if (!is_half(request.element) && request.element != Element::int8) {
        return not_element(request.element, "bf16, f16, e4m3 or int8");
    }
    if (!is_tuned_width(p.index_dim) && !is_wide(p.index_dim))
        return not_tuned("the index dim", p.index_dim, true);
    return takes_sizes(p, request, aligned);
}

Support takes_index_select_tuned(const Device& device, const Problem& p, const SelectionRule& rule,
                                 const IndexInput& in) {
    const auto takes = device.is_hopper() ? takes_index_select_sm90 : takes_index_select_sm80;
    Support taken = takes_pages(takes(device, p,
                                      {.element = in.index_q.element(),
                                       .top_k = rule.top_k,
                                       .page_size = in.index_k.page_size()},
                                      are_aligned(in.index_q, in.index_k)),
                                in.scales, in.index_k);
    if (taken.yes && in.index_k.seqused_k() && most_tiles(p) > kMostTilesNow)
        return Support::no(
            concat("lengths are on the device, of more than ", kMostTilesNow, " tiles of queries"));
    return taken;
}

void index_select_tuned(const Call& call, const SelectionRule& rule, const IndexInput& in,
                        View<int32_t, 3> ids) {
    (call.device.is_hopper() ? index_select_sm90 : index_select_sm80)(call, rule, in, ids);
}

void index_select_sm80(const Call& call, const SelectionRule& rule, const IndexInput& in,
                       View<int32_t, 3> ids) {
    if (ids.size() == 0) return;
    const bool large = call.device.shared_bytes >= kLargeShared;
    IndexPlan plan(call, in, index_rows_sm80(large, rule.top_k, row_bytes(call.problem, in)),
                   false);
    plan.make_room(call, false);
    const IndexSelectArgs args = plan.args(call, rule, in, ids);
    const auto launch = [&]<typename T>() {
        return launch_index_select_sm80<T>(args, large, call.stream());
    };
    check(by_half_or_narrow(in.index_q.element(), launch), "index_select_sm80");
}

namespace {

/// What Hopper's kernel takes beside.
IndexSelectArgs args_sm90(const Call& call, IndexPlan& plan, const SelectionRule& rule,
                          const IndexInput& in, View<int32_t, 3> ids) {
    IndexSelectArgs args = plan.args(call, rule, in, ids);
    const int64_t stage_keys = index_stage_keys(row_bytes(call.problem, in));
    args.key_map = KeyMap(in.index_k, stage_keys, key_starts(call.layout, in.index_k));
    args.index_k = tensor_map(in.index_k, args.key_map.box_rows(stage_keys));
    args.keys_settled = !call.ahead.writes(in.index_k) &&
                        !call.ahead.writes(in.index_k.page_table()) &&
                        !call.ahead.writes(in.index_k.seqused_k());
    return args;
}

}  // namespace

void index_select_sm90(const Call& call, const SelectionRule& rule, const IndexInput& in,
                       View<int32_t, 3> ids) {
    index_select_of_rank_sm90(call, rule, in, ids, nullptr);
}

void index_select_of_rank_sm90(const Call& call, const SelectionRule& rule, const IndexInput& in,
                               View<int32_t, 3> ids, const CandidateExchange* exchange) {
    if (ids.size() == 0) return;
    const Element element = in.index_q.element();
    bool scored = exchange == nullptr && has_few_scores(call.problem);
    IndexPlan plan(call, in, kIndexPrefillRows, scored, exchange != nullptr ? 2 : 1);
    scored = scored && plan.most_parts > 1;
    plan.make_room(call, scored);
    const IndexSelectArgs args = args_sm90(call, plan, rule, in, ids);
    const auto launch = [&]<typename T>() {
        return launch_index_select_sm90<T>(args, call.stream(), exchange);
    };
    check(by_half_or_narrow(element, launch), "index_select_sm90");
    if (scored)
        check(launch_select_blocks_warp({.scores = args.scores.scores,
                                         .pitch = args.scores.pitch,
                                         .visible = args.visible,
                                         .seen = args.now.seen,
                                         .rows = args.queries * args.groups,
                                         .groups = args.groups,
                                         .block_size = args.block_size,
                                         .rule = args.rule,
                                         .ids = ids.data()},
                                        call.device.begins_early(), call.stream()),
              "index_select_sm90, ids");
}

}  // namespace msa::cuda
