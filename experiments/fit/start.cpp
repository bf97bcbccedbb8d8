// SPDX-License-Identifier: MIT
#include "experiments/fit/start.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <complex>
#include <functional>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/indexer/gate_kl.h"
#include "core/indexer/projection.h"
#include "core/random.h"
#include "core/rope.h"
#include "experiments/driver/sample.h"
#include "experiments/fit/architecture.h"
#include "experiments/fit/rope.h"

namespace msa::experiments::fit {
namespace {

constexpr int64_t kMostTokens = 16384;  // that a fit looks at
constexpr double kFloor = 1e-6;         // of the largest query direction

using Eigen::MatrixXcd;
using Eigen::MatrixXd;
using Eigen::VectorXd;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::vector<int64_t> some_of(std::span<const int64_t> tokens, uint64_t seed) {
    std::vector<int64_t> some;
    for (int64_t n : stratified_sample(static_cast<int64_t>(tokens.size()), kMostTokens, seed))
        some.push_back(tokens[static_cast<size_t>(n)]);
    return some;
}

IndexWeights normal_weights(const IndexForm& form, uint64_t seed) {
    IndexWeights w(form);
    uint64_t stream = 0;
    for (View<float, 2> to : {w.w_q(), w.w_k(), w.w_h()}) {
        ++stream;
        if (!to) continue;
        const double standard_deviation = 1 / std::sqrt(static_cast<double>(to.extent(1)));
        for (int64_t n = 0; n < to.size(); ++n)
            to.data()[n] = static_cast<float>(
                standard_deviation * random_normal(mix(seed, static_cast<int64_t>(stream), n)));
    }
    return w;
}

/// Square root of a covariance and its inverse, small directions floored.
struct Root {
    explicit Root(const MatrixXd& covariance) {
        const Eigen::SelfAdjointEigenSolver<MatrixXd> eigen(covariance);
        const VectorXd values =
            eigen.eigenvalues().cwiseMax(kFloor * eigen.eigenvalues().maxCoeff() + 1e-30);
        const MatrixXd& vectors = eigen.eigenvectors();
        root = vectors * values.cwiseSqrt().asDiagonal() * vectors.transpose();
        inverse = vectors * values.cwiseSqrt().cwiseInverse().asDiagonal() * vectors.transpose();
    }
    MatrixXd root, inverse;
};

class ClosedForm {
public:
    ClosedForm(const IndexForm& form, std::span<const int64_t> pairs, const TrainingLayer& data,
               std::span<const int64_t> tokens, bool weighted);

    /// Overwrites the channels of `w` that the fit reaches; the others of index_q become 0.
    void fill(IndexWeights& w) const;

private:
    /// Channels `channel` of every head as columns, of queries or keys.
    MatrixXd of_heads(const MatrixXd& values, int64_t channel) const;
    /// Of an index head.
    int64_t group(int64_t head) const { return head / (form_.groups / groups_); }
    void rotated_pair(int64_t pair, MatrixXd& to_q, MatrixXd& to_k) const;
    void passing(MatrixXd& to_q, MatrixXd& to_k) const;
    int64_t channels() const { return form_.index_dim; }

