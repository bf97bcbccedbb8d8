// SPDX-License-Identifier: MIT
// The checks of index_kl.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/gradient_tolerance.h"
#include "core/reference/reference_backend.h"
#include "core/selection.h"
#include "core/tolerance.h"
#include "experiments/bench/check.h"
#include "experiments/bench/check_rows.h"
#include "experiments/bench/layers.h"
#include "experiments/driver/sample.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kKlRows = 4;  // at most

/// What index_kl may be off by, with an lse that was kept as a float.
struct KlErrors {
    KlErrors(const Problem& p, View<const float, 3> q, View<const float, 3> k,
             View<const float, 3> index_q, View<const float, 2> index_k) {
        for (const KeyRange& seen : visible_keys(p))
            keys = std::max(keys, static_cast<double>(seen.count));
        const double main_q = largest_norm<3>(q), main_k = largest_norm<3>(k);
        const double few_q = largest_norm<3>(index_q), few_k = largest_norm<2>(index_k);
        const double main_size = p.softmax_scale() * main_q * main_k + std::log(keys);
        const double index_size = p.index_scale() * few_q * few_k + std::log(keys);
        index_logit =
            logit_bound(p.index_scale(), few_q, few_k, p.index_dim) + stored_lse_bound(index_size);
        teacher = teacher_bound(logit_bound(p.softmax_scale(), main_q, main_k, p.head_dim) +
                                    stored_lse_bound(main_size),
                                keys, p.group_size(), Teacher::mean);
        kl = kl_bound(teacher, index_logit, keys, 2 * (main_size + index_size));
    }
    double keys = 1, index_logit = 0, kl = 0;
    TeacherBound teacher{};
};

/// t and p of a key for a row (query, group), from given lse.
struct KlWeights {
    double index, main;
};
struct KlRow {
    const float *q, *main_lse;  // of the group's heads
    const float* index_q;
    float index_lse;

    KlWeights weights(const Problem& p, const float* k, const float* index_k) const {
        const int64_t heads = p.group_size();
        double main = 0;
        for (int64_t h = 0; h < heads; ++h)
            main += std::exp(p.softmax_scale() * product(q + h * p.head_dim, k, p.head_dim) -
                             double{main_lse[h]});
        const double score = p.index_scale() * product(index_q, index_k, p.index_dim);
        return {std::exp(score - double{index_lse}), main / static_cast<double>(heads)};
    }
};

/// What t, p and a sum of t - p may be off by, relative to t and to p; the given lse is no error.
class KlWeightErrors {
public:
    KlWeightErrors(const Problem& p, const Tensor<float, 3>& q, const Tensor<float, 3>& k,
                   const Tensor<float, 3>& index_q, const Tensor<float, 2>& index_k,
                   const Tensor<float, 2>& main_lse, const Tensor<float, 2>& index_lse)
        : index_(of(logit_bound(p.index_scale(), largest_norm<3>(index_q), largest_norm<2>(index_k),
                                p.index_dim),
                    index_lse)),
          main_(
              of(logit_bound(p.softmax_scale(), largest_norm<3>(q), largest_norm<3>(k), p.head_dim),
                 main_lse) +
              gamma(static_cast<double>(p.group_size()))) {}

    /// Of a sum of (t - p) times an operand of at most `most`. Longer sums go in parts, and t - p
    /// in two numbers of bf16.
    double bound(const KlWeights& sums, double terms, double most) const {
        constexpr double kLongest = 4096;
        const double summed = gamma(std::min(terms, kLongest) + 8) + 0x1p-16;
        return most * (sums.index * (index_ + summed) + sums.main * (main_ + summed));
    }

    KlWeightErrors worst(const KlWeightErrors& other) const {
        KlWeightErrors both = *this;
        both.index_ = std::max(index_, other.index_);
        both.main_ = std::max(main_, other.main_);
        return both;
    }

private:
    static double of(double logit, const Tensor<float, 2>& lse) {
        return std::expm1(logit + stored_lse_bound(largest(lse))) + gamma(kExpRoundoffs);
    }
    double index_, main_;
};

/// Sums of (t - p) times operands of some width, one for each of `count` results.
struct KlSums {
    KlSums(int64_t count, int64_t width)
        : values({count, width}),
          weights(static_cast<size_t>(count), KlWeights{0, 0}),
          terms(static_cast<size_t>(count)) {}

    void add(int64_t n, const KlWeights& w, const float* operand) {
        for (int64_t c = 0; c < values.extent(1); ++c)
            values(n, c) += (w.index - w.main) * double{operand[c]};
        KlWeights& all = weights[static_cast<size_t>(n)];
        all = {all.index + w.index, all.main + w.main};
        terms[static_cast<size_t>(n)] += 1;
    }
    /// Is result n `got`, but for `factor`? What is wrong; empty: nothing.
    std::string fault(const char* what, int64_t n, const float* got, double factor, double most,
                      const KlWeightErrors& errors) const {
        const auto at = static_cast<size_t>(n);
        std::vector<float> want;
        for (int64_t c = 0; c < values.extent(1); ++c)
            want.push_back(static_cast<float>(factor * values(n, c)));
        const double bound = factor * errors.bound(weights[at], terms[at], most);
        return difference(what, got, want.data(), std::ssize(want), [&](int64_t c) {
            return bound + 4 * kRoundoff * std::fabs(double{want[static_cast<size_t>(c)]});
        });
    }

