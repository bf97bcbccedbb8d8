// SPDX-License-Identifier: MIT
// eq:msa-pp and eq:msa-kl. Queries go in pieces. Phase 1, over tiles of queries: the lse of the
// main heads and of the index head; then again the logits, from which the row's KL, the score
// gradients t - p (kept for the piece) and d_index_q; the maximum as teacher has a pass between the
// two, for its sum. Heads are divided by what weighs them, so that without sinks the mean divides
// by G. Phase 2, over key blocks: d_index_k, as each block's queries in order. Every sum has one
// owner and one order.
#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cmath>

#include "core/cpu/cpu_backend.h"
#include "core/cpu/support_loop.h"
#include "core/schedule.h"

namespace msa::cpu {
namespace {

constexpr int64_t kPieceFloats = int64_t{1} << 24;  // score gradients of one piece
constexpr int64_t kTileRows = 256;                  // main rows of a tile
constexpr int64_t kGathered = 128;                  // queries of one product of phase 2

using Row = Eigen::Map<Eigen::ArrayXf>;

struct Inputs {
    View<const float, 3> index_q;
    View<const float, 2> index_k;
    View<const float, 3> q, k;
    View<const float, 1> sinks;
};

/// Scratch memory of one thread, for one kind of head: rows of queries, their sums, packed keys.
struct Branch {
    Branch(int64_t rows, int64_t width, int64_t block_size, LogitRule logits,
           int64_t window = kNoWindow)
        : rule(logits),
          window_size(window),
          q({rows, width}),
          softmax({rows}),
          panels({panel_floats(width, block_size)}) {}
    LogitRule rule;
    int64_t window_size;
    Tensor<float, 2> q;
    Tensor<OnlineSum, 1> softmax;
    Tensor<float, 1> panels;
    Panels keys{};
};

struct Scratch {
    Scratch(const Problem& p, int64_t queries)
        : main(queries * p.group_size(), p.head_dim, p.block_size, main_logits(p),
               p.window.value_or(kNoWindow)),
          index(queries, p.index_dim, p.block_size, {static_cast<float>(p.index_scale() * kLog2E)}),
          divisor({queries * p.group_size()}),
          index_values({panel_floats(p.block_size, p.index_dim)}),
          logits({kStrip * padded(p.block_size) + kLanes}),
          teacher({queries, p.block_size}),
          d_query({queries, padded(p.index_dim)}),
          teacher_sum({queries}),
          kl({queries}) {}
    Branch main, index;
    Tensor<float, 1> divisor;  // [main rows] of a head's probabilities
    Tensor<float, 1> index_values, logits;
    Tensor<float, 2> teacher;           // [queries of a run, Bk]
    Tensor<float, 2> d_query;           // [queries, padded(didx)]
    Tensor<double, 1> teacher_sum, kl;  // [queries]
    Panels values{};
};

/// The tile's rows of the runs of one branch in strips: visit(row of the run, logits, first key,
/// end), of the block's keys that the branch sees.
template <typename Visit>
void for_each_row(const Branch& branch, const UseRun& run, int64_t heads, const SupportTile& tile,
                  int64_t block_size, float* logits, Visit visit) {
    const int64_t stride = padded(branch.keys.columns), width = branch.keys.depth;
    const int64_t rows = run.count * heads;
    for (int64_t row = 0; row < rows; row += kStrip) {
        const int64_t strip = std::min(kStrip, rows - row);
        const auto seen = [&](int64_t r) {
            return tile.seen(run.first + (row + r) / heads, run.block, block_size);
        };
        multiply({branch.q.data() + (run.first * heads + row) * width, width, strip},
                 {branch.keys.data, width, seen(strip - 1)}, logits, stride);
        for (int64_t r = 0; r < strip; ++r) {
            const KeyRange& visible = tile.visible[run.first + (row + r) / heads];
            const int64_t shown = window_start(visible.count, branch.window_size);
            cap_row(logits + r * stride, seen(r), branch.rule.cap);
            visit(row + r, logits + r * stride,
                  std::clamp<int64_t>(shown - run.block * block_size, 0, seen(r)), seen(r));
        }
    }
}

/// log2 of the sum of exponentials.
float log2_sum(const OnlineSum& state) {
    return static_cast<float>(double{state.top} + std::log2(state.sum));
}

class Piece {
public:
    Piece(const Problem& p, const Inputs& in, View<const int32_t, 3> ids, double rows,
          const IndexKlOutput& to, Teacher teacher, int threads)
        : p_(p),
          in_(in),
          ids_(ids),
          to_(to),
          teacher_(teacher),
          threads_(threads),
          gradient_(static_cast<float>(p.index_scale() / rows)) {
        if (to.d_index_q)
            d_scores_ = Tensor<float, 3>({p.queries(), p.kv_heads, ids.extent(2) * p.block_size});
    }

