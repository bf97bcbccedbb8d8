// SPDX-License-Identifier: MIT
// index_kl and the lse of index_select on tensor cores: pieces of the queries and rounds of the
// blocks, so that the slots fit the workspace.
#include <algorithm>
#include <limits>
#include <optional>

#include "gpu/half_types.h"
#include "gpu/kernels/index_kl_sm90.h"
#include "gpu/kernels/index_lse_sm90.h"
#include "gpu/kernels/kernels.h"
#include "gpu/layout.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/padded_heads.h"
#include "gpu/plan/tuned.h"
#include "gpu/tensor_map.h"

namespace msa::cuda {
namespace {

constexpr int64_t kSlotBytes = int64_t{1} << 31;  // of the slots of a piece and round
// Queries of a piece of the selected support, at most, for the wgmma form: items walk a group's
// queries side by side, at most 134 MB of q, of which L2 holds a third.
constexpr int64_t kPieceQueries = 32768;
constexpr int64_t kMostHeads = 16;                                  // of a group
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();  // numbers of 32 bits

Support takes_blocks(const Problem& p, Element element, bool aligned) {
    if (!is_half(element)) return not_element(element, "bf16 or f16");
    if (!aligned) return not_aligned();
    if (!is_tuned_width(p.index_dim)) return not_tuned("the index dim", p.index_dim);
    if (p.block_size > kKlMostKeys || p.block_size < 16 || (p.block_size & (p.block_size - 1)) != 0)
        return Support::no(
            concat("the block size is ", p.block_size, ", must be 16, 32, 64 or 128"));
    return {};
}

template <int Rank>
const uint16_t* bits_of(const In<Rank>& view) {
    return static_cast<const uint16_t*>(view.data());
}

/// Of ids, if they are given.
class Uses {
public:
    Uses(const Call& call, View<const int32_t, 3> ids) {
        if (ids.data() != nullptr && ids.size() > 0) sorted_.emplace(call, ids);
    }
    ReverseIndex index() const { return sorted_ ? sorted_->index() : ReverseIndex{}; }

private:
    std::optional<SortedUses> sorted_;
};

/// Pieces of the queries and rounds of the blocks of one call. `uses`: of ids; they outlive it.
class Walk {
public:
    Walk(const Call& call, const IndexInput& in, View<const int32_t, 3> ids, const Uses& uses,
         int64_t slot_bytes, int64_t most_queries = std::numeric_limits<int64_t>::max())
        : call_(call), selected_(ids.data() != nullptr) {
        const Problem& p = call.problem;
        const Tensor<SequenceBlock, 1>& blocks = call.layout->key_blocks();
        all_.index_q = bits_of(in.index_q);
        all_.index_k = bits_of(in.index_k);
        all_.ids = ids.data();
        all_.visible = call.visible;
        all_.blocks = blocks.data();
        all_.block_count = narrow(blocks.size());
        all_.heads = narrow(p.query_heads);
        all_.groups = narrow(p.kv_heads);
        all_.head_dim = narrow(p.head_dim);
        all_.index_dim = narrow(p.index_dim);
        all_.block_size = narrow(p.block_size);
        all_.scale = static_cast<float>(p.softmax_scale());
        all_.index_scale = static_cast<float>(p.index_scale());
        all_.reverse = uses.index();
        const int64_t fitting = std::max<int64_t>(
            1, kSlotBytes / std::max<int64_t>(1, p.queries() * p.kv_heads * slot_bytes));
        slots_ = selected_ ? ids.extent(2) : std::clamp<int64_t>(p.blocks(), 1, fitting);
        queries_ = std::max<int64_t>(1, kSlotBytes / (p.kv_heads * slots_ * slot_bytes));
        if (selected_) queries_ = std::min(queries_, most_queries);
        all_.whole = queries_ >= p.queries();
        starts_ = call.scratch<int32_t, 1>({all_.lists() + 1});
        items_ = call.scratch<char, 1>({most_items() * int64_t{sizeof(KlItem)}});
        all_.slots = narrow(slots_);
        all_.items = reinterpret_cast<KlItem*>(items_.data());
        all_.item_starts = starts_.data();
    }

