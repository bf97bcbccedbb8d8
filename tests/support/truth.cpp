// SPDX-License-Identifier: MIT
#include "tests/support/truth.h"

#include <algorithm>
#include <cmath>

#include "core/e4m3_tolerance.h"
#include "core/gradient_tolerance.h"
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

Bounds bounds(const Problem& p, const Operands& o, Teacher teacher, bool given_lse) {
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
    b.index_lse = lse_bound(index, keys, index_magnitude);
    // Sinks weigh the heads by e^(lse - lse'), whose logarithm is off by no more than lse, or as
    // kept_share_bound says.
    const double by_sinks = !sinks ? 0 : given_lse ? kept_share_bound(b.lse) : b.lse;
    const double rounded = main + stored_lse_bound(main_magnitude);
    const double index_rounded = index + stored_lse_bound(index_magnitude);
    const TeacherBound p_bound = teacher_bound(rounded + by_sinks, keys, p.group_size(), teacher);
    const double of_heads = sinks ? std::log(static_cast<double>(p.group_size())) : 0;
    b.kl =
        kl_bound(p_bound, index_rounded, keys, 2 * (main_magnitude + index_magnitude) + of_heads);
    b.d_index_q = kl_gradient_bound(p_bound, index_rounded, keys, p.index_scale(),
                                    largest<2>(o.index_k), 1, rows);
    b.d_index_k = kl_gradient_bound(p_bound, index_rounded, keys, p.index_scale(),
                                    largest<3>(o.index_q), rows, rows);
    return b;
}

Bounds half_bounds(const Problem& p, const Operands& o) {
    Bounds b = bounds(p, o);
    b.out += slot_bound(o.element, largest<3>(o.v));
    if (o.sinks.data() != nullptr) b.out += stored_bound(o.element, largest<3>(o.v));
    return b;
}

Bounds e4m3_bounds(const Problem& p, const Operands& o, const Backend& backend, Element stored) {
    double keys = 1;
    for (const KeyRange& seen : visible_keys(p))
        keys = std::max(keys, static_cast<double>(seen.count));
    const double q = largest_norm<3>(o.q), k = largest_norm<3>(o.k), v = largest<3>(o.v);
    const double scale = p.softmax_scale();
    const bool cores = backend.space() == Space::device;
    // Rounding of what values times scales are, and of the scales' products.
    const double scaled = 6 * kRoundoff;
    const double logit = scaled * scale * q * k + (cores ? e4m3_logit_bound(scale, q, k, p.head_dim)
                                                         : main_logit_bound(p, q, k));
    Bounds b{};
    b.out = scaled * v + (cores ? e4m3_attention_bound(logit, keys, v, v,
                                                       static_cast<double>(p.block_size), stored) +
                                      slot_bound(Element::bf16, v)
                                : attention_bound(logit, keys, v, Element::f32, stored));
    b.lse = lse_bound(logit, keys, scale * q * k + std::log(keys));
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

testing::AssertionResult matches(const AttentionGrad& got, const AttentionGrad& want,
                                 const GradientSizes& sizes) {
    if (auto d = close(got.d_q, want.d_q, sizes.d_q()); !d) return d << " (d_q)";
    if (auto d = close(got.d_k, want.d_k, sizes.d_k()); !d) return d << " (d_k)";
    if (auto d = close(got.d_v, want.d_v, sizes.d_v()); !d) return d << " (d_v)";
    return close(got.d_sinks, want.d_sinks, sizes.d_sinks()) << " (d_sinks)";
}

AttentionLoss::AttentionLoss(const Problem& p, const Operands& o, View<const int32_t, 3> ids,
                             View<const float, 3> d_out)
    : p_(p), o_(o), d_out_(d_out) {
    const auto dot = [&](View<const float, 1> a, View<const float, 1> b) {
        double sum = 0;
        for (int64_t d = 0; d < p.head_dim; ++d) sum += double{a(d)} * double{b(d)};
        return sum;
    };
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const int64_t r = h / p.group_size();
            const KeyRange seen = visible_keys(p)[static_cast<size_t>(i)];
            Row row{i, h, {}, {}, {}, o.sinks.data() != nullptr ? o.sinks(h) : -HUGE_VAL};
            for (int64_t j = 0; j < seen.count; ++j) {
                bool in = !ids;
                for (int64_t slot = 0; ids && slot < ids.extent(2); ++slot)
                    in |= ids(i, r, slot) == j / p.block_size;
                if (!in) continue;
                const int64_t token = seen.first + j;
                row.tokens.push_back(token);
                row.logits.push_back(p.softmax_scale() *
                                     dot(o.q.view()[i][h], o.k.view()[token][r]));
                row.values.push_back(dot(d_out[i][h], o.v.view()[token][r]));
            }
            rows_.push_back(std::move(row));
        }
    sizes_ = measure();
}

double AttentionLoss::softmax(const Row& row, std::vector<double>& weights) {
    weights = row.logits;
    weights.push_back(row.sink);
    const double top = *std::max_element(weights.begin(), weights.end());
    if (top == -HUGE_VAL) return -HUGE_VAL;
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - top);
    for (double& weight : weights) weight /= sum;
    return top + std::log(sum);
}

double AttentionLoss::loss(const Row& row) {
    std::vector<double> weights;
    softmax(row, weights);
    double sum = 0;
    for (size_t t = 0; t < row.values.size(); ++t) sum += weights[t] * row.values[t];
    return sum;
}