    Tensor<double, 2> values;
    std::vector<KlWeights> weights;
    std::vector<double> terms;
};

/// The keys of a row's support; ids absent: all that it sees.
std::vector<int64_t> support_of(const Problem& p, int64_t query, int64_t group,
                                View<const int32_t, 3> ids) {
    const KeyRange seen = visible_keys(p)[static_cast<size_t>(query)];
    std::vector<int64_t> tokens;
    if (ids.data() == nullptr)
        for (int64_t j = 0; j < seen.count; ++j) tokens.push_back(seen.first + j);
    else
        for (int64_t b : selected(ids, query, group))
            for (int64_t j = b * p.block_size; j < std::min((b + 1) * p.block_size, seen.count);
                 ++j)
                tokens.push_back(seen.first + j);
    return tokens;
}

}  // namespace

int64_t Checker::index_kl(const Layer& layer, const IndexOperands& index, bool selected,
                          bool given) {
    const Problem& all = case_.problem;
    // The reference takes all heads' softmax over all keys: a few rows that see enough of them.
    const std::vector<int64_t> rows = stratified_sample(
        all.queries(), std::min<int64_t>(kKlRows, std::ssize(mass_queries())), seed_);
    const Problem p = all.with_query_rows(rows);
    const Stored<3> q = gather(backend_, layer.q, rows);
    const Stored<3> index_q = gather(backend_, index.q, rows);
    const IndexInput operands{index_q, index.k};
    GivenLse lse;
    if (selected || given)
        lse = forward_lse(backend_, p, layer, q, operands, selected ? case_.top_k : 0);
    auto kl = backend_.make<double, 2>({p.queries(), p.kv_heads});
    auto d_index_q = backend_.make<float, 3>(index_q.shape());
    auto d_index_k = backend_.make<float, 2>(index.k.shape());
    IndexKlInput in{operands, q, layer.k, lse.ids};
    if (given) {
        in.main_lse = lse.main;
        in.index_lse = lse.index;
    }
    backend_.index_kl(p, in, {kl, d_index_q, d_index_k});

    const Tensor<float, 3> host_q = fetch(backend_, q, 0, p.queries());
    const Tensor<float, 3> host_k = fetch(backend_, layer.k, 0, p.keys());
    const Tensor<float, 3> host_index_q = fetch(backend_, index_q, 0, p.queries());
    const Tensor<float, 2> host_index_k = fetch(backend_, index.k, 0, p.keys());
    Tensor<int32_t, 3> some;
    if (selected) some = backend_.download(std::as_const(lse.ids).view());
    Tensor<double, 2> want(kl.shape());
    Tensor<float, 3> want_q(d_index_q.shape());
    Tensor<float, 2> want_k(d_index_k.shape());
    reference::index_kl(p, {{host_index_q, host_index_k}, host_q, host_k, some},
                        {want, want_q, want_k});

    const KlErrors errors(p, host_q, host_k, host_index_q, host_index_k);
    const auto n = static_cast<double>(p.queries() * p.kv_heads);
    const Tensor<double, 2> got = backend_.download(std::as_const(kl).view());
    for (int64_t i = 0; i < got.size(); ++i)
        if (!(std::fabs(got.data()[i] - want.data()[i]) <= errors.kl))
            fail("index_kl", rows[static_cast<size_t>(i / p.kv_heads)],
                 concat("the loss of group ", i % p.kv_heads, " is ", got.data()[i], ", must be ",
                        want.data()[i], " within ", errors.kl));
    const auto gradient = [&](const char* what, const auto& there, const auto& expected,
                              double operand, double summed) {
        const auto host = backend_.download(std::as_const(there).view());
        const double bound = kl_gradient_bound(errors.teacher, errors.index_logit, errors.keys,
                                               p.index_scale(), operand, summed, n);
        const std::string fault = difference(what, host.data(), expected.data(), host.size(),
                                             [&](int64_t) { return bound; });
        if (!fault.empty()) fail("index_kl", rows.front(), fault);
    };
    gradient("d_index_q", d_index_q, want_q, largest(host_index_k), 1);
    gradient("d_index_k", d_index_k, want_k, largest(host_index_q), n);
    return std::ssize(rows);
}

