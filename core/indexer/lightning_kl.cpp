// SPDX-License-Identifier: MIT
// Two passes over blocks of keys, three for the maximum of heads: first what the softmaxes are
// divided by, then probabilities, loss and gradient. A tile of queries goes through the blocks that
// any of its rows has in its support, with these rows gathered, so that all products are of
// matrices. Tiles work side by side; what they add to d_index_k goes strip of keys by strip to a
// place of each tile and is added up in order.
#include "core/indexer/lightning_kl.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/indexer/lightning_part.h"
#include "core/selection.h"
#include "core/threads.h"

namespace msa {
namespace {

constexpr int64_t kTileRows = 32;
constexpr int64_t kFullBlock = 128;     // keys at a time where there are no blocks
constexpr int64_t kStripTokens = 1024;  // whose gradients the tiles hold
constexpr float kLeast = std::numeric_limits<float>::min();

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ChosenKeys = Eigen::Map<const Matrix, 0, Eigen::OuterStride<>>;
using Line = Eigen::Map<Eigen::ArrayXf>;

class Pass {
public:
    Pass(const Problem& p, const LightningKlInput& in, const LightningKlOutput& to);

    void run(int threads);

private:
    struct Tile {
        QueryRange rows;
        int64_t first_key, keys;  // of its sequence, that any of its rows sees
    };
    bool supports(int64_t i, int64_t block) const;
    Part part(const Tile&, int64_t block) const;
    Matrix gather(View<const float, 3> from, const std::vector<int64_t>& rows, int64_t first_head,
                  int64_t heads) const;
    Matrix logits(const Part&, int64_t r) const;
    Matrix products(const Part&, const Matrix& index_q) const;
    Matrix scores(const Part&, const Matrix& products) const;
    Matrix teacher(const Part&, int64_t r, Matrix logits) const;

    void add_sums(const Tile&);
    void share_out(int64_t i);
    void add_maxima(const Tile&);
    void compare(const Tile&, QueryRange strip, View<float, 2> d_keys);
    void add_loss(const Part&, int64_t a, int64_t r, const Matrix& target, const Matrix& scores);
    void add_gradient(const Part&, const Matrix& d_scores, Matrix products, const Matrix& index_q,
                      View<float, 2> d_keys);