    void run() {
        const int64_t tile_queries = std::max<int64_t>(1, kTileRows / p_.group_size());
        std::vector<Scratch> scratch;
        for (int t = 0; t < threads_; ++t) scratch.emplace_back(p_, tile_queries);
        for_each_support_tile(p_, ids_, tile_queries, threads_,
                              [&](const SupportTile& tile, int thread) {
                                  rows_of_tile(tile, scratch[static_cast<size_t>(thread)]);
                              });
        if (to_.d_index_k) gather_keys();
    }

private:
    void pack_block(const SupportTile& tile, int64_t block, Scratch& s) const {
        const int64_t first = tile.first_key() + block * p_.block_size;
        const int64_t count = tile.keys(block, p_.block_size);
        s.main.keys = pack_keys(in_.k[first][tile.group].data(), p_.kv_heads * p_.head_dim, count,
                                p_.head_dim, s.main.panels.data());
        s.index.keys = pack_keys(in_.index_k[first].data(), p_.index_dim, count, p_.index_dim,
                                 s.index.panels.data());
        s.values = pack_values(in_.index_k[first].data(), p_.index_dim, count, p_.index_dim,
                               s.index_values.data());
    }

    void rows_of_tile(const SupportTile& tile, Scratch& s) {
        const int64_t heads = p_.group_size();
        pack_queries(in_.q, tile.queries, tile.group * heads, heads, s.main.rule.factor,
                     s.main.q.data());
        pack_queries(in_.index_q, tile.queries, tile.group, 1, s.index.rule.factor,
                     s.index.q.data());
        std::fill_n(s.main.softmax.data(), s.main.softmax.size(), OnlineSum{});
        std::fill_n(s.index.softmax.data(), s.index.softmax.size(), OnlineSum{});
        std::fill_n(s.d_query.data(), s.d_query.size(), 0.0F);
        std::fill_n(s.teacher_sum.data(), s.teacher_sum.size(), 0.0);
        std::fill_n(s.kl.data(), s.kl.size(), 0.0);
        const auto pack = [&](int64_t block) { pack_block(tile, block, s); };
        for_each_run(tile.uses, pack, [&](const UseRun& run) {
            for (auto [branch, width] : {std::pair{&s.main, heads}, {&s.index, int64_t{1}}})
                for_each_row(*branch, run, width, tile, p_.block_size, s.logits.data(),
                             [&, branch = branch, width = width](int64_t row, float* logits,
                                                                 int64_t first, int64_t end) {
                                 softmax_step(logits + first, end - first,
                                              branch->softmax(run.first * width + row));
                             });
        });
        weigh_heads(tile, s);
        if (teacher_ == Teacher::max)
            for_each_run(tile.uses, pack, [&](const UseRun& run) { sum_teacher(tile, run, s); });
        for_each_run(tile.uses, pack, [&](const UseRun& run) { second_pass(tile, run, s); });
        for (int64_t i = 0; i < tile.size(); ++i) {
            const int64_t query = tile.queries.begin + i;
            to_.kl(query, tile.group) = s.kl(i);
            if (!to_.d_index_q) continue;
            for (int64_t d = 0; d < p_.index_dim; ++d)
                to_.d_index_q(query, tile.group, d) = gradient_ * s.d_query(i, d);
        }
    }

    /// What each head's probabilities are divided by: heads count by what their sinks leave of
    /// them, the mean's add up to 1, the maximum's are at most 1.
    void weigh_heads(const SupportTile& tile, Scratch& s) const {
        const int64_t heads = p_.group_size();
        const double alone = teacher_ == Teacher::mean ? static_cast<double>(heads) : 1;
        std::fill_n(s.divisor.data(), s.divisor.size(), static_cast<float>(alone));
        if (!in_.sinks) return;
        for (int64_t i = 0; i < tile.size(); ++i) {
            std::vector<double> left;  // the logarithm of what a sink leaves of its head
            for (int64_t h = 0; h < heads; ++h) {
                const double lse = kLn2 * double{log2_sum(s.main.softmax(i * heads + h))};
                const double above = double{in_.sinks(tile.group * heads + h)} - lse;
                left.push_back(above > 0 ? -above - std::log1p(std::exp(-above))
                                         : -std::log1p(std::exp(above)));
            }
            const double most = *std::max_element(left.begin(), left.end());
            double sum = 0;
            for (double& share : left) sum += share = std::exp(share - most);
            for (int64_t h = 0; h < heads; ++h)
                s.divisor(i * heads + h) = static_cast<float>(
                    (teacher_ == Teacher::mean ? sum : 1) / left[static_cast<size_t>(h)]);
        }
    }

