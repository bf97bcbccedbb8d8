// SPDX-License-Identifier: MIT
// The checks of index_kl.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/gradient_tolerance.h"
#include "core/reference/reference_backend.h"
#include "core/tolerance.h"
#include "experiments/bench/check.h"
#include "experiments/bench/check_rows.h"
#include "experiments/bench/given_lse.h"
#include "experiments/bench/seen_keys.h"
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

/// d_index_k of some keys, and what it may be off by, but for the largest magnitude of index_q.
struct IndexKeyGradients {
    explicit IndexKeyGradients(const std::vector<int64_t>& tokens, int64_t width)
        : d_index_k({std::ssize(tokens), width}), bound(tokens.size(), 0.0) {}

    void add_group(Backend&, const Problem&, const Layer&, const IndexOperands&, int64_t group,
                   const std::vector<int64_t>& tokens, View<const int32_t, 3> ids);

    Tensor<double, 2> d_index_k;
    std::vector<double> bound;
    double index_q_max = 0;
};

/// Of each row that sees a key of `tokens`, t - p from the given lse, times index_q.
void IndexKeyGradients::add_group(Backend& backend, const Problem& p, const Layer& layer,
                                  const IndexOperands& index, int64_t group,
                                  const std::vector<int64_t>& tokens, View<const int32_t, 3> ids) {
    const SeenKeys seen(p, tokens, ids, group);
    const int64_t heads = p.group_size(), first = group * heads;
    const Tensor<float, 3> q = fetch_rows(backend, layer.q, seen.queries, first, heads);
    const Tensor<float, 3> index_q = fetch_rows(backend, index.q, seen.queries, group, 1);
    const Tensor<float, 3> k = fetch_rows(backend, layer.k, tokens, group, 1);
    Tensor<float, 2> index_k(d_index_k.shape());
    for (int64_t n = 0; n < std::ssize(tokens); ++n) {
        const Tensor<float, 2> row = fetch(backend, index.k, tokens[static_cast<size_t>(n)], 1);
        std::copy_n(row.data(), row.size(), &index_k(n, 0));
    }
    const Tensor<float, 2> main_lse = backend.download(layer.lse.view());
    const Tensor<float, 2> index_lse = backend.download(layer.index_lse.view());
    const double scale = p.softmax_scale(), index_scale = p.index_scale();
    const auto error = [&](double of_scale, double q_norm, double k_norm, int64_t width,
                           const Tensor<float, 2>& lse) {
        return saved_weight_bound(logit_bound(of_scale, q_norm, k_norm, width),
                                  static_cast<double>(p.keys()), largest(lse));
    };
    const double main_error =
        error(scale, largest_norm<3>(q), largest_norm<3>(k), p.head_dim, main_lse);
    const double index_error = error(index_scale, largest_norm<3>(index_q),
                                     largest_norm<2>(index_k), p.index_dim, index_lse);
    const double uses = static_cast<double>(seen.queries.size() * static_cast<size_t>(p.kv_heads));
    const double summed = gamma(uses + static_cast<double>(heads) + 8) + 0x1p-16;  // two bf16 parts
    index_q_max = std::max(index_q_max, largest(index_q));

    struct Weights {
        double index, main;
    };
    std::vector<std::vector<Weights>> weights(seen.queries.size());
#pragma omp parallel for schedule(dynamic, 64)
    for (size_t n = 0; n < seen.queries.size(); ++n) {
        const int64_t query = seen.queries[n], at = static_cast<int64_t>(n);
        for (int64_t t : seen.keys[n]) {
            double main = 0;
            for (int64_t h = 0; h < heads; ++h)
                main += std::exp(scale * product(&q(at, h, 0), &k(t, 0, 0), p.head_dim) -
                                 double{main_lse(query, first + h)});
            const double score =
                index_scale * product(&index_q(at, 0, 0), &index_k(t, 0), p.index_dim);
            weights[n].push_back({std::exp(score - double{index_lse(query, group)}),
                                  main / static_cast<double>(heads)});
        }
    }
    for (size_t n = 0; n < weights.size(); ++n)
        for (size_t use = 0; use < weights[n].size(); ++use) {
            const int64_t t = seen.keys[n][use];
            const Weights& w = weights[n][use];
            for (int64_t c = 0; c < p.index_dim; ++c)
                d_index_k(t, c) +=
                    (w.index - w.main) * double{index_q(static_cast<int64_t>(n), 0, c)};
            bound[static_cast<size_t>(t)] +=
                w.index * (index_error + summed) + w.main * (main_error + summed);
        }
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
                 text("the loss of group ", i % p.kv_heads, " is ", got.data()[i], ", must be ",
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
    const Problem& all = case_.problem;
    const std::vector<int64_t> rows = stratified_sample(
        all.queries(), std::min<int64_t>(kKlRows, std::ssize(mass_queries())), seed_);
    const Problem p = all.with_query_rows(rows);
    const Tensor<float, 3> q = fetch_rows(backend_, layer.q, rows, 0, p.query_heads);
    const Tensor<float, 3> index_q = fetch_rows(backend_, index.q, rows, 0, p.kv_heads);
    const Tensor<float, 3> k = fetch(backend_, layer.k, 0, p.keys());
    const Tensor<float, 2> index_k = fetch(backend_, index.k, 0, p.keys());
    Tensor<int32_t, 3> own;
    if (ids.data() != nullptr) {
        own = Tensor<int32_t, 3>({p.queries(), p.kv_heads, ids.extent(2)});
        for (int64_t i = 0; i < p.queries(); ++i)
            std::copy_n(ids[rows[static_cast<size_t>(i)]].data(), own.size() / p.queries(),
                        &own(i, 0, 0));
    }
    const auto n = static_cast<double>(all.queries() * all.kv_heads);
    IndexKlInput in{{index_q, index_k}, q, k, own};
    in.gradient_scale = 1 / n;
    Tensor<float, 3> want(index_q.shape());
    Tensor<float, 2> keys(index_k.shape());
    reference::index_kl(p, in, {{}, want, keys});
    const KlErrors errors(p, q, k, index_q, index_k);
    const double bound = kl_gradient_bound(errors.teacher, errors.index_logit, errors.keys,
                                           p.index_scale(), largest(index_k), 1, n);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const int64_t query = rows[static_cast<size_t>(i)];
        const Tensor<float, 3> got = backend_.download(layer.d_index_q.view().slice(query, 1));
        const std::string fault = difference("d_index_q", got.data(), &want(i, 0, 0), got.size(),
                                             [&](int64_t) { return bound; });
        if (!fault.empty()) fail("index_kl", query, fault);
    }
    return p.queries();
}

