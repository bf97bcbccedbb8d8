// SPDX-License-Identifier: MIT
// eq:msa-pp and eq:msa-kl, block by block: a block gathers its queries, of which it makes the
// teacher's probabilities p and the index's t. The score gradients t - p give the block's
// d_index_k, which has one owner, and each query's part of d_index_q and of its KL, which go to
// slots that a second phase adds up in order. The log-sum-exp of both branches come from the
// caller, or from a pass before; the maximum as teacher has one more, for its sum. Queries go in
// pieces, and the full support in rounds of some blocks, so that memory does not grow with the
// sequence.
#include <Eigen/Core>
#include <array>
#include <cmath>
#include <limits>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/support_sums.h"
#include "core/cpu/teacher_lse.h"

namespace msa::cpu {
namespace {

using Row = Eigen::Map<Eigen::ArrayXf>;

/// Both branches of a piece of the queries, and what is known of its rows.
struct KlRows {
    const Problem& p;
    Branch main, index;
    Teacher by;
    Tensor<float, 2> main_lse;      // [Nq, Hq] base 2: what a head's logits are off its share of p
    Tensor<float, 2> index_lse;     // [Nq, Hkv] base 2
    Tensor<double, 2> teacher_sum;  // [Nq, Hkv] of the maximum; absent for the mean
};

/// A thread's blocks, and p of a pass.
struct Teaching {
    Teaching(const KlRows& of, int64_t block_size)
        : rows(&of),
          scratch(of.main, block_size),
          stride(padded(block_size) + 2 * kLanes),
          p({kPassQueries, stride}) {}

    void start(const GroupBlock& block) { scratch.pack(rows->main, block); }
    /// p of the pass, 0 before a window; the maximum is not yet divided by its sum.
    void teach(const BlockPass& pass) {
        std::fill_n(p.data(), pass.size() * stride, 0.0F);
        const bool mean = rows->by == Teacher::mean;
        for_each_row(rows->main, pass, scratch,
                     [&](int64_t n, int64_t head, float* logits, int64_t first, int64_t end) {
                         if (first == end) return;
                         const int64_t h = pass.block.group * rows->main.heads + head;
                         const float lse = rows->main_lse(pass.use(n).query, h);
                         (mean ? add_exp2 : keep_larger_exp2)(logits + first, end - first, lse,
                                                              &p(n, first));
                     });
    }

    const KlRows* rows;
    BranchScratch scratch;
    int64_t stride;  // rows do not all fall on the same cache sets
    Tensor<float, 2> p;
};

/// The sums of p, for the maximum.
struct SumWorker {
    Teaching teaching;
    View<double, 3> slots;  // [Nq, Hkv, k]

    void begin() {}
    void start(const GroupBlock& block) { teaching.start(block); }
    void add(const BlockPass& pass) {
        teaching.teach(pass);
        for (int64_t n = 0; n < pass.size(); ++n)
            slots(pass.use(n).query, pass.block.group, pass.use(n).slot) =
                Row(&teaching.p(n, 0), pass.seen(n)).cast<double>().sum();
    }
    void end(const KeyRange&) {}
};

/// Where the gradients and the KL of one round go; each absent where it is not asked for.
struct Slots {
    View<float, 4> d_index_q;  // [Nq, Hkv, k, didx]
    View<double, 3> kl;        // [Nq, Hkv, k]
    View<float, 2> d_index_k;  // [Nk, didx]
    float key_gradient;        // of index_q times the branch's factor
};

class GradientWorker {
public:
    GradientWorker(const KlRows& rows, const Slots& to)
        : rows_(&rows),
          to_(to),
          teaching_(rows, rows.p.block_size),
          index_(rows.index, rows.p.block_size),
          width_(rows.p.index_dim),
          d_scores_({kPassQueries, teaching_.stride}),
          key_rows_({panel_floats(rows.p.block_size, width_)}),
          query_panels_({panel_floats(kPassQueries, width_)}),
          d_query_({kStrip, padded(width_)}),
          d_keys_({rows.p.block_size, padded(width_)}) {}

    void begin() { std::fill_n(d_keys_.data(), d_keys_.size(), 0.0F); }

    void start(const GroupBlock& block) {
        teaching_.start(block);
        index_.pack(rows_->index, block);
        values_ =
            pack_values(rows_->index.keys, block.group, block.first, block.keys, key_rows_.data());
    }