    /// The teacher's rows of the run; the maximum is not yet divided by its sum.
    void teach(const SupportTile& tile, const UseRun& run, Scratch& s) {
        const int64_t heads = p_.group_size();
        std::fill_n(s.teacher.data(), run.count * p_.block_size, 0.0F);
        for_each_row(s.main, run, heads, tile, p_.block_size, s.logits.data(),
                     [&](int64_t row, float* logits, int64_t first, int64_t end) {
                         const int64_t of_tile = run.first * heads + row;
                         exp2_row(logits + first, end - first, log2_sum(s.main.softmax(of_tile)));
                         Row teacher(&s.teacher(row / heads, first), end - first);
                         Row head(logits + first, end - first);
                         head /= s.divisor(of_tile);
                         if (teacher_ == Teacher::mean)
                             teacher += head;
                         else
                             teacher = (teacher.isNaN() || teacher > head).select(teacher, head);
                     });
    }

    void sum_teacher(const SupportTile& tile, const UseRun& run, Scratch& s) {
        teach(tile, run, s);
        for (int64_t row = 0; row < run.count; ++row)
            s.teacher_sum(run.first + row) +=
                Row(&s.teacher(row, 0), p_.block_size).cast<double>().sum();
    }

    void second_pass(const SupportTile& tile, const UseRun& run, Scratch& s) {
        teach(tile, run, s);
        for_each_row(s.index, run, 1, tile, p_.block_size, s.logits.data(),
                     [&](int64_t row, float* logits, int64_t, int64_t seen) {
                         index_row(tile, run, row, Row(logits, seen), s);
                     });
    }

    /// One query and one block: its KL, its score gradients, and its part of d_index_q.
    void index_row(const SupportTile& tile, const UseRun& run, int64_t row, Row logits,
                   Scratch& s) {
        const int64_t i = run.first + row, seen = logits.size();
        const auto keep_scores = [&](const auto& gradients) {
            Row(&d_scores_(tile.queries.begin + i, tile.group, run.uses[row].slot * p_.block_size),
                seen) = gradients;
        };
        if (s.main.softmax(i * p_.group_size()).sum == 0) {  // no key of the support in its window
            if (to_.d_index_q) keep_scores(Eigen::ArrayXf::Zero(seen));
            return;
        }
        Row teacher(&s.teacher(row, 0), seen);
        if (teacher_ == Teacher::max) teacher /= static_cast<float>(s.teacher_sum(i));
        const float lse = log2_sum(s.index.softmax(i));
        // 0 ln 0 is 0; a NaN stays.
        s.kl(i) +=
            (teacher <= 0.0F)
                .select(0.0F, teacher * (teacher.log() - (logits - lse) * static_cast<float>(kLn2)))
                .template cast<double>()
                .sum();
        if (!to_.d_index_q) return;
        exp2_row(logits.data(), seen, lse);
        logits -= teacher;
        const float keep = 1;
        add_values(logits.data(), seen, 1, s.values, &seen, &keep, &s.d_query(i, 0),
                   padded(p_.index_dim));
        keep_scores(logits);
    }

    /// Phase 2: d_index_k of every block takes in this piece's queries.
    void gather_keys() {
        const KvOuterSchedule schedule =
            schedule_kv_outer(p_, ids_, std::max<int64_t>(1, p_.queries()));
        const std::vector<int64_t> first_block = block_starts(p_);
        const std::vector<KeyRange> visible = visible_keys(p_);
#pragma omp parallel num_threads(threads_)
        {
            Tensor<float, 2> sums({p_.block_size, padded(p_.index_dim)});
            Tensor<float, 2> left({p_.block_size, kGathered}), right({kGathered, p_.index_dim});
            Tensor<float, 1> panels({panel_floats(kGathered, p_.index_dim)});
            for (int64_t sequence = 0; sequence < p_.sequences(); ++sequence) {
                const auto s = static_cast<size_t>(sequence);
#pragma omp for schedule(dynamic)
                for (int64_t b = first_block[s]; b < first_block[s + 1]; ++b) {
                    std::fill_n(sums.data(), sums.size(), 0.0F);
                    const int64_t first = (b - first_block[s]) * p_.block_size;
                    for (int64_t r = 0; r < p_.kv_heads; ++r) {
                        const auto at = static_cast<size_t>(r * first_block.back() + b);
                        const std::span<const SelectedQuery> all(
                            schedule.queries.data() + schedule.starts[at],
                            schedule.queries.data() + schedule.starts[at + 1]);
                        for (size_t begin = 0; begin < all.size(); begin += kGathered)
                            add_queries(
                                all.subspan(begin, std::min<size_t>(kGathered, all.size() - begin)),
                                r, first, visible, left, right, panels, sums);
                    }
                    const int64_t token = p_.batch.cu_seqlens_k()[s] + first;
                    const int64_t count =
                        std::min(p_.block_size, p_.batch.cu_seqlens_k()[s + 1] - token);
                    for (int64_t j = 0; j < count; ++j)
                        for (int64_t d = 0; d < p_.index_dim; ++d)
                            to_.d_index_k(token + j, d) += gradient_ * sums(j, d);
                }
            }
        }
    }