    const Problem& p_;
    const LightningKlInput& in_;
    const LightningKlOutput& to_;
    const std::vector<KeyRange>& visible_;
    int64_t step_;  // keys of a block
    int64_t group_size_;
    float scale_;
    std::vector<Tile> tiles_;
    Tensor<double, 2> main_lse_;   // [Nq, Hq]
    Tensor<double, 2> share_;      // [Nq, Hq] of each head in its group's teacher
    Tensor<double, 1> index_lse_;  // [Nq]
};

Pass::Pass(const Problem& p, const LightningKlInput& in, const LightningKlOutput& to)
    : p_(p),
      in_(in),
      to_(to),
      visible_(visible_keys(p)),
      step_(in.ids ? p.block_size : kFullBlock),
      group_size_(p.group_size()),
      scale_(static_cast<float>(in.index.scale())),
      main_lse_({p.queries(), p.query_heads}),
      share_({p.queries(), p.query_heads}),
      index_lse_({p.queries()}) {
    for (const QueryRange& rows : query_tiles(p, kTileRows)) {
        Tile tile{rows, 0, 0};
        for (int64_t i = rows.begin; i < rows.end; ++i) {
            tile.first_key = visible_[static_cast<size_t>(i)].first;
            tile.keys = std::max(tile.keys, visible_[static_cast<size_t>(i)].count);
        }
        tiles_.push_back(tile);
    }
}

bool Pass::supports(int64_t i, int64_t block) const {
    if (!in_.ids) return true;
    const std::span<const int32_t> ids = selected(in_.ids, i, 0);
    return std::binary_search(ids.begin(), ids.end(), static_cast<int32_t>(block));
}

Part Pass::part(const Tile& tile, int64_t block) const {
    Part part;
    part.position = block * step_;
    part.first = tile.first_key + part.position;
    part.count = std::min(step_, tile.keys - part.position);
    for (int64_t i = tile.rows.begin; i < tile.rows.end; ++i) {
        const int64_t seen = visible_[static_cast<size_t>(i)].count;
        if (seen <= part.position || !supports(i, block)) continue;
        const int64_t end = std::min(seen - part.position, part.count);
        part.rows.push_back(i);
        part.begin.push_back(std::clamp<int64_t>(p_.window_start(seen) - part.position, 0, end));
        part.end.push_back(end);
    }
    return part;
}

/// Heads [first_head, first_head + heads) of the rows, one below the other.
Matrix Pass::gather(View<const float, 3> from, const std::vector<int64_t>& rows, int64_t first_head,
                    int64_t heads) const {
    const int64_t width = from.extent(2);
    Matrix all(std::ssize(rows) * heads, width);
    for (size_t a = 0; a < rows.size(); ++a)
        std::copy_n(from[rows[a]][first_head].data(), heads * width,
                    all.data() + static_cast<int64_t>(a) * heads * width);
    return all;
}

/// The Main Branch's, [rows * G, keys].
Matrix Pass::logits(const Part& part, int64_t r) const {
    const ChosenKeys keys(in_.k[part.first][r].data(), part.count, p_.head_dim,
                          Eigen::OuterStride<>(p_.kv_heads * p_.head_dim));
    Matrix all = gather(in_.q, part.rows, r * group_size_, group_size_) * keys.transpose();
    if (p_.softcap)
        all = all.unaryExpr([this](float s) { return static_cast<float>(p_.logit(double{s})); });
    else
        all *= static_cast<float>(p_.softmax_scale());
    return all;
}

/// index_q . index_k [rows * H, keys].
Matrix Pass::products(const Part& part, const Matrix& index_q) const {
    const ChosenKeys keys(in_.index.index_k[part.first].data(), part.count, index_q.cols(),
                          Eigen::OuterStride<>(index_q.cols()));
    return index_q * keys.transpose();
}

/// I [rows, keys].
Matrix Pass::scores(const Part& part, const Matrix& products) const {
    const int64_t heads = in_.index.heads();
    Matrix sums = Matrix::Zero(std::ssize(part.rows), part.count);
    for (int64_t a = 0; a < sums.rows(); ++a)
        for (int64_t h = 0; h < heads; ++h)
            sums.row(a) += scale_ * in_.index.weights(part.rows[static_cast<size_t>(a)], h) *
                           products.row(a * heads + h).cwiseMax(0.0F);
    return sums;
}

/// The teacher of group r [rows, keys], 0 where the Main Branch does not see.
Matrix Pass::teacher(const Part& part, int64_t r, Matrix logits) const {
    Matrix target = Matrix::Zero(std::ssize(part.rows), part.count);
    for (int64_t a = 0; a < target.rows(); ++a) {
        const int64_t i = part.rows[static_cast<size_t>(a)];
        const int64_t begin = part.begin[static_cast<size_t>(a)];
        const int64_t count = part.end[static_cast<size_t>(a)] - begin;
        if (count == 0) continue;
        Line joined(&target(a, begin), count);
        for (int64_t g = 0; g < group_size_; ++g) {
            const int64_t h = r * group_size_ + g;
            Line head(&logits(a * group_size_ + g, begin), count);
            head = (head - static_cast<float>(main_lse_(i, h))).exp() *
                   static_cast<float>(share_(i, h));
            if (in_.teacher == Teacher::mean)
                joined += head;
            else
                joined = joined.max(head);
        }
    }
    return target;
}

/// What the softmaxes of a tile's rows are divided by.
void Pass::add_sums(const Tile& tile) {
    std::vector<ExpSum> main(
        static_cast<size_t>((tile.rows.end - tile.rows.begin) * p_.query_heads));
    std::vector<ExpSum> index(static_cast<size_t>(tile.rows.end - tile.rows.begin));
    for (int64_t block = 0; block * step_ < tile.keys; ++block) {
        const Part part = this->part(tile, block);
        if (part.rows.empty()) continue;
        const Matrix sums = scores(
            part, products(part, gather(in_.index.index_q, part.rows, 0, in_.index.heads())));
        for (int64_t r = 0; r < p_.kv_heads; ++r) {
            const Matrix logits = this->logits(part, r);
            for (int64_t a = 0; a < sums.rows(); ++a) {
                const auto at = static_cast<size_t>(a);
                const int64_t begin = part.begin[at], row = part.rows[at] - tile.rows.begin;
                for (int64_t g = 0; g < group_size_; ++g)
                    main[static_cast<size_t>(row * p_.query_heads + r * group_size_ + g)].add(
                        logits.row(a * group_size_ + g)
                            .segment(begin, part.end[at] - begin)
                            .transpose()
                            .array());
            }
        }
        for (int64_t a = 0; a < sums.rows(); ++a) {
            const auto at = static_cast<size_t>(a);
            index[static_cast<size_t>(part.rows[at] - tile.rows.begin)].add(
                sums.row(a).head(part.end[at]).transpose().array());
        }
    }
    for (int64_t i = tile.rows.begin; i < tile.rows.end; ++i) {
        const int64_t row = i - tile.rows.begin;
        index_lse_(i) = index[static_cast<size_t>(row)].lse();
        for (int64_t h = 0; h < p_.query_heads; ++h)
            main_lse_(i, h) = main[static_cast<size_t>(row * p_.query_heads + h)].lse();
        share_out(i);
    }
}

/// Weights each head by 1 - its sink's mass. The weights of a mean teacher add up to 1. Those of a
/// maximum teacher have 1 as the largest; they are normalised once the sum over the keys is known.
void Pass::share_out(int64_t i) {
    for (int64_t first = 0; first < p_.query_heads; first += group_size_) {
        double most = kEmptyLse, total = 0;
        for (int64_t h = first; h < first + group_size_; ++h) {
            const double lse = main_lse_(i, h), sink = in_.sinks ? double{in_.sinks(h)} : kEmptyLse;
            const double all = std::max(lse, sink) + std::log1p(std::exp(-std::abs(lse - sink)));
            share_(i, h) = sink == kEmptyLse ? 0 : lse - all;
            most = std::max(most, share_(i, h));
        }
        for (int64_t h = first; h < first + group_size_; ++h)
            total += share_(i, h) = std::exp(share_(i, h) - most);
        if (in_.teacher == Teacher::mean)
            for (int64_t h = first; h < first + group_size_; ++h) share_(i, h) /= total;
    }
}

/// Divides the shares of a tile's rows by the sum of their maxima.
void Pass::add_maxima(const Tile& tile) {
    Tensor<double, 2> sums({tile.rows.end - tile.rows.begin, p_.kv_heads});
    for (int64_t block = 0; block * step_ < tile.keys; ++block) {
        const Part part = this->part(tile, block);
        for (int64_t r = 0; r < p_.kv_heads && !part.rows.empty(); ++r) {
            const Matrix target = teacher(part, r, logits(part, r));
            for (int64_t a = 0; a < target.rows(); ++a)
                sums(part.rows[static_cast<size_t>(a)] - tile.rows.begin, r) +=
                    double{target.row(a).sum()};
        }
    }
    for (int64_t i = tile.rows.begin; i < tile.rows.end; ++i)
        for (int64_t h = 0; h < p_.query_heads; ++h)
            share_(i, h) /= sums(i - tile.rows.begin, h / group_size_);
}

/// Row a's part of the loss of group r.
void Pass::add_loss(const Part& part, int64_t a, int64_t r, const Matrix& target,
                    const Matrix& scores) {
    const int64_t i = part.rows[static_cast<size_t>(a)], begin = part.begin[static_cast<size_t>(a)];
    const int64_t count = part.end[static_cast<size_t>(a)] - begin;
    const auto p = target.row(a).segment(begin, count).array();
    const auto s = scores.row(a).segment(begin, count).array();
    const auto lse = static_cast<float>(index_lse_(i));
    to_.kl(i, r) += double{(p * (p.max(kLeast).log() - s + lse)).sum()};
}

/// Loss, entropy and gradient on the keys of the strip.
void Pass::compare(const Tile& tile, QueryRange strip, View<float, 2> d_keys) {
    const auto groups = static_cast<float>(p_.kv_heads);
    const float weight = 1 / static_cast<float>(p_.queries());
    for (int64_t block = strip.begin; block < strip.end && block * step_ < tile.keys; ++block) {
        const Part part = this->part(tile, block);
        if (part.rows.empty()) continue;
        const Matrix index_q = gather(in_.index.index_q, part.rows, 0, in_.index.heads());
        Matrix s = products(part, index_q);
        const Matrix sums = scores(part, s);
        Matrix d = Matrix::Zero(sums.rows(), sums.cols());
        for (int64_t r = 0; r < p_.kv_heads; ++r) {
            const Matrix target = teacher(part, r, logits(part, r));
            for (int64_t a = 0; a < sums.rows(); ++a)
                if (to_.kl && main_lse_(part.rows[static_cast<size_t>(a)], 0) > kEmptyLse)
                    add_loss(part, a, r, target, sums);
            d -= target / groups;
        }
        for (int64_t a = 0; a < sums.rows(); ++a) {
            const int64_t i = part.rows[static_cast<size_t>(a)];
            const int64_t end = part.end[static_cast<size_t>(a)];
            const Eigen::ArrayXf t =
                (sums.row(a).head(end).array() - static_cast<float>(index_lse_(i))).exp();
            if (to_.entropy)
                to_.entropy(i) -= double{(t * sums.row(a).head(end).transpose().array()).sum()};
            d.row(a).head(end) += t.matrix().transpose();
            d.row(a) *= main_lse_(i, 0) == kEmptyLse ? 0.0F : weight;
        }
        if (to_.d_index_q)
            add_gradient(part, d, std::move(s), index_q,
                         d_keys.slice((block - strip.begin) * step_, part.count));
    }
}

/// Backpropagates dL/dI to index_q, index_k and the weights.
void Pass::add_gradient(const Part& part, const Matrix& d_scores, Matrix products,
                        const Matrix& index_q, View<float, 2> d_keys) {
    const int64_t heads = in_.index.heads(), width = index_q.cols();
    Matrix& d = products;  // becomes the gradient of what it holds, row by row
    for (int64_t a = 0; a < d_scores.rows(); ++a) {
        const int64_t i = part.rows[static_cast<size_t>(a)];
        for (int64_t h = 0; h < heads; ++h) {
            auto row = d.row(a * heads + h).array();
            const auto score = d_scores.row(a).array();
            to_.d_weights(i, h) += scale_ * (score * row.max(0.0F)).sum();
            row = (row > 0.0F).select(score * (scale_ * in_.index.weights(i, h)), 0.0F);
        }
    }
    const ChosenKeys keys(in_.index.index_k[part.first].data(), part.count, width,
                          Eigen::OuterStride<>(width));
    const Matrix d_q = d * keys;
    for (size_t a = 0; a < part.rows.size(); ++a)
        Eigen::Map<Matrix>(to_.d_index_q[part.rows[a]].data(), heads, width) +=
            d_q.middleRows(static_cast<int64_t>(a) * heads, heads);
    Eigen::Map<Matrix>(d_keys.data(), part.count, width).noalias() += d.transpose() * index_q;
}

void Pass::run(int threads) {
    const auto tiles = std::ssize(tiles_);
    const auto each = [&](auto work) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
        for (int64_t t = 0; t < tiles; ++t) work(t);
    };
    each([&](int64_t t) { add_sums(tiles_[static_cast<size_t>(t)]); });
    if (in_.teacher == Teacher::max)
        each([&](int64_t t) { add_maxima(tiles_[static_cast<size_t>(t)]); });
    if (to_.entropy)
        for (int64_t i = 0; i < p_.queries(); ++i)
            to_.entropy(i) = index_lse_(i) == kEmptyLse ? 0 : index_lse_(i);

