// SPDX-License-Identifier: MIT
// The gate's logits are few, one per block: a product of matrices for each sequence and group.
#include "core/indexer/gate_kl.h"

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

constexpr int64_t kGateRows = 128;  // queries of a tile of the gate
constexpr double kNoLogit = -std::numeric_limits<double>::infinity();

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using LogitLine = Eigen::Map<const Eigen::ArrayXf>;

/// The softmaxes of one (query, group): what loss, gradient and entropies are made of.
class GateRow {
public:
    /// logits [blocks before the own]; only the blocks `ids` count where there are some.
    GateRow(const LogitLine& logits, View<const float, 1> target, View<const int32_t, 3> ids,
            int64_t i, int64_t r) {
        const int64_t own = logits.size();
        if (ids) {
            for (int32_t b : selected(ids, i, r))
                if (b < own) blocks_.push_back(b);
        } else {
            for (int64_t b = 0; b < own; ++b) blocks_.push_back(b);
        }
        double top = kNoLogit, sum = 0;
        for (int64_t b : blocks_) top = std::max(top, double{logits(b)});
        for (int64_t b : blocks_) {
            logits_.push_back(double{logits(b)} - top);
            sum += std::exp(logits_.back());
            target_.push_back(double{target(b)});
            total_ += target_.back();
        }
        for (double& logit : logits_) logit -= std::log(sum);
    }

    bool learns() const { return total_ > 0; }
    const std::vector<int64_t>& blocks() const { return blocks_; }
    double gate(size_t n) const { return std::exp(logits_[n]); }
    double target(size_t n) const { return target_[n] / total_; }
    double kl() const {
        double sum = 0;
        for (size_t n = 0; n < blocks_.size(); ++n)
            if (target_[n] > 0) sum += target(n) * (std::log(target(n)) - logits_[n]);
        return sum;
    }
    double entropy() const {
        double sum = 0;
        for (size_t n = 0; n < blocks_.size(); ++n)
            if (gate(n) > 0) sum -= gate(n) * logits_[n];
        return sum;
    }
    double target_entropy() const {
        double sum = 0;
        for (size_t n = 0; n < blocks_.size(); ++n)
            if (target_[n] > 0) sum -= target(n) * std::log(target(n));
        return sum;
    }

private:
    std::vector<int64_t> blocks_;
    std::vector<double> logits_, target_;  // of gate's logarithms; before they are divided
    double total_ = 0;
};

/// Loss of a tile and a group; gradient of the logits into d [rows, blocks], where it is wanted.
void compare_gate(const Problem& p, const GateKlInput& in, const GateKlOutput& to, QueryRange tile,
                  int64_t first_block, int64_t r, Matrix& d) {
    const std::vector<KeyRange>& visible = visible_keys(p);
    const auto own = [&](int64_t i) {
        return std::max<int64_t>(0, own_block(visible[static_cast<size_t>(i)].count, p.block_size));
    };
    int64_t most = 0;
    for (int64_t i = tile.begin; i < tile.end; ++i) most = std::max(most, own(i));
    Matrix logits(tile.end - tile.begin, most);
    logits.noalias() = static_cast<float>(in.scale()) * rows_of_head(in.gate_q, r, tile) *
                       rows_of_head(in.gate_k, r, {first_block, first_block + most}).transpose();
    const double scale = in.scale() / static_cast<double>(p.queries() * p.kv_heads);
    for (int64_t i = tile.begin; i < tile.end; ++i) {
        const int64_t a = i - tile.begin;
        const GateRow row(LogitLine(logits.data() + a * most, own(i)), in.target[i][r], in.ids, i,
                          r);
        if (to.kl) to.kl(i, r) = row.learns() ? row.kl() : 0;
        if (to.entropy) to.entropy(i, r) = row.entropy();
        if (to.target_entropy) to.target_entropy(i, r) = row.learns() ? row.target_entropy() : 0;
        if (!to.d_gate_q || !row.learns()) continue;
        for (size_t n = 0; n < row.blocks().size(); ++n)
            d(a, row.blocks()[n]) = static_cast<float>(scale * (row.gate(n) - row.target(n)));
    }
}

void check_gate(const Problem& p, const GateKlInput& in, const GateKlOutput& to) {
    const int64_t width = in.gate_q.extent(2);
    MSA_CHECK(in.gate_q.shape() == (Shape<3>{p.queries(), p.kv_heads, width}) && width >= 1);
    MSA_CHECK(in.gate_k.shape() == (Shape<3>{block_starts(p).back(), p.kv_heads, width}));
    MSA_CHECK(in.target.shape() == (Shape<3>{p.queries(), p.kv_heads, p.blocks()}));
    MSA_CHECK(bool(to.d_gate_q) == bool(to.d_gate_k));
}

}  // namespace

double GateKlInput::scale() const { return 1 / std::sqrt(static_cast<double>(gate_q.extent(2))); }

void gate_kl(const Problem& p, const GateKlInput& in, const GateKlOutput& to, int threads) {
    check_gate(p, in, to);
    if (to.d_gate_k) std::fill_n(to.d_gate_k.data(), to.d_gate_k.size(), 0.0F);
    const std::vector<int64_t> starts = block_starts(p), &queries = p.batch.cu_seqlens_q();
    const int64_t width = in.gate_q.extent(2);
    // A (sequence, group) has keys of its own: whoever takes it adds up their gradient in order.
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads_or_all(threads))
    for (int64_t s = 0; s < p.sequences(); ++s)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t first = starts[static_cast<size_t>(s)],
                          blocks = starts[static_cast<size_t>(s) + 1] - first,
                          end = queries[static_cast<size_t>(s) + 1];
            for (int64_t i = queries[static_cast<size_t>(s)]; i < end; i += kGateRows) {
                const QueryRange tile{i, std::min(i + kGateRows, end)};
                Matrix d = Matrix::Zero(tile.end - tile.begin, to.d_gate_q ? blocks : 0);
                compare_gate(p, in, to, tile, first, r, d);
                if (!to.d_gate_q) continue;
                using Target = Eigen::Map<Matrix, 0, Eigen::OuterStride<>>;
                const Eigen::OuterStride<> stride(p.kv_heads * width);
                Target(to.d_gate_q[tile.begin][r].data(), d.rows(), width, stride) =
                    d * rows_of_head(in.gate_k, r, {first, first + blocks});
                Target(to.d_gate_k[first][r].data(), blocks, width, stride) +=
                    d.transpose() * rows_of_head(in.gate_q, r, tile);
            }
        }
}

}  // namespace msa