int64_t Checker::compare_index_keys(const Layer& layer, const IndexOperands& index,
                                    View<const int32_t, 3> ids) const {
    const Problem& p = case_.problem;
    const std::vector<int64_t> tokens = stratified_sample(p.keys(), kRows, seed_);
    IndexKeyGradients want(tokens, p.index_dim);
    for (int64_t r = 0; r < p.kv_heads; ++r)
        want.add_group(backend_, p, layer, index, r, tokens, ids);
    const double scale = p.index_scale() / static_cast<double>(p.queries() * p.kv_heads);
    for (int64_t n = 0; n < std::ssize(tokens); ++n) {
        const int64_t token = tokens[static_cast<size_t>(n)];
        const Tensor<float, 2> got = backend_.download(layer.d_index_k.view().slice(token, 1));
        Tensor<float, 1> sum({p.index_dim});
        for (int64_t c = 0; c < p.index_dim; ++c)
            sum(c) = static_cast<float>(scale * want.d_index_k(n, c));
        // The result is rounded to float once more, and so is what it is compared with.
        const double bound = scale * want.index_q_max * want.bound[static_cast<size_t>(n)] +
                             4 * kRoundoff * largest(sum);
        const std::string fault = difference("d_index_k", got.data(), sum.data(), got.size(),
                                             [&](int64_t) { return bound; });
        if (!fault.empty()) fail("index_kl", token, "as a key: " + fault);
    }
    return std::ssize(tokens);
}

int64_t Checker::index_kl_grad(const Layer& layer, const IndexOperands& index,
                               View<const int32_t, 3> ids) {
    return compare_index_queries(layer, index, ids) + compare_index_keys(layer, index, ids);
}

}  // namespace msa::experiments::bench