Attention AttentionLoss::saved() const {
    Attention saved{Tensor<float, 3>(o_.q.shape()),
                    Tensor<float, 2>({p_.queries(), p_.query_heads})};
    for (const Row& row : rows_) {
        std::vector<double> weights;
        saved.lse(row.i, row.h) = static_cast<float>(softmax(row, weights));
        for (int64_t d = 0; d < p_.head_dim; ++d) {
            double sum = 0;
            for (size_t t = 0; t < row.tokens.size(); ++t)
                sum += weights[t] * double{o_.v(row.tokens[t], row.h / p_.group_size(), d)};
            saved.out(row.i, row.h, d) = static_cast<float>(sum);
        }
    }
    return saved;
}

GradientSizes AttentionLoss::measure() const {
    const double q = largest_norm<3>(o_.q), k = largest_norm<3>(o_.k);
    GradientSizes sizes{};
    sizes.keys = 1;
    std::vector<double> mass(static_cast<size_t>(p_.keys() * p_.kv_heads), 0.0), rows = mass;
    std::vector<double> sink_mass(static_cast<size_t>(p_.query_heads), 0.0);
    double lse = 0;
    for (const Row& row : rows_) {
        std::vector<double> weights;
        const double own = softmax(row, weights);
        if (std::isfinite(own)) lse = std::max(lse, std::fabs(own));
        sizes.keys = std::max(sizes.keys, static_cast<double>(weights.size()));
        for (size_t t = 0; t < row.tokens.size(); ++t) {
            const auto at =
                static_cast<size_t>(row.tokens[t] * p_.kv_heads + row.h / p_.group_size());
            mass[at] += weights[t];
            rows[at] += 1;
        }
        if (std::isfinite(own)) sink_mass[static_cast<size_t>(row.h)] += weights.back();
    }
    const auto most = [](const std::vector<double>& of) {
        return of.empty() ? 0.0 : *std::max_element(of.begin(), of.end());
    };
    const double logit = logit_bound(p_.softmax_scale(), q, k, p_.head_dim);
    sizes.weight = saved_weight_bound(logit, sizes.keys, lse);
    sizes.out = attention_bound(logit, sizes.keys, largest<3>(o_.v), o_.element, Element::f32);
    sizes.d_out_norm = largest_norm<3>(d_out_);
    sizes.v_norm = largest_norm<3>(o_.v);
    sizes.d_out_max = largest<3>(d_out_);
    sizes.q_max = largest<3>(o_.q);
    sizes.k_max = largest<3>(o_.k);
    sizes.rows = std::max(most(rows), static_cast<double>(p_.queries()));
    sizes.mass = most(mass);
    sizes.sink_mass = most(sink_mass);
    sizes.scale = p_.softmax_scale();
    sizes.width = p_.head_dim;
    return sizes;
}

template <typename Change>
AttentionLoss::Difference AttentionLoss::difference(double slope, double rows,
                                                    const Change& change) const {
    const double step = 0x1p-14 / std::max(1.0, slope);
    double value = 0, logit = 0, w_max = 0;
    for (const Row& row : rows_) {
        Row up = row, down = row;
        if (!change(up, step)) continue;
        change(down, -step);
        value += (loss(up) - loss(down)) / (2 * step);
        for (double s : row.logits) logit = std::max(logit, std::fabs(s));
        for (double w : row.values) w_max = std::max(w_max, std::fabs(w));
    }
    const double terms = static_cast<double>(p_.head_dim) + sizes_.keys;
    return {value, rows * attention_difference_bound(step, slope, w_max, logit, terms)};
}

AttentionLoss::Difference AttentionLoss::by_q(int64_t i, int64_t h, int64_t d) const {
    const double slope = p_.softmax_scale() * largest<3>(o_.k);
    return difference(slope, 1, [&](Row& row, double delta) {
        if (row.i != i || row.h != h) return false;
        for (size_t t = 0; t < row.tokens.size(); ++t)
            row.logits[t] +=
                p_.softmax_scale() * delta * double{o_.k(row.tokens[t], h / p_.group_size(), d)};
        return true;
    });
}

AttentionLoss::Difference AttentionLoss::by_k(int64_t j, int64_t r, int64_t d) const {
    const double slope = p_.softmax_scale() * largest<3>(o_.q);
    return difference(slope, sizes_.rows, [&](Row& row, double delta) {
        const auto at = std::find(row.tokens.begin(), row.tokens.end(), j) - row.tokens.begin();
        if (row.h / p_.group_size() != r || at == std::ssize(row.tokens)) return false;
        row.logits[static_cast<size_t>(at)] +=
            p_.softmax_scale() * delta * double{o_.q(row.i, row.h, d)};
        return true;
    });
}

AttentionLoss::Difference AttentionLoss::by_v(int64_t j, int64_t r, int64_t d) const {
    return difference(0, sizes_.rows, [&](Row& row, double delta) {
        const auto at = std::find(row.tokens.begin(), row.tokens.end(), j) - row.tokens.begin();
        if (row.h / p_.group_size() != r || at == std::ssize(row.tokens)) return false;
        row.values[static_cast<size_t>(at)] += delta * double{d_out_(row.i, row.h, d)};
        return true;
    });
}

AttentionLoss::Difference AttentionLoss::by_sink(int64_t h) const {
    return difference(1, static_cast<double>(p_.queries()), [&](Row& row, double delta) {
        if (row.h != h) return false;
        row.sink += delta;
        return true;
    });
}

}  // namespace msa::test
