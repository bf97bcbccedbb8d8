// SPDX-License-Identifier: MIT
// index_select on tensor cores: tiles of queries, and how many parts the keys are split into, so
// that few queries fill the chip.
#include <algorithm>

#include "gpu/half_types.h"
#include "gpu/kernels/index_select_sm80.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/tuned.h"
#include "gpu/tensor_map.h"

namespace msa::cuda {
namespace {

/// Parts for as many thread blocks as the chip holds, of at least a few tiles of keys each.
TileCut cut_of(const Device& device, bool decode, bool exchanged) {
    return {.thread_blocks = (decode ? int64_t{2} : 1) * device.sms,
            .least_keys = 2048,
            .most_parts = kMostIndexParts,
            .least_parts = exchanged ? 2 : 1};
}

}  // namespace

namespace {

/// What both kernels take.
Support takes_sizes(const Problem& p, const IndexSelectRequest& request, bool aligned) {
    if (!aligned) return not_aligned();
    if (!is_tuned_width(p.index_dim)) return not_tuned("the index dim", p.index_dim);
    if (!is_tuned_block(p.block_size)) return not_tuned_block(p.block_size);
    if (request.top_k > kMostSelected) return above("k", request.top_k, kMostSelected);
    if (p.kv_heads > kIndexDecodeRows) return above("Hkv", p.kv_heads, kIndexDecodeRows);
    if (p.index_scale() <= 0) return Support::no("the index scale is not positive");
    if (p.keys() == 0 && p.queries() > 0) return Support::no("there are no keys");
    return {};
}

/// The part of the arguments that both kernels have.
struct IndexPlan {
    bool decode;
    const PartsOfTiles& tiles;
    Tensor<int64_t, 1> partial;

    IndexPlan(const Call& call, int prefill_rows, bool exchanged = false)
        : decode(call.problem.batch.longest_queries() * call.problem.kv_heads <= kIndexDecodeRows),
          tiles(
              call.layout->parts((decode ? kIndexDecodeRows : prefill_rows) / call.problem.kv_heads,
                                 cut_of(call.device, decode, exchanged))),
          partial(
              call.scratch<int64_t, 1>({tiles.all * call.problem.kv_heads * (kMostSelected + 1)})) {
    }

    IndexSelectArgs args(const Call& call, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids) {
        const Problem& p = call.problem;
        IndexSelectArgs to{};
        to.index_q = in.index_q.data();
        to.all_keys = in.index_k.data();
        to.keys = p.keys();
        to.index_dim = narrow(p.index_dim);
        to.parts = tiles.parts.data();
        to.part_count = narrow(tiles.parts.size());
        to.decode = decode;
        to.visible = call.visible;
        to.queries = p.queries();
        to.groups = narrow(p.kv_heads);
        to.block_size = narrow(p.block_size);
        to.scale = static_cast<float>(p.index_scale());
        to.q_scales = DeviceScales(in.scales.q);
        to.k_scales = DeviceScales(in.scales.k);
        to.rule = DeviceRule(rule);
        to.most_parts = tiles.most;
        to.of_query = tiles.of_query.data();
        to.partial = reinterpret_cast<uint64_t*>(partial.data());
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
    return takes_sizes(p, request, aligned);
}

Support takes_index_select_tuned(const Device& device, const Problem& p, const SelectionRule& rule,
                                 const IndexInput& in) {
    const auto takes = device.is_hopper() ? takes_index_select_sm90 : takes_index_select_sm80;
    return takes_pages(takes(device, p,
                             {.element = in.index_q.element(),
                              .top_k = rule.top_k,
                              .page_size = in.index_k.page_size()},
                             are_aligned(in.index_q, in.index_k)),
                       in.scales, in.index_k);
}

void index_select_tuned(const Call& call, const SelectionRule& rule, const IndexInput& in,
                        View<int32_t, 3> ids) {
    (call.device.is_hopper() ? index_select_sm90 : index_select_sm80)(call, rule, in, ids);
}

void index_select_sm80(const Call& call, const SelectionRule& rule, const IndexInput& in,
                       View<int32_t, 3> ids) {
    if (ids.size() == 0) return;
    const bool large = call.device.shared_bytes >= kLargeShared;
    IndexPlan plan(call, index_rows_sm80(large, rule.top_k));
    const IndexSelectArgs args = plan.args(call, rule, in, ids);
    const auto launch = [&]<typename T>() {
        return launch_index_select_sm80<T>(args, large, call.stream());
    };
    check(by_half_or_narrow(in.index_q.element(), launch), "index_select_sm80");
}

void index_select_sm90(const Call& call, const SelectionRule& rule, const IndexInput& in,
                       View<int32_t, 3> ids) {
    index_select_of_rank_sm90(call, rule, in, ids, nullptr);
}

void index_select_of_rank_sm90(const Call& call, const SelectionRule& rule, const IndexInput& in,
                               View<int32_t, 3> ids, const CandidateExchange* exchange) {
    if (ids.size() == 0) return;
    const Element element = in.index_q.element();
    IndexPlan plan(call, kIndexPrefillRows, exchange != nullptr);
    IndexSelectArgs args = plan.args(call, rule, in, ids);
    args.key_map = KeyMap(in.index_k, kIndexTileKeys, key_starts(call.layout, in.index_k));
    args.index_k = tensor_map(in.index_k, args.key_map.box_rows(kIndexTileKeys));
    args.keys_settled =
        !call.ahead.writes(in.index_k) && !call.ahead.writes(in.index_k.page_table());
    const auto launch = [&]<typename T>() {
        return launch_index_select_sm90<T>(args, call.stream(), exchange);
    };
    check(by_half_or_narrow(element, launch), "index_select_sm90");
}

}  // namespace msa::cuda