    KlBlocks& all() { return all_; }
    /// (query, group, slot) of a piece.
    int64_t rows_and_slots() const {
        return std::min(queries_, call_.problem.queries()) * call_.problem.kv_heads * slots_;
    }
    /// Of a piece and round: of each list one that is not full, and the full ones.
    int64_t most_items() const {
        const Problem& p = call_.problem;
        const int64_t lists =
            selected_ ? all_.lists()
                      : std::min<int64_t>(all_.lists(), slots_ * p.sequences() * p.kv_heads);
        return lists + rows_and_slots() / kKlItemUses;
    }
    /// body(KlBlocks, whether the piece's first round), the items listed.
    template <typename Body>
    void for_each(Body body) {
        const Problem& p = call_.problem;
        const int64_t rounds = selected_ ? 1 : ceil_div(p.blocks(), slots_);
        for (int64_t begin = 0; begin < p.queries(); begin += queries_)
            for (int64_t round = 0; round < rounds; ++round) {
                KlBlocks a = all_;
                a.piece = {begin, std::min(begin + queries_, p.queries())};
                a.first_block = narrow(round * slots_);
                check(launch_kl_items(a, call_.stream()), "index_kl, items");
                body(a, round == 0);
            }
    }

private:
    const Call& call_;
    bool selected_;
    KlBlocks all_{};
    int64_t slots_ = 0, queries_ = 0;
    Tensor<int32_t, 1> starts_;
    Tensor<char, 1> items_;
};

void clear(const Call& call, void* memory, int64_t bytes) {
    check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), call.stream()),
          "clearing an output of index_kl");
}

/// Writes the lse of a call that a form takes: index_lse_sm90 or index_lse_mma.
void lse_by_blocks(const Call& call, const IndexInput& in, View<const int32_t, 3> ids,
                   const Uses& uses, View<float, 2> lse) {
    const Problem& p = call.problem;
    const Element element = in.index_q.element();
    Walk walk(call, in, ids, uses, sizeof(float));
    auto slots = call.scratch<float, 1>({walk.rows_and_slots()});
    walk.all().slot_lse = slots.data();
    const bool tuned =
        takes_index_lse_sm90(call.device, p, in, ids.data() != nullptr ? ids.extent(2) : 0).yes;
    LseTunedArgs args{};
    if (tuned)
        args.index_k = tensor_map(in.index_k.data(), element, p.keys(), p.index_dim, p.block_size);
    walk.for_each([&](const KlBlocks& a, bool first) {
        args.blocks = a;
        by_half(element, [&]<typename T>() {
            if (tuned)
                check(launch_kl_slot_lse_sm90<T>(args, walk.most_items(), call.stream()),
                      "index_lse_sm90, slots");
            else
                check(launch_kl_slot_lse<T>(a, walk.most_items(), call.stream()),
                      "index_lse_mma, slots");
        });
        check(launch_kl_join_lse(a, first, lse.data(), call.stream()), "index_lse, join");
    });
}

/// What both forms ask for, beside the sizes.
Support takes_by_blocks(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) {
    Support blocks = takes_blocks(p, in.q.element(),
                                  are_aligned(in.q, in.k, in.index.index_q, in.index.index_k) &&
                                      are_aligned(to.d_index_q, to.d_index_k));
    if (!blocks.yes) return blocks;
    if (in.index.index_q.element() != in.q.element())
        return not_element(in.index.index_q.element(), to_string(in.q.element()));
    if (p.window || p.softcap) return not_plain(p);
    if (in.teacher != Teacher::mean) return Support::no("the teacher is not the mean");
    if (!in.main_lse) return Support::no("main_lse is not given");
    if (!to.d_index_q) return Support::no("no gradient is asked for");
    if (!is_tuned_width(p.head_dim) && !is_wide(p.head_dim))
        return not_tuned("the head dim", p.head_dim, true);
    if (p.index_dim > p.head_dim) return above("the index dim", p.index_dim, p.head_dim);
    return {};
}