    void add(const BlockPass& pass) {
        teaching_.teach(pass);
        for_each_row(rows_->index, pass, index_,
                     [&](int64_t n, int64_t, float* logits, int64_t, int64_t end) {
                         compare(pass, n, logits, end);
                     });
        if (!to_.d_index_k) return;
        add_to_queries(pass);
        for (int64_t n = 0; n < pass.size(); ++n)  // a NaN there has no part in the sums
            if (!has_target(pass, n)) std::fill_n(&index_.rows(n, 0), width_, 0.0F);
        std::array<int64_t, kPassQueries> seen{};
        for (int64_t n = 0; n < pass.size(); ++n) seen[static_cast<size_t>(n)] = pass.seen(n);
        add_transposed(d_scores_.data(), teaching_.stride, pass.seen(pass.size() - 1),
                       pack_values({index_.rows.data(), width_, 0, width_}, 0, 0, pass.size(),
                                   query_panels_.data()),
                       seen.data(), d_keys_.data(), padded(width_));
    }

    void end(const KeyRange& keys) {
        if (!to_.d_index_k) return;
        for (int64_t j = 0; j < keys.count; ++j)
            for (int64_t d = 0; d < width_; ++d)
                to_.d_index_k(keys.first + j, d) += to_.key_gradient * d_keys_(j, d);
    }

private:
    static_assert(kPassQueries <= kGatheredRows, "for_each_row leaves the pass's rows in scratch");

    /// Does the window show the row a key of its support?
    bool has_target(const BlockPass& pass, int64_t n) const {
        return rows_->main_lse(pass.use(n).query, pass.block.group * rows_->main.heads) !=
               -kInfinity;
    }

    /// t - p of one query, and its part of the KL.
    void compare(const BlockPass& pass, int64_t n, float* logits, int64_t seen) {
        const auto [query, slot] = pass.use(n);
        const int64_t group = pass.block.group;
        float* const p = &teaching_.p(n, 0);
        if (rows_->by == Teacher::max)
            Row(p, seen) /= static_cast<float>(rows_->teacher_sum(query, group));
        const float lse = rows_->index_lse(query, group);
        const bool known = has_target(pass, n);
        if (to_.kl) {
            const Row teacher(p, seen), index(logits, seen);
            // 0 ln 0 is 0; a NaN stays.
            const float sum = (teacher * (teacher.max(std::numeric_limits<float>::min()).log() -
                                          (index - lse) * static_cast<float>(kLn2)))
                                  .sum();
            to_.kl(query, group, slot) = known ? double{sum} : 0;
        }
        if (!to_.d_index_k) return;
        float* const d = &d_scores_(n, 0);
        if (known)
            exp2_difference(logits, p, seen, pass.block.keys, lse, d);
        else
            std::fill_n(d, padded(pass.block.keys), 0.0F);
    }

    /// (t - p) k of every query, to its slot.
    void add_to_queries(const BlockPass& pass) {
        std::array<int64_t, kStrip> seen{};
        for (int64_t n = 0; n < pass.size(); n += kStrip) {
            const int64_t strip = std::min(kStrip, pass.size() - n);
            for (int64_t r = 0; r < strip; ++r) seen[static_cast<size_t>(r)] = pass.seen(n + r);
            std::fill_n(d_query_.data(), d_query_.size(), 0.0F);
            add_values(&d_scores_(n, 0), teaching_.stride, strip, values_, seen.data(),
                       kKeep.data(), d_query_.data(), padded(width_));
            for (int64_t r = 0; r < strip; ++r) {
                const auto [query, slot] = pass.use(n + r);
                float* const slot_of = &to_.d_index_q(query, pass.block.group, slot, 0);
                if (has_target(pass, n + r))
                    std::copy_n(&d_query_(r, 0), width_, slot_of);
                else
                    std::fill_n(slot_of, width_, 0.0F);
            }
        }
    }

    const KlRows* rows_;
    Slots to_;
    Teaching teaching_;
    BranchScratch index_;
    int64_t width_;
    Tensor<float, 2> d_scores_;  // [kPassQueries, stride]
    Tensor<float, 1> key_rows_, query_panels_;
    Panels values_{};
    Tensor<float, 2> d_query_, d_keys_;
};

/// Adds up the slots in use of every row: d_index_q, times `gradient`, and KL.
void add_slots(const Problem& p, View<const int32_t, 3> ids, const Slots& from, float gradient,
               const IndexKlOutput& to, int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t slot = 0; slot < std::ssize(selected(ids, i, r)); ++slot) {
                if (to.kl) to.kl(i, r) += from.kl(i, r, slot);
                for (int64_t d = 0; to.d_index_q && d < p.index_dim; ++d)
                    to.d_index_q(i, r, d) += gradient * from.d_index_q(i, r, slot, d);
            }
}

void sum_teacher(KlRows& rows, View<const int32_t, 3> support, int threads) {
    const Problem& p = rows.p;
    rows.teacher_sum = Tensor<double, 2>({p.queries(), p.kv_heads});
    for_each_round(p, support, [&](View<const int32_t, 3> ids) {
        Tensor<double, 3> slots(ids.shape(), Fill::nothing);
        std::vector<SumWorker> workers;
        for (int t = 0; t < threads; ++t) workers.push_back({Teaching(rows, p.block_size), slots});
        for_each_block(p, ids, workers);
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t slot = 0; slot < std::ssize(selected(ids, i, r)); ++slot)
                    rows.teacher_sum(i, r) += slots(i, r, slot);
    });
}

