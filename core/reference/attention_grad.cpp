// SPDX-License-Identifier: MIT
#include "core/reference/attention_grad.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/reference/reference_backend.h"

namespace msa::reference {
namespace {

template <int Rank>
void store(const std::vector<double>& sums, View<float, Rank> to) {
    std::transform(sums.begin(), sums.end(), to.data(),
                   [](double sum) { return static_cast<float>(sum); });
}

}  // namespace

AttentionGrad::AttentionGrad(const Problem& p, const AttentionInput& in,
                             const AttentionSaved& saved, const AttentionGradient& to)
    : p_(p),
      q_(in.q.as<const float>()),
      k_(in.k.as<const float>()),
      v_(in.v.as<const float>()),
      sinks_(in.sinks),
      out_(saved.out.as<const float>()),
      lse_(saved.lse),
      d_out_(saved.d_out.as<const float>()),
      to_(to),
      d_k_(static_cast<size_t>(k_.size()), 0.0),
      d_v_(static_cast<size_t>(v_.size()), 0.0),
      d_sinks_(static_cast<size_t>(p.query_heads), 0.0) {}

void AttentionGrad::add_row(int64_t i, int64_t h, const std::vector<int64_t>& tokens) {
    const int64_t group = h / p_.group_size();
    const double scale = p_.softmax_scale(), lse = double{lse_(i, h)};
    const double d = dot(d_out_[i][h], out_[i][h]);
    std::vector<double> d_q(static_cast<size_t>(p_.head_dim), 0.0);
    for (int64_t j : tokens) {
        const double weight = std::exp(scale * dot(q_[i][h], k_[j][group]) - lse);
        const double p = std::isnan(d) ? d : weight;  // one NaN makes the row's whole part NaN
        const double d_logit = p * (dot(d_out_[i][h], v_[j][group]) - d);
        for (int64_t c = 0; c < p_.head_dim; ++c) {
            const auto at = static_cast<size_t>((j * p_.kv_heads + group) * p_.head_dim + c);
            d_q[static_cast<size_t>(c)] += scale * d_logit * double{k_(j, group, c)};
            d_k_[at] += scale * d_logit * double{q_(i, h, c)};
            d_v_[at] += p * double{d_out_(i, h, c)};
        }
    }
    store(d_q, to_.d_q.as<float>()[i][h]);
    if (sinks_ && lse != -std::numeric_limits<double>::infinity())
        d_sinks_[static_cast<size_t>(h)] -= std::exp(double{sinks_(h)} - lse) * d;
}

void AttentionGrad::finish() {
    store(d_k_, to_.d_k.as<float>());
    store(d_v_, to_.d_v.as<float>());
    if (to_.d_sinks) store(d_sinks_, to_.d_sinks);
}

}  // namespace msa::reference