/// The wgmma form: what a call adds to KlBlocks, and the scratch memory of it.
class TunedBlocks {
public:
    TunedBlocks(const Call& call, const IndexKlInput& in, Walk& walk)
        : call_(call), element_(in.q.element()) {
        const Problem& p = call.problem;
        KlBlocks& all = walk.all();
        lse_ = call.scratch<float, 1>({p.queries() * p.query_heads + 1});
        order_ = call.scratch<int32_t, 1>({walk.most_items()});
        bins_ = call.scratch<int32_t, 1>({p.kv_heads * kKlBins + 1});
        all.order = order_.data();
        all.bins = bins_.data() + 1;
        all.taken = bins_.data();
        args_.q_one = tensor_map(in.q.data(), element_, p.queries(), p.query_heads, p.head_dim, 1,
                                 p.group_size());
        args_.index_k =
            tensor_map(in.index.index_k.data(), element_, p.keys(), p.index_dim, p.block_size);
        args_.lse = lse_.data();
        args_.queries = p.queries();
        args_.keys = p.keys();
        check(launch_kl_lse(all.main_lse, p.queries() * p.query_heads, lse_.data(), call.stream()),
              "index_kl_sm90, lse");
    }
    template <typename T>
    void launch(const KlBlocks& a, int64_t most_items) {
        args_.blocks = a;
        check(launch_kl_blocks_sm90<T>(args_, most_items, call_.device.sms, call_.stream()),
              "index_kl_sm90, blocks");
    }

private:
    const Call& call_;
    Element element_;
    KlTunedArgs args_{};
    Tensor<float, 1> lse_;
    Tensor<int32_t, 1> order_, bins_;
};

/// Of a call that one of the forms takes.
void by_blocks(const Call& call, const IndexKlInput& in, const IndexKlOutput& to, bool tuned) {
    const Problem& p = call.problem;
    clear(call, to.d_index_k.data(), to.d_index_k.size() * int64_t{sizeof(float)});
    if (p.queries() == 0 || p.keys() == 0 || (in.ids && in.ids.size() == 0)) {
        clear(call, to.d_index_q.data(), to.d_index_q.size() * int64_t{sizeof(float)});
        if (to.kl) clear(call, to.kl.data(), to.kl.size() * int64_t{sizeof(double)});
        return;
    }
    const Uses uses(call, in.ids);
    Tensor<float, 2> made;
    if (!in.index_lse) {
        made = call.scratch<float, 2>({p.queries(), p.kv_heads});
        lse_by_blocks(call, in.index, in.ids, uses, made);
    }
    const int64_t slot_bytes = p.index_dim * int64_t{sizeof(float)};
    Walk walk(call, in.index, in.ids, uses, slot_bytes,
              tuned ? kPieceQueries : std::numeric_limits<int64_t>::max());
    auto d_query = call.scratch<float, 1>({walk.rows_and_slots() * p.index_dim});
    auto d_keys = call.scratch<float, 1>({walk.most_items() * p.block_size * p.index_dim});
    Tensor<double, 1> kl;
    if (to.kl) kl = call.scratch<double, 1>({walk.rows_and_slots()});
    KlBlocks& all = walk.all();
    all.q = bits_of(in.q);
    all.k = bits_of(in.k);
    Tensor<float, 2> teacher;
    if (in.sinks) teacher = teacher_lse_any(call, in);
    all.main_lse = in.sinks ? teacher.data() : in.main_lse.data();
    all.index_lse = in.index_lse ? in.index_lse.data() : made.data();
    all.d_query = d_query.data();
    all.d_keys = d_keys.data();
    all.kl = kl.data();
    std::optional<TunedBlocks> blocks;
    if (tuned) blocks.emplace(call, in, walk);
    const double unit = by_half(in.q.element(), []<typename T>() { return kKlUnit<T>; });
    const double scale =
        in.gradient_scale.value_or(1 / static_cast<double>(p.queries() * p.kv_heads));
    const auto gradient = static_cast<float>(scale * p.index_scale() / unit);
    walk.for_each([&](const KlBlocks& a, bool first) {
        by_half(in.q.element(), [&]<typename T>() {
            if (blocks)
                blocks->template launch<T>(a, walk.most_items());
            else
                check(launch_kl_blocks<T>(a, walk.most_items(), call.stream()),
                      "index_kl_mma, blocks");
        });
        check(launch_kl_sum_slots(a, gradient, first, to.d_index_q.data(), to.kl.data(),
                                  call.stream()),
              "index_kl, d_index_q");
        check(launch_kl_sum_items(a, gradient, to.d_index_k.data(), call.stream()),
              "index_kl, d_index_k");
    });
}