    /// sums [Bk, padded(didx)] += score gradients^T index_q over at most kGathered queries.
    void add_queries(std::span<const SelectedQuery> queries, int64_t group, int64_t first,
                     const std::vector<KeyRange>& visible, Tensor<float, 2>& left,
                     Tensor<float, 2>& right, Tensor<float, 1>& panels,
                     Tensor<float, 2>& sums) const {
        const auto n = static_cast<int64_t>(queries.size());
        const auto seen = [&](int64_t e) {
            const auto query = static_cast<size_t>(queries[static_cast<size_t>(e)].query);
            return std::min(p_.block_size, visible[query].count - first);
        };
        for (int64_t e = 0; e < n; ++e) {
            const auto [query, slot] = queries[static_cast<size_t>(e)];
            std::copy_n(in_.index_q[query][group].data(), p_.index_dim, &right(e, 0));
            for (int64_t j = 0; j < seen(e); ++j)
                left(j, e) = d_scores_(query, group, slot * p_.block_size + j);
        }
        const Panels values =
            pack_values(right.data(), p_.index_dim, n, p_.index_dim, panels.data());
        // Later queries see more: key j takes the queries from its own first one on.
        const auto first_query = [&](int64_t j) {
            int64_t e = 0;
            while (e < n && seen(e) <= j) ++e;
            return e;
        };
        const std::array<float, kStrip> keep{1, 1, 1, 1, 1, 1};
        for (int64_t j = 0; j < seen(n - 1); j += kStrip) {
            const int64_t strip = std::min(kStrip, seen(n - 1) - j);
            const int64_t common = first_query(j + strip - 1);
            multiply_add({&left(j, 0), kGathered, strip}, values, common, n, keep.data(),
                         &sums(j, 0), padded(p_.index_dim));
            for (int64_t r = 0; r < strip - 1; ++r)
                if (const int64_t own = first_query(j + r); own < common)
                    multiply_add({&left(j + r, 0), kGathered, 1}, values, own, common, keep.data(),
                                 &sums(j + r, 0), padded(p_.index_dim));
        }
    }

    const Problem& p_;
    const Inputs& in_;
    View<const int32_t, 3> ids_;
    const IndexKlOutput& to_;
    Teacher teacher_;
    int threads_;
    float gradient_;             // of a score, in the mean of the loss
    Tensor<float, 3> d_scores_;  // [Nq, Hkv, k * Bk] t - p of the visible tokens
};

}  // namespace

void index_kl(const Problem& whole, View<const float, 3> index_q, View<const float, 2> index_k,
              View<const float, 3> q, View<const float, 3> k, View<const float, 1> sinks,
              View<const int32_t, 3> ids, const IndexKlOutput& to, Teacher teacher, int threads) {
    if (to.d_index_k) std::fill_n(to.d_index_k.data(), to.d_index_k.size(), 0.0F);
    const int64_t slots = ids ? ids.extent(2) : std::max<int64_t>(1, whole.blocks());
    const int64_t piece =
        std::max<int64_t>(1, kPieceFloats / (whole.kv_heads * slots * whole.block_size));
    const double rows = static_cast<double>(whole.queries() * whole.kv_heads);
    for (int64_t begin = 0; begin < whole.queries(); begin += piece) {
        const QueryRange range{begin, std::min(begin + piece, whole.queries())};
        const Problem p = whole.with_queries(range);
        const int64_t n = p.queries();
        Tensor<int32_t, 3> all;
        if (!ids) all = all_visible_blocks(p);
        const Inputs in{index_q.slice(begin, n), index_k, q.slice(begin, n), k, sinks};
        const IndexKlOutput part{to.kl.slice(begin, n),
                                 to.d_index_q ? to.d_index_q.slice(begin, n) : View<float, 3>(),
                                 to.d_index_k};
        Piece(p, in, ids ? ids.slice(begin, n) : all.view(), rows, part, teacher, threads).run();
    }
}

}  // namespace msa::cpu
