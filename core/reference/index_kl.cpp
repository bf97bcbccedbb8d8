// SPDX-License-Identifier: MIT
// eq:msa-pp and eq:msa-kl. With p the teacher and t the index distribution of a row,
//   KL = sum_j p_j (ln p_j - ln t_j)     and     dKL / dS_j = t_j - p_j,
// since t is the softmax of the index scores S and p is detached. The lse of a caller are floats of
// what is here in double: they are not used.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/reference/reference_backend.h"

namespace msa::reference {
namespace {

/// Logarithm of what a sink leaves of a head's probability, from the lse of its logits alone.
double log_share(double lse, double sink) {
    const double all = std::max(lse, sink) + std::log1p(std::exp(-std::abs(lse - sink)));
    return sink == kNoSink ? 0 : lse - all;
}

}  // namespace

std::vector<double> teacher_probabilities(const Problem& p, const MainBranch& in, int64_t i,
                                          int64_t r, const std::vector<int64_t>& tokens,
                                          size_t shown, Teacher teacher) {
    const int64_t first_head = r * p.group_size();
    std::vector<std::vector<double>> heads;
    std::vector<double> shares;
    for (int64_t h = first_head; h < first_head + p.group_size(); ++h) {
        std::vector<double> head;
        for (size_t t = tokens.size() - shown; t < tokens.size(); ++t)
            head.push_back(p.logit(dot(in.q[i][h], in.k.row(tokens[t], r))));
        const double lse = softmax(head);
        shares.push_back(log_share(lse, sink_of(in, h)));
        heads.push_back(std::move(head));
    }
    const double most = *std::max_element(shares.begin(), shares.end());
    double total = 0;
    for (double& share : shares) total += share = std::exp(share - most);

    std::vector<double> all(tokens.size(), 0.0);
    for (size_t h = 0; h < heads.size(); ++h)
        for (size_t t = 0; t < shown; ++t) {
            double& joined = all[tokens.size() - shown + t];
            const double mine = shares[h] * heads[h][t];
            if (teacher == Teacher::mean)
                joined += mine / total;
            else if (!(mine <= joined) && !std::isnan(joined))
                joined = mine;
        }
    if (teacher == Teacher::max) {
        const double sum = std::accumulate(all.begin(), all.end(), 0.0);
        for (double& probability : all) probability /= sum;
    }
    return all;
}

void index_lse(const Problem& p, View<const float, 3> index_q, const KeyTokens<float>& index_k,
               View<const int32_t, 3> ids, View<float, 2> lse) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            std::vector<double> logits;
            for (int64_t j :
                 support_tokens(visible[static_cast<size_t>(i)], p.block_size, selected(ids, i, r)))
                logits.push_back(p.index_scale() * dot(index_q[i][r], index_k.row(j)));
            lse(i, r) = static_cast<float>(softmax(logits));
        }
}

void index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) {
    const auto index_q = in.index.index_q.as<const float>();
    const auto index_k = in.index.index_k.as<const float>();
    const MainBranch main{in.q.as<const float>(), in.k.as<const float>(), {}, in.sinks};
    const std::vector<KeyRange> visible = visible_keys(p);
    const double gradient =
        in.gradient_scale.value_or(1 / static_cast<double>(p.queries() * p.kv_heads));
    std::vector<double> d_index_k(static_cast<size_t>(index_k.size()), 0.0);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const KeyRange seen = visible[static_cast<size_t>(i)];
            const std::vector<int64_t> tokens =
                in.ids ? support_tokens(seen, p.block_size, selected(in.ids, i, r))
                       : all_tokens(seen);

            const size_t shown = in_window(p, seen, tokens).size();
            if (shown == 0) {
                if (to.kl) to.kl(i, r) = 0;
                if (to.d_index_q) std::fill_n(to.d_index_q[i][r].data(), p.index_dim, 0.0F);
                continue;
            }
            const std::vector<double> teacher =
                teacher_probabilities(p, main, i, r, tokens, shown, in.teacher);
            std::vector<double> logits;
            for (int64_t j : tokens)
                logits.push_back(p.index_scale() * dot(index_q[i][r], index_k[j]));
            std::vector<double> index = logits;
            const double lse = softmax(index);

            double kl = 0;
            for (size_t t = 0; t < tokens.size(); ++t)
                if (!(teacher[t] <= 0)) kl += teacher[t] * (std::log(teacher[t]) - logits[t] + lse);
            if (to.kl) to.kl(i, r) = kl;

            if (!to.d_index_q) continue;
            std::vector<double> d_query(static_cast<size_t>(p.index_dim), 0.0);
            for (size_t t = 0; t < tokens.size(); ++t) {
                const double d_score = gradient * p.index_scale() * (index[t] - teacher[t]);
                for (int64_t d = 0; d < p.index_dim; ++d) {
                    d_query[static_cast<size_t>(d)] += d_score * double{index_k(tokens[t], d)};
                    d_index_k[static_cast<size_t>(tokens[t] * p.index_dim + d)] +=
                        d_score * double{index_q(i, r, d)};
                }
            }
            for (int64_t d = 0; d < p.index_dim; ++d)
                to.d_index_q(i, r, d) = static_cast<float>(d_query[static_cast<size_t>(d)]);
        }
    if (to.d_index_k)
        std::transform(d_index_k.begin(), d_index_k.end(), to.d_index_k.data(),
                       [](double d) { return static_cast<float>(d); });
}

}  // namespace msa::reference
