// SPDX-License-Identifier: MIT
// The checks of the gradients of attention.
#include <algorithm>
#include <functional>
#include <utility>

#include "core/gradient_tolerance.h"
#include "core/random.h"
#include "core/reference/attention_grad.h"
#include "core/reference/reference_backend.h"
#include "experiments/bench/check.h"
#include "experiments/bench/check_rows.h"
#include "experiments/driver/sample.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kGradientKeys = 4;  // of one group, at most

/// Of rows q, d_out and lse over some of their `keys` keys; rows and masses are left at one row's.
GradientSizes gradient_sizes(const Problem& p, const Tensor<float, 3>& q, const Tensor<float, 3>& k,
                             const Tensor<float, 3>& v, const Tensor<float, 3>& d_out,
                             const Tensor<float, 2>& lse, double keys, Element element) {
    const double logit =
        logit_bound(p.softmax_scale(), largest_norm<3>(q), largest_norm<3>(k), p.head_dim);
    GradientSizes sizes{};
    sizes.weight = saved_weight_bound(logit, keys, largest(lse));
    sizes.out = attention_bound(logit, keys, largest(v), element, element);
    sizes.d_out_norm = largest_norm<3>(d_out);
    sizes.v_norm = largest_norm<3>(v);
    sizes.d_out_max = largest(d_out);
    sizes.q_max = largest(q);
    sizes.k_max = largest(k);
    sizes.keys = keys;
    sizes.rows = sizes.mass = sizes.sink_mass = 1;
    sizes.scale = p.softmax_scale();
    sizes.width = p.head_dim;
    sizes.taken = element == Element::f32 ? 0 : storage_roundoff(element);
    sizes.stored = storage_roundoff(element);
    return sizes;
}

/// The reference's gradients of some keys of one group, from the rows that see any of them.
struct KeyGradients {
    KeyGradients(Backend&, const Problem&, const Layer&, int64_t group,
                 const std::vector<int64_t>& tokens, View<const int32_t, 3> ids);

    Tensor<float, 3> k, v, d_k, d_v;  // [tokens, 1, dh]
    std::vector<double> mass;         // the weight that all rows give a key
    GradientSizes sizes{};            // the largest of a row
};

KeyGradients::KeyGradients(Backend& backend, const Problem& all, const Layer& layer, int64_t group,
                           const std::vector<int64_t>& tokens, View<const int32_t, 3> ids)
    : k(fetch_rows(backend, layer.k, tokens, group, 1)),
      v(fetch_rows(backend, layer.v, tokens, group, 1)),
      d_k(k.shape()),
      d_v(k.shape()),
      mass(tokens.size(), 0.0) {
    const SeenKeys seen(all, tokens, ids, group);
    const auto queries = std::ssize(seen.queries);
    const int64_t heads = all.group_size(), first = group * heads;
    Problem p = all;  // the keys and one group; its layout is not asked for
    p.query_heads = heads;
    p.kv_heads = 1;
    const auto rows = [&](const Stored<3>& from) {
        return fetch_rows(backend, from, seen.queries, first, heads);
    };
    const Tensor<float, 3> q = rows(layer.q), out = rows(layer.out), d_out = rows(layer.d_out);
    const Tensor<float, 2> all_lse = backend.download(layer.lse.view());
    Tensor<float, 2> lse({queries, heads});
    for (int64_t n = 0; n < queries; ++n)
        std::copy_n(&all_lse(seen.queries[static_cast<size_t>(n)], first), heads, &lse(n, 0));
    struct Head {
        Tensor<float, 3> d_k, d_v;
        std::vector<double> mass;
    };
    std::vector<Head> parts(static_cast<size_t>(heads));
    Tensor<float, 3> d_q(q.shape(), Fill::nothing);
#pragma omp parallel for schedule(dynamic)
    for (int64_t h = 0; h < heads; ++h) {
        Head& part = parts[static_cast<size_t>(h)];
        part = {Tensor<float, 3>(k.shape()), Tensor<float, 3>(k.shape()),
                std::vector<double>(tokens.size(), 0.0)};
        reference::AttentionGrad grad(p, {q, k, v}, {out, lse, d_out}, {d_q, part.d_k, part.d_v});
        for (int64_t n = 0; n < queries; ++n) {
            const std::vector<int64_t>& own = seen.keys[static_cast<size_t>(n)];
            grad.add_row(n, h, own);
            for (int64_t t : own)
                part.mass[static_cast<size_t>(t)] +=
                    std::exp(p.softmax_scale() * product(&q(n, h, 0), &k(t, 0, 0), p.head_dim) -
                             double{lse(n, h)});
        }
        grad.finish();
    }
    const auto add = [](auto& to, const auto& more) {
        std::transform(to.data(), to.data() + to.size(), more.data(), to.data(), std::plus<>());
    };
    for (const Head& part : parts) {
        add(d_k, part.d_k);
        add(d_v, part.d_v);
        add(mass, part.mass);
    }
    sizes =
        gradient_sizes(p, q, k, v, d_out, lse, static_cast<double>(all.keys()), layer.q.element());
    sizes.rows = static_cast<double>(all.queries() * heads);
}

}  // namespace

