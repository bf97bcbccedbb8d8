// SPDX-License-Identifier: MIT
// The equations of core/indexer/lightning_kl.h. With s_ihj = index_q_ih . index_k_j and g_ij =
// dL/dI_ij,
//   dL/dw_ih = scale sum_j g_ij max(0, s_ihj)     dL/ds_ihj = scale g_ij w_ih where s_ihj > 0, else
//   0.
#include "core/indexer/lightning_kl.h"

#include <algorithm>
#include <cmath>

#include "core/reference/reference_backend.h"

namespace msa::reference {
namespace {

using Values = std::vector<double>;

/// s of query i and head h on the tokens.
Values products(const LightningInput& in, int64_t i, int64_t h,
                const std::vector<int64_t>& tokens) {
    Values all;
    for (int64_t j : tokens) all.push_back(dot(in.index_q[i][h], in.index_k[j]));
    return all;
}

/// Adds query i's part to the gradients, d_k [Nk * didx].
void add_gradient(const LightningInput& in, const LightningKlOutput& to, int64_t i,
                  const std::vector<int64_t>& tokens, const Values& d_score, Values& d_k) {
    const int64_t width = in.index_k.extent(1);
    for (int64_t h = 0; h < in.heads(); ++h) {
        const Values s = products(in, i, h, tokens);
        Values d_query(static_cast<size_t>(width), 0.0);
        double d_weight = 0;
        for (size_t t = 0; t < tokens.size(); ++t) {
            d_weight += in.scale() * d_score[t] * std::max(0.0, s[t]);
            const double d = s[t] > 0 ? in.scale() * d_score[t] * double{in.weights(i, h)} : 0.0;
            for (int64_t c = 0; c < width; ++c) {
                d_query[static_cast<size_t>(c)] += d * double{in.index_k(tokens[t], c)};
                d_k[static_cast<size_t>(tokens[t] * width + c)] += d * double{in.index_q(i, h, c)};
            }
        }
        to.d_weights(i, h) = static_cast<float>(d_weight);
        for (int64_t c = 0; c < width; ++c)
            to.d_index_q(i, h, c) = static_cast<float>(d_query[static_cast<size_t>(c)]);
    }
}

}  // namespace

void lightning_kl(const Problem& p, const LightningKlInput& in, const LightningKlOutput& to) {
    const MainBranch main{in.q, in.k, {}, in.sinks};
    const std::vector<KeyRange> visible = visible_keys(p);
    const auto groups = static_cast<double>(p.kv_heads);
    Values d_k(static_cast<size_t>(in.index.index_k.size()), 0.0);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const KeyRange seen = visible[static_cast<size_t>(i)];
        const std::vector<int64_t> tokens =
            in.ids ? support_tokens(seen, p.block_size, selected(in.ids, i, 0)) : all_tokens(seen);
        const size_t shown = in_window(p, seen, tokens).size();

        Values scores(tokens.size(), 0.0);
        for (int64_t h = 0; h < in.index.heads(); ++h) {
            const Values s = products(in.index, i, h, tokens);
            for (size_t t = 0; t < tokens.size(); ++t)
                scores[t] +=
                    in.index.scale() * double{in.index.weights(i, h)} * std::max(0.0, s[t]);
        }
        Values index = scores;
        const double lse = softmax(index);
        if (to.entropy) {
            to.entropy(i) = tokens.empty() ? 0 : lse;
            for (size_t t = 0; t < tokens.size(); ++t) to.entropy(i) -= index[t] * scores[t];
        }

        Values d_score(tokens.size(), 0.0);  // of the mean over rows and groups
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            if (to.kl) to.kl(i, r) = 0;
            if (shown == 0) continue;
            const Values teacher = teacher_probabilities(p, main, i, r, tokens, shown, in.teacher);
            for (size_t t = 0; t < tokens.size(); ++t) {
                d_score[t] += (index[t] - teacher[t]) / groups / static_cast<double>(p.queries());
                if (to.kl && !(teacher[t] <= 0))
                    to.kl(i, r) += teacher[t] * (std::log(teacher[t]) - scores[t] + lse);
            }
        }
        if (to.d_index_q) add_gradient(in.index, to, i, tokens, d_score, d_k);
    }
    if (to.d_index_k)
        std::transform(d_k.begin(), d_k.end(), to.d_index_k.data(),
                       [](double d) { return static_cast<float>(d); });
}

}  // namespace msa::reference
