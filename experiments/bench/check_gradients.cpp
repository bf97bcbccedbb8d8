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

/// One head of the rows `tokens` of an operand, one after another.
Tensor<float, 3> rows_of_keys(Backend& backend, const Stored<3>& from,
                              const std::vector<int64_t>& tokens, int64_t head) {
    Tensor<float, 3> rows({std::ssize(tokens), 1, from.shape()[2]});
    for (int64_t n = 0; n < rows.extent(0); ++n) {
        const Tensor<float, 3> row =
            fetch_head(backend, from, tokens[static_cast<size_t>(n)], 1, head);
        std::copy_n(row.data(), row.size(), &rows(n, 0, 0));
    }
    return rows;
}

/// Which of the keys `tokens`, by their index, each query attends to in a group; ids absent: dense.
std::vector<std::vector<int64_t>> seen_keys(const Problem& p, const std::vector<int64_t>& tokens,
                                            View<const int32_t, 3> ids, int64_t group) {
    const std::vector<KeyRange> visible = visible_keys(p);
    std::vector<std::vector<int64_t>> seen(visible.size());
    for (int64_t i = 0; i < p.queries(); ++i) {
        const KeyRange range = visible[static_cast<size_t>(i)];
        for (int64_t n = 0; n < std::ssize(tokens); ++n) {
            const int64_t at = tokens[static_cast<size_t>(n)] - range.first;
            bool in = at >= 0 && at < range.count;
            if (in && ids) {
                const std::span<const int32_t> blocks = selected(ids, i, group);
                in = std::binary_search(blocks.begin(), blocks.end(), at / p.block_size);
            }
            if (in) seen[static_cast<size_t>(i)].push_back(n);
        }
    }
    return seen;
}

/// The reference's gradients of some keys of one group, summed over heads.
struct KeyGradients {
    KeyGradients(const Problem& whole, Tensor<float, 3> keys, Tensor<float, 3> values)
        : all(whole),
          k(std::move(keys)),
          v(std::move(values)),
          d_k(k.shape()),
          d_v(k.shape()),
          mass(k.shape()) {}
    /// Query i attends to the keys seen[i].
    void add_head(Backend&, const Layer&, int64_t head,
                  const std::vector<std::vector<int64_t>>& seen);

    const Problem& all;
    Tensor<float, 3> k, v, d_k, d_v;
    Tensor<float, 3> mass;  // the weight that all rows give a key, in each of its elements
    GradientSizes sizes{};  // the largest of a head's
};

void KeyGradients::add_head(Backend& backend, const Layer& layer, int64_t head,
                            const std::vector<std::vector<int64_t>>& seen) {
    Problem p = all;  // the keys and one head; its layout is not asked for
    p.query_heads = p.kv_heads = 1;
    const int64_t queries = all.queries();
    const auto rows = [&](const Stored<3>& from) {
        return fetch_head(backend, from, 0, queries, head);
    };
    const Tensor<float, 3> q = rows(layer.q), out = rows(layer.out), d_out = rows(layer.d_out);
    const Tensor<float, 2> all_lse = backend.download(layer.lse.view());
    Tensor<float, 2> lse({queries, 1});
    for (int64_t i = 0; i < queries; ++i) lse(i, 0) = all_lse(i, head);
    Tensor<float, 3> d_q(q.shape()), head_d_k(k.shape()), head_d_v(k.shape()), ones(q.shape());
    std::fill_n(ones.data(), ones.size(), 1.0F);
    const auto run = [&](const Tensor<float, 3>& gradient) {
        reference::AttentionGrad grad(p, {q, k, v}, {out, lse, gradient},
                                      {d_q, head_d_k, head_d_v});
        for (int64_t i = 0; i < queries; ++i) grad.add_row(i, 0, seen[static_cast<size_t>(i)]);
        grad.finish();
    };
    const auto add = [](Tensor<float, 3>& to, const Tensor<float, 3>& more) {
        std::transform(to.data(), to.data() + to.size(), more.data(), to.data(), std::plus<>());
    };
    run(d_out);
    add(d_k, head_d_k);
    add(d_v, head_d_v);
    run(ones);  // then d_v is the weight that the key gets
    add(mass, head_d_v);
    const GradientSizes own =
        gradient_sizes(p, q, k, v, d_out, lse, static_cast<double>(all.keys()), layer.q.element());
    const double q_max = std::max(sizes.q_max, own.q_max);
    const double d_out_max = std::max(sizes.d_out_max, own.d_out_max);
    if (own.d_logit() >= sizes.d_logit()) sizes = own;
    sizes.q_max = q_max;
    sizes.d_out_max = d_out_max;
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
    if (!fault.empty()) fail(stage, row.query, text("from head ", row.head, " on: ", fault));
}

int64_t Checker::compare_keys(const char* stage, const Layer& layer,
                              View<const int32_t, 3> ids) const {
    const Problem& p = case_.problem;
    const auto group = static_cast<int64_t>(mix(seed_, 203) % static_cast<uint64_t>(p.kv_heads));
    const std::vector<int64_t> tokens =
        stratified_sample(p.keys(), std::min(kGradientKeys, p.keys()), seed_);
    const auto keys = std::ssize(tokens);
    KeyGradients want(p, rows_of_keys(backend_, layer.k, tokens, group),
                      rows_of_keys(backend_, layer.v, tokens, group));
    const std::vector<std::vector<int64_t>> seen = seen_keys(p, tokens, ids, group);
    for (int64_t h = group * p.group_size(); h < (group + 1) * p.group_size(); ++h)
        want.add_head(backend_, layer, h, seen);
    GradientSizes sizes = want.sizes;
    sizes.rows = static_cast<double>(p.queries() * p.group_size());
    for (int64_t n = 0; n < keys; ++n) {
        sizes.mass = double{want.mass(n, 0, 0)} + 1;
        const int64_t token = tokens[static_cast<size_t>(n)];
        const auto compare = [&](const char* what, const Stored<3>& from,
                                 const Tensor<float, 3>& sum, double bound) {
            const Tensor<float, 3> got = fetch_head(backend_, from, token, 1, group);
            const std::string fault = difference(what, got.data(), &sum(n, 0, 0), got.size(),
                                                 [&](int64_t) { return bound; });
            if (!fault.empty()) fail(stage, token, text("as a key of group ", group, ": ", fault));
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
