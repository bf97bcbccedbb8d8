// SPDX-License-Identifier: MIT
// A tile of queries of one sequence: its products with all pieces are one product of matrices. A
// tile's part of d_index_k has a place of its own; the parts are added in order.
#include "core/indexer/qsa_kl.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/indexer/head_rows.h"
#include "core/selection.h"
#include "core/threads.h"

namespace msa {
namespace {

constexpr int64_t kQsaRows = 32;
constexpr int64_t kMostQsaTiles = 32;  // so that the places of d_index_k stay small

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Values = std::vector<double>;

/// Pieces of the support of query i that sees `complete` of them.
std::vector<int64_t> pieces_of(const Problem& p, const QsaKlInput& in, int64_t i,
                               int64_t complete) {
    std::vector<int64_t> pieces;
    if (!in.ids) {
        for (int64_t n = 0; n < complete; ++n) pieces.push_back(n);
        return pieces;
    }
    for (const int32_t b : selected(in.ids, i, 0)) {
        const int64_t first = b * p.block_size, last = first + p.block_size - 1;
        for (int64_t n = first / in.compress; n <= last / in.compress && n < complete; ++n)
            if (pieces.empty() || pieces.back() < n) pieces.push_back(n);
    }
    return pieces;
}

double entropy_of(const Values& logarithms) {
    double sum = 0;
    for (const double log : logarithms)
        if (std::isfinite(log)) sum -= std::exp(log) * log;
    return sum;
}

/// Logarithms of the softmax.
Values log_softmax(Values logits) {
    if (logits.empty()) return logits;
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (double& logit : logits) sum += std::exp(logit -= top);
    for (double& logit : logits) logit -= std::log(sum);
    return logits;
}

/// One tile, and the pieces [first, first + count) of its sequence.
class QsaTile {
public:
    QsaTile(const Problem& p, const QsaKlInput& in, const QsaKlOutput& to, QueryRange rows,
            QueryRange pieces)
        : p_(p), in_(in), to_(to), rows_(rows), pieces_(pieces), heads_(in.index_q.extent(1)) {}

    /// d_keys [pieces, didx]: the tile's part; absent without gradients.
    void run(View<float, 2> d_keys) {
        const int64_t width = in_.index_q.extent(2), count = pieces_.end - pieces_.begin;
        const Eigen::Map<const Matrix> queries(in_.index_q[rows_.begin].data(),
                                               (rows_.end - rows_.begin) * heads_, width);
        const Eigen::Map<const Matrix> keys(count > 0 ? in_.index_k[pieces_.begin].data() : nullptr,
                                            count, width);
        products_.noalias() = queries * keys.transpose();
        for (int64_t i = rows_.begin; i < rows_.end; ++i) row(i);
        if (!d_keys) return;
        Eigen::Map<Matrix>(to_.d_index_q[rows_.begin].data(), queries.rows(), width).noalias() =
            products_ * keys;
        Eigen::Map<Matrix>(d_keys.data(), count, width).noalias() = products_.transpose() * queries;
    }

private:
    /// Loss and entropies of query i. Its products become their gradient.
    void row(int64_t i) {
        const int64_t seen = visible_keys(p_)[static_cast<size_t>(i)].count;
        const std::vector<int64_t> pieces = pieces_of(p_, in_, i, seen / in_.compress);
        const int64_t at = (i - rows_.begin) * heads_;
        Values scores(pieces.size(), 0.0);
        for (size_t n = 0; n < pieces.size(); ++n)
            for (int64_t h = 0; h < heads_; ++h)
                scores[n] += in_.scale() * std::max(0.0, double{products_(at + h, pieces[n])});
        const Values index = log_softmax(std::move(scores));
        if (to_.entropy) to_.entropy(i) = entropy_of(index);
        Values d(pieces.size(), 0.0);
        for (int64_t r = 0; r < p_.kv_heads; ++r) compare(i, r, pieces, index, d);
        if (!to_.d_index_q) return;
        const double scale = in_.scale() / static_cast<double>(p_.queries() * p_.kv_heads);
        for (int64_t h = 0; h < heads_; ++h) {
            const Eigen::VectorXf of = products_.row(at + h);
            products_.row(at + h).setZero();
            for (size_t n = 0; n < pieces.size(); ++n)
                if (of(pieces[n]) > 0)
                    products_(at + h, pieces[n]) = static_cast<float>(scale * d[n]);
        }
    }

