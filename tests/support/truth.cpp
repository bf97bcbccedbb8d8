// SPDX-License-Identifier: MIT
#include "tests/support/truth.h"

#include <algorithm>
#include <cmath>

#include "core/tolerance.h"
#include "tests/support/compare.h"

namespace msa::test {
namespace {

template <int Rank>
double largest(View<const float, Rank> values) {
    double top = 0;
    for (int64_t i = 0; i < values.size(); ++i)
        if (!std::isnan(values.data()[i])) top = std::max(top, std::fabs(double{values.data()[i]}));
    return top;
}

}  // namespace

Bounds bounds(const Problem& p, const Operands& o, Teacher teacher) {
    double keys = 1;
    for (const KeyRange& seen : visible_keys(p))
        keys = std::max(keys, static_cast<double>(seen.count));
    const double q = largest_norm<3>(o.q), k = largest_norm<3>(o.k);
    const double index_q = largest_norm<3>(o.index_q), index_k = largest_norm<2>(o.index_k);
    const double main = main_logit_bound(p, q, k);
    const double index = logit_bound(p.index_scale(), index_q, index_k, p.index_dim);
    const bool sinks = o.sinks.data() != nullptr;
    const double main_magnitude =
        std::max(p.softmax_scale() * q * k, sinks ? largest<1>(o.sinks) : 0.0) +
        std::log(sinks ? keys + 1 : keys);
    const double index_magnitude = p.index_scale() * index_q * index_k + std::log(keys);
    const double rows = std::max(1.0, static_cast<double>(p.queries() * p.kv_heads));
    Bounds b{};
    b.out = attention_bound(main, keys, largest<3>(o.v), o.element, Element::f32);
    b.lse = lse_bound(main, keys, main_magnitude);
    if (sinks) {
        b.lse += sink_lse_bound();
        b.out += sink_output_bound(b.lse, Element::f32, largest<3>(o.v));
    }
    b.scores = index + kRoundoff * index_magnitude;
    b.mass = mass_bound(main, sinks ? keys + 1 : keys);
    b.max_logit = main + kRoundoff * main_magnitude;
    // Sinks weigh the heads by e^(lse - lse'), whose logarithm is off by no more than lse.
    const TeacherBound p_bound =
        teacher_bound(sinks ? main + b.lse : main, keys, p.group_size(), teacher);
    const double of_heads = sinks ? std::log(static_cast<double>(p.group_size())) : 0;
    b.kl = kl_bound(p_bound, index, keys, 2 * (main_magnitude + index_magnitude) + of_heads);
    b.d_index_q =
        kl_gradient_bound(p_bound, index, keys, p.index_scale(), largest<2>(o.index_k), 1, rows);
    b.d_index_k =
        kl_gradient_bound(p_bound, index, keys, p.index_scale(), largest<3>(o.index_q), rows, rows);
    return b;
}

Bounds bf16_bounds(const Problem& p, const Operands& o) {
    Bounds b = bounds(p, o);
    b.out += slot_bound(Element::bf16, largest<3>(o.v));
    if (o.sinks.data() != nullptr) b.out += storage_roundoff(Element::bf16) * largest<3>(o.v);
    return b;
}

testing::AssertionResult matches(const Attention& got, const Attention& want, const Bounds& b) {
    if (auto lse = close(got.lse, want.lse, b.lse); !lse) return lse << " (lse)";
    return close(got.out, want.out, b.out) << " (out)";
}

testing::AssertionResult matches(const BlockMass& got, const BlockMass& want, const Bounds& b) {
    if (auto top = close(got.max_logit, want.max_logit, b.max_logit); !top)
        return top << " (max_logit)";
    return close(got.mass, want.mass, b.mass) << " (mass)";
}

testing::AssertionResult matches(const IndexKl& got, const IndexKl& want, const Bounds& b) {
    if (auto kl = close(got.kl, want.kl, b.kl); !kl) return kl << " (kl)";
    if (auto d = close(got.d_index_q, want.d_index_q, b.d_index_q); !d) return d << " (d_index_q)";
    return close(got.d_index_k, want.d_index_k, b.d_index_k) << " (d_index_k)";
}

}  // namespace msa::test