void Checker::compare_d_q(const char* stage, const Layer& layer, const AttentionRow& row) const {
    const Problem& p = row.problem;
    const int64_t last = row.head + p.query_heads;
    // The problem's heads alone.
    const auto rows_of = [&](const Stored<3>& from) {
        const Tensor<float, 3> all = fetch(backend_, from, row.query, 1);
        Tensor<float, 3> some({1, p.query_heads, p.head_dim});
        std::copy(&all(0, row.head, 0), &all(0, 0, 0) + last * p.head_dim, some.data());
        return some;
    };
    const Tensor<float, 3> out = rows_of(layer.out), d_out = rows_of(layer.d_out);
    const Tensor<float, 2> all_lse = backend_.download(layer.lse.view().slice(row.query, 1));
    Tensor<float, 2> lse({1, p.query_heads});
    std::copy_n(&all_lse(0, row.head), p.query_heads, lse.data());
    Tensor<float, 3> d_q(row.q.shape()), d_k(row.k.shape()), d_v(row.v.shape());
    const AttentionInput in{row.q, row.k, row.v};
    const AttentionSaved saved{out, lse, d_out};
    const AttentionGradient to{d_q, d_k, d_v};
    if (row.ids.data() != nullptr)
        reference::sparse_attention_grad(p, in, row.ids, saved, to);
    else
        reference::dense_attention_grad(p, in, saved, to);
    const GradientSizes sizes = gradient_sizes(p, row.q, row.k, row.v, d_out, lse,
                                               static_cast<double>(p.keys()), layer.q.element());
    const Tensor<float, 3> got = rows_of(layer.d_q);
    const std::string fault =
        difference("d_q", got.data(), d_q.data(), d_q.size(), [&](int64_t) { return sizes.d_q(); });
    if (!fault.empty()) fail(stage, row.query, concat("from head ", row.head, " on: ", fault));
}

int64_t Checker::compare_keys(const char* stage, const Layer& layer,
                              View<const int32_t, 3> ids) const {
    const Problem& p = case_.problem;
    const auto group = static_cast<int64_t>(mix(seed_, 203) % static_cast<uint64_t>(p.kv_heads));
    const std::vector<int64_t> tokens =
        stratified_sample(p.keys(), std::min(kGradientKeys, p.keys()), seed_);
    const auto keys = std::ssize(tokens);
    const KeyGradients want(backend_, p, layer, group, tokens, ids);
    GradientSizes sizes = want.sizes;
    for (int64_t n = 0; n < keys; ++n) {
        sizes.mass = want.mass[static_cast<size_t>(n)] + 1;
        const int64_t token = tokens[static_cast<size_t>(n)];
        const auto compare = [&](const char* what, const Stored<3>& from,
                                 const Tensor<float, 3>& sum, double bound) {
            const Tensor<float, 3> got = fetch_head(backend_, from, token, 1, group);
            const std::string fault = difference(what, got.data(), &sum(n, 0, 0), got.size(),
                                                 [&](int64_t) { return bound; });
            if (!fault.empty())
                fail(stage, token, concat("as a key of group ", group, ": ", fault));
        };
        compare("d_k", layer.d_k, want.d_k, sizes.d_k());
        compare("d_v", layer.d_v, want.d_v, sizes.d_v());
    }
    return keys;
}

int64_t Checker::dense_attention_grad(const Layer& layer) {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    const std::vector<int64_t> queries =
        sample(2 * case_.problem.head_dim * int64_t{sizeof(float)});  // of k and v
    for (int64_t i : queries)
        compare_d_q("dense_attention_grad", layer,
                    dense_row(layer, i, visible[static_cast<size_t>(i)]));
    return std::ssize(queries) + compare_keys("dense_attention_grad", layer, {});
}

int64_t Checker::sparse_attention_grad(const Layer& layer, View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(case_.problem);
    const std::vector<int64_t> queries = stratified_sample(case_.problem.queries(), kRows, seed_);
    for (int64_t i : queries) {
        Tensor<int32_t, 3> own({1, ids.extent(1), ids.extent(2)});
        std::copy_n(ids[i].data(), own.size(), own.data());
        compare_d_q("sparse_attention_grad", layer,
                    selected_row(layer, i, visible[static_cast<size_t>(i)], std::move(own)));
    }
    return std::ssize(queries) + compare_keys("sparse_attention_grad", layer, ids);
}

}  // namespace msa::experiments::bench