    int64_t most = 0;
    for (const Tile& tile : tiles_) most = std::max(most, tile.keys);
    const int64_t blocks = std::max<int64_t>(1, kStripTokens / step_), strip = blocks * step_;
    const int64_t width = in_.index.index_k.extent(1);
    Tensor<float, 3> d_keys;  // of each tile, the strip's keys
    if (to_.d_index_k) d_keys = Tensor<float, 3>({tiles, strip, width});
    for (int64_t begin = 0; begin < most; begin += strip) {
        const QueryRange range{begin / step_, begin / step_ + blocks};
        if (to_.d_index_k) std::fill_n(d_keys.data(), d_keys.size(), 0.0F);
        each([&](int64_t t) {
            compare(tiles_[static_cast<size_t>(t)], range,
                    to_.d_index_k ? d_keys.view()[t] : View<float, 2>());
        });
        for (int64_t t = 0; t < tiles && to_.d_index_k; ++t) {
            const Tile& tile = tiles_[static_cast<size_t>(t)];
            const int64_t count = std::min(strip, tile.keys - begin);
            if (count <= 0) continue;
            Line(to_.d_index_k[tile.first_key + begin].data(), count * width) +=
                Line(d_keys.view()[t].data(), count * width);
        }
    }
}

void check(const Problem& p, const LightningKlInput& in, const LightningKlOutput& to) {
    const int64_t heads = in.index.heads(), width = in.index.index_q.extent(2);
    MSA_CHECK(in.index.index_q.extent(0) == p.queries() && heads >= 1 && width >= 1);
    MSA_CHECK(in.index.index_k.shape() == (Shape<2>{p.keys(), width}));
    MSA_CHECK(in.index.weights.shape() == (Shape<2>{p.queries(), heads}));
    MSA_CHECK(in.q.shape() == (Shape<3>{p.queries(), p.query_heads, p.head_dim}));
    MSA_CHECK(in.k.shape() == (Shape<3>{p.keys(), p.kv_heads, p.head_dim}));
    MSA_CHECK(bool(to.d_index_q) == bool(to.d_index_k));
    MSA_CHECK(bool(to.d_index_q) == bool(to.d_weights));
}

template <typename View>
void clear(const View& view) {
    if (view) std::fill_n(view.data(), view.size(), 0);
}

}  // namespace

double LightningInput::scale() const {
    return 1 / std::sqrt(static_cast<double>(heads() * index_q.extent(2)));
}

void lightning_kl(const Problem& p, const LightningKlInput& in, const LightningKlOutput& to,
                  int threads) {
    check(p, in, to);
    clear(to.kl);
    clear(to.d_index_q);
    clear(to.d_index_k);
    clear(to.d_weights);
    Pass(p, in, to).run(threads_or_all(threads));
}

}  // namespace msa