/// [Nq, Hkv] base 2.
Tensor<float, 2> index_lse_of(const Problem& p, const Branch& index, View<const float, 2> given,
                              View<const int32_t, 3> support, int threads) {
    Tensor<float, 2> lse({p.queries(), p.kv_heads}, Fill::nothing);
    SupportSums sums(p, index, threads);
    if (!given) for_each_round(p, support, [&](View<const int32_t, 3> ids) { sums.add(ids); });
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            lse(i, r) = static_cast<float>(kLog2E * double{given ? given(i, r) : sums.lse(i, r)});
    return lse;
}

/// Memory of the slots, for all pieces and rounds: new pages cost more than what is done with them.
struct SlotMemory {
    Tensor<float, 1> d_index_q;
    Tensor<double, 1> kl;
    template <typename T, int Rank>
    static View<T, Rank> take(Tensor<T, 1>& memory, Shape<Rank> shape) {
        if (memory.size() < element_count(shape))
            memory = Tensor<T, 1>({element_count(shape)}, Fill::nothing);
        return {memory.data(), shape};
    }
};

/// One piece: `to` of its queries alone, but d_index_k of all keys.
void run_piece(const Problem& p, const IndexKlInput& in, double gradient, const IndexKlOutput& to,
               SlotMemory& memory, int threads) {
    const auto k = in.k.as<const float>();
    const auto index_k = in.index.index_k.as<const float>();
    KlRows rows{p,
                main_branch(p, in.q.as<const float>(), k),
                index_branch(p, in.index.index_q.as<const float>(), index_k),
                in.teacher,
                {},
                {},
                {}};
    rows.main_lse = teacher_lse(p, rows.main, in, threads);
    rows.index_lse = index_lse_of(p, rows.index, in.index_lse, in.ids, threads);
    if (in.teacher == Teacher::max) sum_teacher(rows, in.ids, threads);
    if (to.kl) std::fill_n(to.kl.data(), to.kl.size(), 0.0);
    if (to.d_index_q) std::fill_n(to.d_index_q.data(), to.d_index_q.size(), 0.0F);
    for_each_round(p, in.ids, [&](View<const int32_t, 3> ids) {
        const auto [n, groups, slots] = ids.shape();
        Slots round{{}, {}, to.d_index_k, static_cast<float>(gradient * kLn2)};
        if (to.d_index_q)
            round.d_index_q =
                SlotMemory::take<float, 4>(memory.d_index_q, {n, groups, slots, p.index_dim});
        if (to.kl) round.kl = SlotMemory::take<double, 3>(memory.kl, ids.shape());
        std::vector<GradientWorker> workers;
        for (int t = 0; t < threads; ++t) workers.emplace_back(rows, round);
        for_each_block(p, ids, workers);
        add_slots(p, ids, round, static_cast<float>(gradient * p.index_scale()), to, threads);
    });
}

}  // namespace

void index_kl(const Problem& whole, const IndexKlInput& in, const IndexKlOutput& to, int threads) {
    if (to.d_index_k) std::fill_n(to.d_index_k.data(), to.d_index_k.size(), 0.0F);
    const double gradient =
        in.gradient_scale.value_or(1 / static_cast<double>(whole.queries() * whole.kv_heads));
    const int64_t floats = whole.kv_heads * (whole.index_dim + 2) + whole.query_heads;
    const int64_t piece = piece_queries(whole, in.ids, floats);
    SlotMemory memory;
    for (int64_t begin = 0; begin < whole.queries(); begin += piece) {
        const Problem p = whole.with_queries({begin, std::min(begin + piece, whole.queries())});
        const int64_t n = p.queries();
        const auto rows = [&](const auto& view) { return view ? view.slice(begin, n) : view; };
        IndexKlInput part = in;
        part.index.index_q = rows(in.index.index_q.as<const float>());
        part.q = rows(in.q.as<const float>());
        part.ids = rows(in.ids);
        part.main_lse = rows(in.main_lse);
        part.index_lse = rows(in.index_lse);
        run_piece(p, part, gradient, {rows(to.kl), rows(to.d_index_q), to.d_index_k}, memory,
                  threads);
    }
}

}  // namespace msa::cpu