/// By mma.sync, where a thread block's tiles fit into the device's shared memory.
Support takes_mma(const Device& device, const Problem& p, const IndexKlInput& in,
                  const IndexKlOutput& to) {
    Support blocks = takes_by_blocks(p, in, to);
    if (!blocks.yes) return blocks;
    const int64_t heads = p.group_size();
    if (heads != 2 && heads != 4 && heads != 8 && heads != 16)
        return Support::no(concat("G is ", heads, ", must be 2, 4, 8 or 16"));
    const int bytes = by_half(in.q.element(), [&]<typename T>() {
        return kl_blocks_shared<T>(narrow(p.head_dim), narrow(p.index_dim), narrow(heads));
    });
    if (device.shared_bytes < bytes) return little_shared(device.shared_bytes, bytes);
    return {};
}

}  // namespace

Support takes_index_lse_mma(const Problem& p, const IndexInput& in) {
    if (in.index_k.paged()) return in_pages();
    return takes_blocks(p, in.index_q.element(), are_aligned(in.index_q, in.index_k));
}

Support takes_index_lse_sm90(const Device& device, const Problem& p, const IndexInput& in,
                             int64_t top_k) {
    if (!device.is_hopper()) return not_hopper();
    Support blocks = takes_index_lse_mma(p, in);
    if (!blocks.yes) return blocks;
    if (!is_tuned_width(p.block_size)) return not_tuned("the block size", p.block_size);
    if (p.keys() == 0) return Support::no("there are no keys");
    if (p.keys() > kMostRows) return above("Nk", p.keys(), kMostRows);
    if (p.queries() > kMostRows) return above("Nq", p.queries(), kMostRows);
    if (!SortedUses::has_slots(p.queries(), top_k))
        return above("Nq k", p.queries() * top_k, kMostRows);
    return {};
}

void index_lse(const Call& call, const IndexInput& in, View<const int32_t, 3> ids,
               View<float, 2> lse) {
    if (lse.size() == 0) return;
    const CallNow now(call, in.index_k);
    if (takes_index_lse_mma(call.problem, in).yes)
        lse_by_blocks(now, in, ids, Uses(now, ids), lse);
    else
        index_lse_any(now, in, ids, lse);
}

Support takes_index_kl_sm90(const Device& device, const Problem& p, const IndexKlInput& in,
                            const IndexKlOutput& to) {
    if (!device.is_hopper()) return not_hopper();
    Support blocks = takes_by_blocks(p, in, to);
    if (!blocks.yes) return blocks;
    if (!is_tuned_width(p.head_dim)) return not_tuned("the head dim", p.head_dim);
    if (!is_tuned_width(p.block_size)) return not_tuned("the block size", p.block_size);
    if (p.group_size() > kMostHeads) return above("G", p.group_size(), kMostHeads);
    if (p.queries() * p.query_heads >= kMostRows)
        return above("Nq Hq", p.queries() * p.query_heads, kMostRows - 1);
    if (p.keys() > kMostRows) return above("Nk", p.keys(), kMostRows);
    return {};
}

std::string index_kl(const Call& call, const IndexKlInput& in, const IndexKlOutput& to) {
    const Problem p = kernel_heads(call.problem);
    const Support tuned = takes_index_kl_sm90(call.device, p, in, to);
    const Support mma = takes_mma(call.device, p, in, to);
    if (is_padded(call.problem) && (tuned.yes || mma.yes)) {
        const PaddedRows q(call, in.q, p.head_dim), k(call, in.k, p.head_dim);
        IndexKlInput padded = in;
        padded.q = q.view(), padded.k = k.view();
        return index_kl(with_problem(call, p, call.ahead), padded, to) + padding_of(call.problem);
    }
    if (tuned.yes || mma.yes)
        by_blocks(call, in, to, tuned.yes);
    else
        index_kl_any(call, in, to);
    if (tuned.yes) return "index_kl_sm90";
    return mma.yes ? concat("index_kl_mma; sm90: ", tuned.why_not)
                   : concat("index_kl_any; mma: ", mma.why_not);
}

}  // namespace msa::cuda
