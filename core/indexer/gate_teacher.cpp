// SPDX-License-Identifier: MIT
// The teacher goes tile of queries by strip of keys: products of matrices, of which each block
// leaves its largest logit and the sum of its exponentials, and nothing else is kept.
#include "core/indexer/gate_teacher.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/indexer/head_rows.h"
#include "core/selection.h"
#include "core/threads.h"

namespace msa {
namespace {

constexpr int64_t kTeacherRows = 32;    // queries of a tile
constexpr int64_t kTeacherKeys = 1024;  // of a strip, about

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The sum of a block's exponentials as exp(top) * sum, for each query and head of a tile.
struct BlockSums {
    Tensor<float, 3> top, sum;  // [rows, G, blocks]
};

/// One group's heads on one tile of queries.
class TeacherTile {
public:
    TeacherTile(const Problem& p, const GateTeacherInput& in, QueryRange rows, int64_t group)
        : p_(p),
          in_(in),
          rows_(rows),
          group_(group),
          visible_(visible_keys(p)),
          heads_(p.group_size()) {
        for (int64_t i = rows.begin; i < rows.end; ++i) keys_ = std::max(keys_, seen(i).count);
        const int64_t blocks = visible_blocks(keys_, p.block_size);
        sums_ = {Tensor<float, 3>({rows.end - rows.begin, heads_, blocks}),
                 Tensor<float, 3>({rows.end - rows.begin, heads_, blocks})};
    }

    void run(View<float, 3> to) {
        const int64_t step = std::max<int64_t>(1, kTeacherKeys / p_.block_size) * p_.block_size;
        for (int64_t begin = 0; begin < keys_; begin += step)
            add_strip({begin, std::min(begin + step, keys_)});
        for (int64_t i = rows_.begin; i < rows_.end; ++i) write(i, to[i][group_]);
    }

private:
    KeyRange seen(int64_t i) const { return visible_[static_cast<size_t>(i)]; }

    /// Logits of the strip's keys [rows * G, keys].
    Matrix logits(QueryRange strip) const {
        const int64_t count = rows_.end - rows_.begin, width = p_.head_dim;
        Matrix queries(count * heads_, width);
        for (int64_t a = 0; a < count; ++a)
            std::copy_n(in_.q[rows_.begin + a][group_ * heads_].data(), heads_ * width,
                        queries.data() + a * heads_ * width);
        const int64_t first = seen(rows_.begin).first;
        Matrix all =
            queries *
            rows_of_head(in_.k, group_, {first + strip.begin, first + strip.end}).transpose();
        if (p_.softcap)
            all =
                all.unaryExpr([this](float s) { return static_cast<float>(p_.logit(double{s})); });
        else
            all *= static_cast<float>(p_.softmax_scale());
        return all;
    }

    void add_strip(QueryRange strip) {
        const Matrix all = logits(strip);
        for (int64_t i = rows_.begin; i < rows_.end; ++i)
            for (int64_t g = 0; g < heads_; ++g)
                for (int64_t b = strip.begin / p_.block_size; b * p_.block_size < strip.end; ++b) {
                    const int64_t row = i - rows_.begin, start = p_.window_start(seen(i).count);
                    const int64_t begin = std::max(b * p_.block_size, start),
                                  end =
                                      std::min({(b + 1) * p_.block_size, strip.end, seen(i).count});
                    if (begin >= end) continue;
                    const Eigen::Map<const Eigen::ArrayXf> of(
                        &all(row * heads_ + g, begin - strip.begin), end - begin);
                    const float top = of.maxCoeff();
                    sums_.top(row, g, b) = top;
                    sums_.sum(row, g, b) = (of - top).exp().sum();
                }
    }

    void write(int64_t i, View<float, 1> to) const {
        std::fill_n(to.data(), to.size(), 0.0F);
        const int64_t row = i - rows_.begin, blocks = sums_.sum.extent(2);
        const int64_t own = own_block(seen(i).count, p_.block_size);
        std::vector<double> pooled(static_cast<size_t>(std::max<int64_t>(0, own)), 0.0);
        for (int64_t g = 0; g < heads_; ++g) {
            double top = in_.sinks ? double{in_.sinks(group_ * heads_ + g)}
                                   : -std::numeric_limits<double>::infinity();
            double sum = in_.sinks ? 1 : 0;  // of exp(logit - top)
            for (int64_t b = 0; b < blocks; ++b) {
                if (sums_.sum(row, g, b) <= 0) continue;  // not seen
                const double of_block = sums_.top(row, g, b);
                if (of_block > top) {
                    sum *= std::exp(top - of_block);
                    top = of_block;
                }
                sum += double{sums_.sum(row, g, b)} * std::exp(of_block - top);
            }
            for (int64_t b = 0; b < own; ++b) {
                const double seen_sum = double{sums_.sum(row, g, b)};
                if (seen_sum <= 0) continue;
                const double largest = std::exp(double{sums_.top(row, g, b)} - top) / sum;
                double& joined = pooled[static_cast<size_t>(b)];
                if (in_.teacher == Teacher::mean)
                    joined += largest * seen_sum / static_cast<double>(heads_);
                else
                    joined = std::max(joined, largest);
            }
        }
        for (int64_t b = 0; b < own; ++b)
            to(b) = static_cast<float>(pooled[static_cast<size_t>(b)]);
    }

    const Problem& p_;
    const GateTeacherInput& in_;
    QueryRange rows_;
    int64_t group_;
    const std::vector<KeyRange>& visible_;
    int64_t heads_;
    int64_t keys_ = 0;  // of the sequence that any row sees
    BlockSums sums_;
};

}  // namespace

Tensor<float, 2> pool_keys(View<const float, 3> k, int64_t block_size) {
    const int64_t groups = k.extent(1), width = k.extent(2);
    Tensor<float, 2> pooled({ceil_div(k.extent(0), block_size), groups * kGatePools * width});
    for (int64_t b = 0; b < pooled.extent(0); ++b)
        for (int64_t r = 0; r < groups; ++r) {
            const HeadRows keys =
                rows_of_head(k, r, {b * block_size, std::min((b + 1) * block_size, k.extent(0))});
            Eigen::Map<Matrix> to(&pooled(b, r * kGatePools * width), kGatePools, width);
            to.row(0) = keys.colwise().maxCoeff();
            to.row(1) = keys.colwise().minCoeff();
            to.row(2) = keys.cast<double>().colwise().mean().cast<float>();
        }
    return pooled;
}

std::vector<int64_t> block_positions(const Problem& p) {
    const std::vector<int64_t> starts = block_starts(p);
    std::vector<int64_t> positions;
    for (size_t s = 0; s + 1 < starts.size(); ++s)
        for (int64_t b = 0; b < starts[s + 1] - starts[s]; ++b)
            positions.push_back(b * p.block_size);
    return positions;
}

void gate_teacher(const Problem& p, const GateTeacherInput& in, View<float, 3> to, int threads) {
    MSA_CHECK(in.q.shape() == (Shape<3>{p.queries(), p.query_heads, p.head_dim}));
    MSA_CHECK(in.k.shape() == (Shape<3>{p.keys(), p.kv_heads, p.head_dim}));
    MSA_CHECK(to.shape() == (Shape<3>{p.queries(), p.kv_heads, p.blocks()}));
    const std::vector<QueryRange> tiles = query_tiles(p, kTeacherRows);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads_or_all(threads))
    for (int64_t t = 0; t < std::ssize(tiles); ++t)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            TeacherTile(p, in, tiles[static_cast<size_t>(t)], r).run(to);
}

}  // namespace msa