    /// Adds sum_r (t - p_r) to d.
    void compare(int64_t i, int64_t r, const std::vector<int64_t>& pieces, const Values& index,
                 Values& d) const {
        double total = 0, kl = 0;
        for (const int64_t n : pieces) total += double{in_.target(i, r, n)};
        Values target;
        for (size_t n = 0; n < pieces.size() && total > 0; ++n) {
            const double share = double{in_.target(i, r, pieces[n])} / total;
            target.push_back(std::log(share));
            if (share > 0) kl += share * (target.back() - index[n]);
            d[n] += std::exp(index[n]) - share;
        }
        if (to_.kl) to_.kl(i, r) = kl;
        if (to_.target_entropy) to_.target_entropy(i, r) = entropy_of(target);
    }

    const Problem& p_;
    const QsaKlInput& in_;
    const QsaKlOutput& to_;
    QueryRange rows_, pieces_;
    int64_t heads_;
    Matrix products_;  // [rows * H, pieces]
};

void check_qsa(const Problem& p, const QsaKlInput& in, const QsaKlOutput& to, int64_t pieces) {
    MSA_CHECK(in.compress >= 1 && in.index_q.extent(0) == p.queries());
    MSA_CHECK(in.index_k.shape() == (Shape<2>{pieces, in.index_q.extent(2)}));
    MSA_CHECK(in.target.extent(0) == p.queries() && in.target.extent(1) == p.kv_heads);
    MSA_CHECK(bool(to.d_index_q) == bool(to.d_index_k));
}

}  // namespace

Tensor<float, 2> piece_means(View<const float, 2> x, int64_t compress) {
    Tensor<float, 2> means({x.extent(0) / compress, x.extent(1)});
    for (int64_t n = 0; n < means.extent(0); ++n)
        for (int64_t c = 0; c < x.extent(1); ++c) {
            double sum = 0;
            for (int64_t j = n * compress; j < (n + 1) * compress; ++j) sum += double{x(j, c)};
            means(n, c) = static_cast<float>(sum / static_cast<double>(compress));
        }
    return means;
}

std::vector<int64_t> piece_starts(std::span<const int64_t> cu, int64_t compress) {
    std::vector<int64_t> starts{0};
    for (size_t s = 1; s < cu.size(); ++s)
        starts.push_back(starts.back() + (cu.data()[s] - cu.data()[s - 1]) / compress);
    return starts;
}

double QsaKlInput::scale() const { return 1 / std::sqrt(static_cast<double>(index_q.extent(2))); }

void qsa_kl(const Problem& p, const QsaKlInput& in, const QsaKlOutput& to, int threads) {
    const std::vector<int64_t> starts = piece_starts(p.batch.cu_seqlens_k(), in.compress),
                               sequence = query_sequences(p);
    check_qsa(p, in, to, starts.back());
    const std::vector<QueryRange> tiles =
        query_tiles(p, std::max(kQsaRows, ceil_div(p.queries(), kMostQsaTiles)));
    const int64_t width = in.index_q.extent(2);
    std::vector<Tensor<float, 2>> d_keys(tiles.size());
    const auto range_of = [&](const QueryRange& tile) {
        const auto s = static_cast<size_t>(sequence[static_cast<size_t>(tile.begin)]);
        return QueryRange{starts[s], starts[s + 1]};
    };
#pragma omp parallel for schedule(dynamic) num_threads(threads_or_all(threads))
    for (size_t t = 0; t < tiles.size(); ++t) {
        const QueryRange pieces = range_of(tiles[t]);
        if (to.d_index_k) d_keys[t] = Tensor<float, 2>({pieces.end - pieces.begin, width});
        QsaTile(p, in, to, tiles[t], pieces).run(d_keys[t].view());
    }
    if (!to.d_index_k) return;
    std::fill_n(to.d_index_k.data(), to.d_index_k.size(), 0.0F);
    for (size_t t = 0; t < tiles.size(); ++t) {
        float* const sum = to.d_index_k.data() + range_of(tiles[t]).begin * width;
        for (int64_t n = 0; n < d_keys[t].size(); ++n) sum[n] += d_keys[t].data()[n];
    }
}

}  // namespace msa