    IndexForm form_;
    std::span<const int64_t> pairs_;               // of the model
    int64_t groups_, head_dim_, rotary_, passes_;  // of the model
    bool weighted_;
    double scale_;        // of the main logits, in those of the index
    MatrixXd w_q_, w_k_;  // [heads * dh, d_model], [Hkv * dh, d_model] fits of q and k_r
    MatrixXd q_, k_;      // [n, Hkv * dh] q_r; fitted k_r, its passing channels without their mean
    VectorXd one_;        // [d_model] fit of 1
};

/// Rows `tokens` of a field before RoPE, its channels c and c + rotary/2 a pair, as many
/// neighbouring heads averaged as leave `means` of them: [n, means * dh].
MatrixXd head_means(const TrainingLayer& data, View<const float, 3> field,
                    std::span<const int64_t> tokens, int64_t means) {
    Tensor<float, 3> rows = gather_rows(field, tokens);
    std::vector<int64_t> positions;
    for (int64_t token : tokens) positions.push_back(data.positions[static_cast<size_t>(token)]);
    undo_rope(rows, positions, {data.rope, data.info.rope_interleaved});
    const int64_t width = rows.extent(2), heads = rows.extent(1) / means;
    MatrixXd mean = MatrixXd::Zero(rows.extent(0), means * width);
    for (int64_t i = 0; i < rows.extent(0); ++i)
        for (int64_t h = 0; h < rows.extent(1); ++h)
            for (int64_t d = 0; d < width; ++d)
                mean(i, h / heads * width + d) += double{rows(i, h, d)};
    return mean / static_cast<double>(heads);
}

/// Of each of the model's pairs, the sum over groups of the rms of the mean query times that of the
/// key.
VectorXd pair_energy(const TrainingLayer& data, std::span<const int64_t> tokens) {
    const int64_t groups = data.problem.kv_heads, width = data.problem.head_dim;
    const std::ptrdiff_t pairs = std::ssize(data.rope);
    const auto squares = [&](View<const float, 3> field) {
        return VectorXd(head_means(data, field, tokens, groups).colwise().squaredNorm());
    };
    const VectorXd q = squares(data.q), k = squares(data.k);
    VectorXd energy = VectorXd::Zero(pairs);
    for (int64_t r = 0; r < groups; ++r) {
        const auto of_pairs = [&](const VectorXd& of) -> VectorXd {
            return of.segment(r * width, pairs) + of.segment(r * width + pairs, pairs);
        };
        energy += of_pairs(q).cwiseProduct(of_pairs(k)).cwiseSqrt();
    }
    return energy;
}

ClosedForm::ClosedForm(const IndexForm& form, std::span<const int64_t> pairs,
                       const TrainingLayer& data, std::span<const int64_t> tokens, bool weighted)
    : form_(form),
      pairs_(pairs),
      groups_(data.problem.kv_heads),
      head_dim_(data.problem.head_dim),
      rotary_(2 * std::ssize(data.rope)),
      passes_(head_dim_ - rotary_),
      weighted_(weighted),
      scale_(data.problem.softmax_scale() / data.problem.index_scale()) {
    const Tensor<float, 3> x = gather_rows(data.x, tokens);
    const auto n = static_cast<double>(tokens.size());
    const MatrixXd hidden =
        Eigen::Map<const RowMajor>(x.data(), x.extent(0), x.extent(2)).cast<double>();
    q_ = head_means(data, data.q, tokens, groups_);
    k_ = head_means(data, data.k, tokens, groups_);
    // Ridge regression, where the regularised second moment of x' is the identity.
    w_q_ = head_means(data, data.q, tokens, form.groups).transpose() * hidden / n;
    w_k_ = k_.transpose() * hidden / n;
    one_ = hidden.colwise().mean();
    k_ = hidden * w_k_.transpose();
    for (int64_t r = 0; r < groups_; ++r) {
        auto passing = k_.middleCols(r * head_dim_ + rotary_, passes_);
        passing = passing.rowwise() - Eigen::RowVectorXd(passing.colwise().mean());
    }
}

MatrixXd ClosedForm::of_heads(const MatrixXd& values, int64_t channel) const {
    MatrixXd columns(values.rows(), values.cols() / head_dim_);
    for (int64_t h = 0; h < columns.cols(); ++h)
        columns.col(h) = values.col(h * head_dim_ + channel);
    return columns;
}

void ClosedForm::rotated_pair(int64_t pair, MatrixXd& to_q, MatrixXd& to_k) const {
    using namespace std::complex_literals;
    const int64_t low = pairs_[static_cast<size_t>(pair)], high = low + rotary_ / 2;
    const auto complex = [&](const MatrixXd& values) -> MatrixXcd {
        return of_heads(values, low) + 1i * of_heads(values, high);
    };
    Eigen::RowVectorXd weight = Eigen::RowVectorXd::Ones(groups_);
    if (weighted_) weight = complex(q_).cwiseAbs2().colwise().mean().cwiseSqrt().cwiseMax(kFloor);
    const MatrixXcd keys = complex(k_) * weight.cast<std::complex<double>>().asDiagonal();
    const MatrixXcd covariance = keys.transpose() * keys.conjugate();
    const Eigen::VectorXcd first =
        Eigen::SelfAdjointEigenSolver<MatrixXcd>(covariance).eigenvectors().rightCols(1);
    // z = first^H k and k_r = first_r z; then q_r^* k_r = (first_r^* q_r)^* z.
    const MatrixXcd of_keys = complex(w_k_.transpose()), of_queries = complex(w_q_.transpose());
    const Eigen::VectorXcd z =
        of_keys * weight.cast<std::complex<double>>().asDiagonal() * first.conjugate();
    const int64_t other = pair + form_.rotary_dim / 2;
    to_k.row(pair) = z.real().transpose();
    to_k.row(other) = z.imag().transpose();
    for (int64_t h = 0; h < form_.groups; ++h) {
        const int64_t r = group(h);
        const Eigen::VectorXcd reader = of_queries.col(h) * std::conj(first(r)) / weight(r);
        to_q.row(h * channels() + pair) = reader.real().transpose();
        to_q.row(h * channels() + other) = reader.imag().transpose();
    }
}

void ClosedForm::passing(MatrixXd& to_q, MatrixXd& to_k) const {
    const int64_t kept = std::min(channels() - form_.rotary_dim, groups_ * passes_);
    if (kept == 0) return;
    const auto n = static_cast<double>(k_.rows());
    MatrixXd keys(k_.rows(), groups_ * passes_), of_keys(groups_ * passes_, form_.model_dim);
    std::vector<MatrixXd> inverses;
    for (int64_t r = 0; r < groups_; ++r) {
        const int64_t first = r * head_dim_ + rotary_;
        MatrixXd root = MatrixXd::Identity(passes_, passes_), inverse = root;
        if (weighted_) {
            const auto q = q_.middleCols(first, passes_);
            const Root of_queries(q.transpose() * q / n);
            root = of_queries.root;
            inverse = of_queries.inverse;
        }
        keys.middleCols(r * passes_, passes_) = k_.middleCols(first, passes_) * root;
        of_keys.middleRows(r * passes_, passes_) = root * w_k_.middleRows(first, passes_);
        inverses.push_back(inverse);
    }
    const MatrixXd components = Eigen::SelfAdjointEigenSolver<MatrixXd>(keys.transpose() * keys / n)
                                    .eigenvectors()
                                    .rightCols(kept);
    to_k.middleRows(form_.rotary_dim, kept) = components.transpose() * of_keys;
    for (int64_t h = 0; h < form_.groups; ++h)
        to_q.middleRows(h * channels() + form_.rotary_dim, kept) =
            components.middleRows(group(h) * passes_, passes_).transpose() *
            inverses[static_cast<size_t>(group(h))] *
            w_q_.middleRows(h * head_dim_ + rotary_, passes_);
}

/// A gate's: W_q takes the mean of the group's queries, W_k the mean of the block's keys, each to
/// channels that carry its share of their product.
void fill_gate(const IndexForm& form, std::span<const int64_t> pairs, const TrainingLayer& data,
               std::span<const int64_t> tokens, bool weighted, IndexWeights& w) {
    const int64_t dims = data.problem.head_dim, rotary = 2 * std::ssize(data.rope);
    const int64_t channels = form.index_dim, heads = data.problem.group_size();
    const int64_t passes = dims - rotary, kept = std::min(channels - form.rotary_dim, passes);
    const auto n = static_cast<double>(tokens.size());
    const MatrixXd queries = head_means(data, data.q, tokens, form.groups),
                   keys = head_means(data, data.k, tokens, form.groups);
    const double root_scale =
        std::sqrt(data.problem.softmax_scale() * std::sqrt(static_cast<double>(channels)));
    for (int64_t r = 0; r < form.groups; ++r) {
        MatrixXd to_q = MatrixXd::Zero(channels, dims);
        for (int64_t pair = 0; pair < form.rotary_dim / 2; ++pair)
            for (int64_t half : {0, 1})
                to_q(pair + half * form.rotary_dim / 2,
                     pairs[static_cast<size_t>(pair)] + half * rotary / 2) = 1;
        MatrixXd to_k = to_q;
        if (kept > 0) {
            const auto q = queries.middleCols(r * dims + rotary, passes),
                       k = keys.middleCols(r * dims + rotary, passes);
            MatrixXd root = MatrixXd::Identity(passes, passes), inverse = root;
            if (weighted) {
                const Root of_queries(q.transpose() * q / n);
                root = of_queries.root;
                inverse = of_queries.inverse;
            }
            const MatrixXd components =
                Eigen::SelfAdjointEigenSolver<MatrixXd>(root * (k.transpose() * k / n) * root)
                    .eigenvectors()
                    .rightCols(kept);
            to_q.block(form.rotary_dim, rotary, kept, passes) = components.transpose() * inverse;
            to_k.block(form.rotary_dim, rotary, kept, passes) = components.transpose() * root;
        }
        Eigen::Map<RowMajor> w_q(w.w_q()[r * channels].data(), channels, heads * dims);
        Eigen::Map<RowMajor> w_k(w.w_k()[r * channels].data(), channels, kGatePools * dims);
        for (int64_t g = 0; g < heads; ++g)
            w_q.middleCols(g * dims, dims) =
                (to_q * (root_scale / static_cast<double>(heads))).cast<float>();
        w_k.setZero();
        w_k.rightCols(dims) = (to_k * root_scale).cast<float>();  // the last pooling is the mean
    }
}

/// Scales rows so that a channel's queries and keys have one size: steps then move both alike. A
/// rotated pair shares its factor.
void balance(const IndexForm& form, MatrixXd& to_q, MatrixXd& to_k) {
    const int64_t half = form.rotary_dim / 2, channels = form.index_dim;
    VectorXd size_q = VectorXd::Zero(channels), size_k = to_k.rowwise().squaredNorm();
    for (int64_t r = 0; r < form.groups; ++r)
        size_q += to_q.middleRows(r * channels, channels).rowwise().squaredNorm() /
                  static_cast<double>(form.groups);
    for (VectorXd* size : {&size_q, &size_k}) {
        const VectorXd pairs = size->head(half) + size->segment(half, half);
        size->head(half) = size->segment(half, half) = pairs;
    }
    for (int64_t c = 0; c < channels; ++c) {
        if (size_q(c) <= 0 || size_k(c) <= 0) continue;  // a channel that the fit does not reach
        const double factor = std::pow(size_q(c) / size_k(c), 0.25);
        to_k.row(c) *= factor;
        for (int64_t r = 0; r < form.groups; ++r) to_q.row(r * channels + c) /= factor;
    }
}

void ClosedForm::fill(IndexWeights& w) const {
    MatrixXd to_q = MatrixXd::Zero(form_.groups * channels(), form_.model_dim);
    MatrixXd to_k = MatrixXd::Zero(channels(), form_.model_dim);
    for (int64_t pair = 0; pair < form_.rotary_dim / 2; ++pair) rotated_pair(pair, to_q, to_k);
    passing(to_q, to_k);
    balance(form_, to_q, to_k);
    // Where heads have no weights and are summed, each has its share.
    const bool summed = !form_.traits().head_weights && fitted(form_.architecture).any_heads;
    const double root = std::sqrt(summed ? scale_ / static_cast<double>(form_.groups) : scale_);
    Eigen::Map<RowMajor>(w.w_q().data(), to_q.rows(), to_q.cols()) = (to_q * root).cast<float>();
    for (int64_t c = 0; c < channels(); ++c)
        if (to_k.row(c).squaredNorm() > 0)
            Eigen::Map<RowMajor>(w.w_k().data(), to_k.rows(), to_k.cols()).row(c) =
                (to_k.row(c) * root).cast<float>();
    const double each = 1 / std::sqrt(static_cast<double>(form_.groups));
    for (int64_t h = 0; w.w_h() && h < form_.groups; ++h)
        Eigen::Map<Eigen::VectorXf>(w.w_h()[h].data(), one_.size()) = (each * one_).cast<float>();
}

}  // namespace

void check_start(const FitOptions& o, const IndexForm& form, const io::LayerInfo& layer,
                 std::span<const double> model) {
    if (o.start == Start::normal) return;
    require(form.groups % layer.kv_heads == 0 && layer.query_heads % form.groups == 0,
            "--index-heads is ", form.groups, ", must be a multiple of the ", layer.kv_heads,
            " groups that divides the ", layer.query_heads, " query heads unless --init is normal");
    if (chooses_pairs(o, form, model)) return;
    const auto rotary = 2 * std::ssize(model);
    require(form.rotary_dim > 0 ? rotary % form.rotary_dim == 0 : rotary == 0, "--index-rotary is ",
            form.rotary_dim, ", must divide the model's rotary_dim = ", rotary,
            " unless --init is normal");
    const std::vector<double> own = form.rope_frequencies.empty()
                                        ? plain_frequencies(form.rotary_dim, form.rope_theta)
                                        : form.rope_frequencies;
    for (size_t c = 0; c < own.size(); ++c) {
        const double of_model = model[c * (model.size() / own.size())];
        require(std::fabs(own[c] - of_model) <= kSameFrequency * of_model, "--rope-theta is ",
                form.rope_theta, ", which makes the frequency of pair ", c, " ", own[c],
                ", must be the model's = ", of_model, " unless --init is normal");
    }
}

std::vector<int64_t> choose_pairs(const FitOptions& o, const TrainingLayer& data,
                                  std::span<const int64_t> tokens, IndexForm& form) {
    const int64_t of_model = std::ssize(data.rope), wanted = form.rotary_dim / 2;
    std::vector<int64_t> pairs(static_cast<size_t>(wanted));
    if (!chooses_pairs(o, form, data.rope)) {
        for (int64_t c = 0; c < wanted; ++c) pairs[static_cast<size_t>(c)] = c * of_model / wanted;
        return pairs;
    }
    const VectorXd energy = pair_energy(data, some_of(tokens, o.seed));
    std::vector<int64_t> all(static_cast<size_t>(of_model));
    std::iota(all.begin(), all.end(), 0);
    std::ranges::stable_sort(all, std::greater<>(), [&](int64_t pair) { return energy(pair); });
    std::copy_n(all.begin(), wanted, pairs.begin());
    std::ranges::sort(pairs);
    for (int64_t pair : pairs)
        form.rope_frequencies.push_back(data.rope[static_cast<size_t>(pair)]);
    return pairs;
}

IndexWeights start_weights(Start start, const IndexForm& form, std::span<const int64_t> pairs,
                           const TrainingLayer& data, std::span<const int64_t> tokens,
                           uint64_t seed) {
    IndexWeights w = normal_weights(form, seed);
    if (start == Start::normal) return w;
    const std::vector<int64_t> some = some_of(tokens, seed);
    if (form.traits().own_inputs)
        fill_gate(form, pairs, data, some, start == Start::from_qk, w);
    else
        ClosedForm(form, pairs, data, some, start == Start::from_qk).fill(w);
    return w;
}

}  // namespace msa::experiments::fit