int64_t Checker::compare_index_queries(const Layer& layer, const IndexOperands& index,
                                       View<const int32_t, 3> ids) const {
    const Problem& p = case_.problem;
    const int64_t most = ids.data() != nullptr ? kRows : std::ssize(mass_queries());
    const std::vector<int64_t> rows =
        stratified_sample(p.queries(), std::min(most, p.queries()), seed_);
    const Tensor<float, 2> all_index_k = fetch(backend_, index.k, 0, p.keys());
    const double factor = p.index_scale() / static_cast<double>(p.queries() * p.kv_heads);
    for (int64_t i : rows) {
        const Tensor<float, 3> q = fetch(backend_, layer.q, i, 1),
                               index_q = fetch(backend_, index.q, i, 1);
        const Tensor<float, 2> main_lse = backend_.download(layer.lse.view().slice(i, 1)),
                               index_lse = backend_.download(layer.index_lse.view().slice(i, 1));
        const Tensor<float, 3> got = backend_.download(layer.d_index_q.view().slice(i, 1));
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const std::vector<int64_t> tokens = support_of(p, i, r, ids);
            const auto count = std::ssize(tokens);
            const Tensor<float, 3> k = fetch_rows(backend_, layer.k, tokens, r, 1);
            Tensor<float, 2> index_k({count, p.index_dim});
            for (int64_t t = 0; t < count; ++t)
                std::copy_n(&all_index_k(tokens[static_cast<size_t>(t)], 0), p.index_dim,
                            &index_k(t, 0));
            const int64_t head = r * p.group_size();
            const KlRow row{&q(0, head, 0), &main_lse(0, head), &index_q(0, r, 0), index_lse(0, r)};
            std::vector<KlWeights> weights(tokens.size());
#pragma omp parallel for
            for (int64_t t = 0; t < count; ++t)
                weights[static_cast<size_t>(t)] = row.weights(p, &k(t, 0, 0), &index_k(t, 0));
            KlSums sum(1, p.index_dim);
            for (int64_t t = 0; t < count; ++t)
                sum.add(0, weights[static_cast<size_t>(t)], &index_k(t, 0));
            const KlWeightErrors errors(p, q, k, index_q, index_k, main_lse, index_lse);
            const std::string fault =
                sum.fault("d_index_q", 0, &got(0, r, 0), factor, largest(index_k), errors);
            if (!fault.empty()) fail("index_kl", i, concat("group ", r, ": ", fault));
        }
    }
    return std::ssize(rows);
}

int64_t Checker::compare_index_keys(const Layer& layer, const IndexOperands& index,
                                    View<const int32_t, 3> ids) const {
    const Problem& p = case_.problem;
    const std::vector<int64_t> tokens = stratified_sample(p.keys(), kRows, seed_);
    const int64_t heads = p.group_size(), count = std::ssize(tokens);
    Tensor<float, 2> index_k({count, p.index_dim});
    for (int64_t n = 0; n < count; ++n) {
        const Tensor<float, 2> row = fetch(backend_, index.k, tokens[static_cast<size_t>(n)], 1);
        std::copy_n(row.data(), row.size(), &index_k(n, 0));
    }
    const Tensor<float, 2> main_lse = backend_.download(layer.lse.view());
    const Tensor<float, 2> index_lse = backend_.download(layer.index_lse.view());
    KlSums sums(count, p.index_dim);
    std::optional<KlWeightErrors> errors;
    double most = 0;
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        const SeenKeys seen(p, tokens, ids, r);
        const auto queries = std::ssize(seen.queries);
        const Tensor<float, 3> q = fetch_rows(backend_, layer.q, seen.queries, r * heads, heads);
        const Tensor<float, 3> index_q = fetch_rows(backend_, index.q, seen.queries, r, 1);
        const Tensor<float, 3> k = fetch_rows(backend_, layer.k, tokens, r, 1);
        std::vector<std::vector<KlWeights>> weights(seen.queries.size());
#pragma omp parallel for schedule(dynamic, 64)
        for (int64_t n = 0; n < queries; ++n) {
            const auto at = static_cast<size_t>(n);
            const int64_t query = seen.queries[at];
            const KlRow row{&q(n, 0, 0), &main_lse(query, r * heads), &index_q(n, 0, 0),
                            index_lse(query, r)};
            for (int64_t t : seen.keys[at])
                weights[at].push_back(row.weights(p, &k(t, 0, 0), &index_k(t, 0)));
        }
        for (int64_t n = 0; n < queries; ++n) {
            const auto at = static_cast<size_t>(n);
            for (size_t use = 0; use < weights[at].size(); ++use)
                sums.add(seen.keys[at][use], weights[at][use], &index_q(n, 0, 0));
        }
        const KlWeightErrors own(p, q, k, index_q, index_k, main_lse, index_lse);
        errors = errors ? errors->worst(own) : own;
        most = std::max(most, largest(index_q));
    }
    const double factor = p.index_scale() / static_cast<double>(p.queries() * p.kv_heads);
    for (int64_t n = 0; n < count; ++n) {
        const int64_t token = tokens[static_cast<size_t>(n)];
        const Tensor<float, 2> got = backend_.download(layer.d_index_k.view().slice(token, 1));
        const std::string fault = sums.fault("d_index_k", n, got.data(), factor, most, *errors);
        if (!fault.empty()) fail("index_kl", token, "as a key: " + fault);
    }
    return count;
}

int64_t Checker::index_kl_grad(const Layer& layer, const IndexOperands& index,
                               View<const int32_t, 3> ids) {
    return compare_index_queries(layer, index, ids) + compare_index_keys(layer, index, ids);
}

}  // namespace msa::experiments::bench
