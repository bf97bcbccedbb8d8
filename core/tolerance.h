// SPDX-License-Identifier: MIT
// How far two right answers may differ: every tolerance of the tests, of the programs' own checks
// and of the benchmark, derived here and nowhere else.
//
// u is the unit roundoff of the arithmetic that sums (float: 2^-24; the reference sums in double
// and only rounds its result, which the constants below absorb). A sum of n products, in any
// order, is off by at most gamma(n) = n u / (1 - n u) times the sum of magnitudes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/backend.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

inline constexpr double kRoundoff = 0x1p-24;  // of a float sum
/// Relative error allowed to one float exp, in roundoffs: a degree-5 polynomial after range
/// reduction is good to 2 ulp; twice that.
inline constexpr double kExpRoundoffs = 4;

constexpr double gamma(double n) { return n * kRoundoff / (1 - n * kRoundoff); }

/// Unit roundoff of a stored output.
constexpr double storage_roundoff(Element element) {
    return element == Element::bf16 ? 0x1p-8 : kRoundoff;
}

/// Largest Euclidean norm of the rows (last axis) of a tensor, NaN rows left out.
template <int Rank>
double largest_norm(View<const float, Rank> rows) {
    const int64_t width = rows.extent(Rank - 1);
    double largest = 0;
    for (int64_t i = 0; i + width <= rows.size(); i += width) {
        double sum = 0;
        for (int64_t d = 0; d < width; ++d) sum += double{rows.data()[i + d]} * rows.data()[i + d];
        if (!std::isnan(sum)) largest = std::max(largest, std::sqrt(sum));
    }
    return largest;
}

/// Error of scale * q.k of width dh: dh products, their sum, the scale and its rounding, each once;
/// sum |q_d k_d| <= |q| |k|.
inline double logit_bound(double scale, double q_norm, double k_norm, int64_t width) {
    return gamma(static_cast<double>(width) + 3) * scale * q_norm * k_norm;
}

/// The same of a Main Branch logit. A soft cap never stretches an error, since the slope of tanh is
/// at most 1, and adds at most 16 roundoffs of the cap: with t = e^(-2|x|) off by kExpRoundoffs and
/// by the rounding of its exponent, (1 - t) / (1 + t) is off by at most twice that, and by three
/// roundings of its own; two more scale it.
inline double main_logit_bound(const Problem& p, double q_norm, double k_norm) {
    return logit_bound(p.softmax_scale(), q_norm, k_norm, p.head_dim) +
           16 * kRoundoff * p.softcap.value_or(0);
}

/// The same for e4m3 operands on tensor cores, which align the 32 products of a step and the sum so
/// far to the largest and keep 13 fraction bits of each (Hopper): every term of every step is off
/// by at most 2^-13 of the largest partial sum.
inline double e4m3_logit_bound(double scale, double q_norm, double k_norm, int64_t width) {
    const double steps = std::ceil(static_cast<double>(width) / 32);
    return steps * 33 * 0x1p-13 * scale * q_norm * k_norm;
}

/// A softmax weight over n keys is off by a factor of at most 1 + this, its normaliser included,
/// when every logit is off by `logit`: e^(2 logit) for weight and sum, exp itself twice, n
/// additions in the sum and up to n rescalings by an online softmax.
inline double weight_bound(double logit, double keys) {
    return std::expm1(2 * logit) + gamma(2 * kExpRoundoffs + 2 * keys + 4);
}

/// Error of an attention output: weights, n products and additions with values up to v_max, and
/// the rounding of the stored result. Tensor cores take the weights in the operands' type: one more
/// rounding of each where that is not float.
inline double attention_bound(double logit, double keys, double v_max, Element operands,
                              Element stored) {
    const double taken = operands == Element::f32 ? 0 : storage_roundoff(operands);
    return (weight_bound(logit, keys) + taken + gamma(keys + 2) + storage_roundoff(stored)) * v_max;
}

/// What slots add to attention_bound: partial outputs, and the final one, each rounded once to the
/// type they are stored in; a mean of values stays within v_max.
inline double slot_bound(Element stored, double v_max) {
    return 2 * storage_roundoff(stored) * v_max;
}

/// Error of lse = m + ln(sum): logit, relative error of the sum, rounding of the result.
inline double lse_bound(double logit, double keys, double lse_magnitude) {
    return logit + gamma(kExpRoundoffs + 2 * keys + 4) + 2 * kRoundoff * lse_magnitude;
}

/// A weight p = exp(logit - lse) from a saved lse is off by a factor of at most 1 + this: by what
/// the logit and that lse are off, by the rounding of both to base 2, and by exp itself.
inline double saved_weight_bound(double logit, double keys, double lse_magnitude) {
    return std::expm1(logit + lse_bound(logit, keys, lse_magnitude) +
                      4 * kRoundoff * lse_magnitude) +
           gamma(kExpRoundoffs);
}

/// What the bounds of an attention gradient depend on. Sums over queries decide how they grow: a
/// key's d_k and d_v are off in proportion to `mass`, the weight that all its rows (query, head)
/// give it together, at most their number: a key that draws most of every row's attention, as a
/// first token does, is off by N G times what a row is. Beside that comes gamma(rows), the sum's
/// own rounding, which is linear in the rows where all errors agree and far less where they do not
/// or where the sum goes in parts. d_q sums over its own keys, whose weights add up to 1.
struct GradientSizes {
    double weight;              // saved_weight_bound
    double out;                 // attention_bound of the saved out
    double d_out_norm, v_norm;  // largest norms of their rows
    double d_out_max, q_max, k_max;
    double keys, rows;  // of a row, of a key
    double mass;
    double sink_mass;  // the weight that all rows give a sink
    double scale;
    int64_t width;
    double taken = 0;           // rounding of p and dS where products take them in another type
    double stored = kRoundoff;  // rounding of the results

    /// Of dP - D, which d_out and v, or out, a mean of v, give.
    double difference() const { return 2 * d_out_norm * v_norm; }
    /// Error of dS = p (dP - D) in units of p: that of p, of two products of `width`, and of out.
    double d_logit() const {
        const double products = gamma(static_cast<double>(width) + 3) * difference();
        const double from_out = d_out_norm * std::sqrt(static_cast<double>(width)) * out;
        return (weight + taken) * difference() + (1 + weight) * (products + from_out);
    }
    double d_q() const { return scale * k_max * (d_logit() + sum(keys) * difference()); }
    double d_k() const { return scale * q_max * mass * (d_logit() + sum(rows) * difference()); }
    double d_v() const { return d_out_max * mass * (weight + taken + sum(rows)); }
    /// Of the weight of the sink times D.
    double d_sinks() const { return sink_mass * (d_logit() + sum(rows) * difference()); }

private:
    /// Rounding of a sum of `terms` products and of the result.
    double sum(double terms) const { return (1 + weight) * gamma(terms + 3) + stored; }
};

/// What a sink adds to lse_bound: ln(e^lse + e^sink) stretches no error of lse, and adds an exp and
/// a logarithm of at most ln 2.
inline double sink_lse_bound() { return gamma(kExpRoundoffs + 2); }

/// What a sink adds to attention_bound: out is multiplied by e^(lse - lse') <= 1, whose logarithm
/// is off by no more than lse, `lse`, and whose own arithmetic is an exp, a sum and a quotient; it
/// is rounded once more.
inline double sink_output_bound(double lse, Element stored, double v_max) {
    return (std::expm1(lse) + gamma(kExpRoundoffs + 4) + storage_roundoff(stored)) * v_max;
}

/// Error of a block's mass, a mean of sums of softmax weights: at most 1 in all.
inline double mass_bound(double logit, double keys) {
    return weight_bound(logit, keys) + gamma(keys + 2);
}

/// Error of a sum of at most `keys` probabilities exp(logit - lse), at most 1 in all, where logits
/// are off by `logit` and lse by its own bound.
inline double token_mass_bound(double logit, double keys, double lse_magnitude) {
    return std::expm1(logit + lse_bound(logit, keys, lse_magnitude)) + gamma(keys + 2);
}

/// Error of a probability exp(logit - lse), at most 1, where only lse is rounded to float; twice
/// that, for the double arithmetic around it.
inline double sink_bound(double lse_magnitude) { return std::expm1(2 * kRoundoff * lse_magnitude); }

/// Error of H = lse - scale * q . mean_key where lse and mean_key are rounded to float and the rest
/// is double: sum |q_d m_d| <= |q| |m|, and a mean of keys is no longer than the longest; twice
/// that.
inline double entropy_bound(double lse_magnitude, double scale, double q_norm, double k_norm) {
    return 2 * kRoundoff * (lse_magnitude + scale * q_norm * k_norm);
}

/// What the teacher's probabilities are off by: `log` that of their logarithm without roundings,
/// `weight` that of all of them together, `spread` the logarithm of what the largest sum divides.
struct TeacherBound {
    double log, weight, spread;
};
/// The mean is off like its heads. The maximum and its sum are off like one head each; the sum is
/// from 1 to G, over the keys once more.
inline TeacherBound teacher_bound(double main_logit, double keys, int64_t heads, Teacher teacher) {
    if (teacher == Teacher::mean) return {main_logit, weight_bound(main_logit, keys), 0};
    return {2 * main_logit, weight_bound(2 * main_logit, 3 * keys + kExpRoundoffs + 4),
            std::log(static_cast<double>(heads))};
}

/// Error of a row's KL = sum p (ln p - ln t). ln p and ln t are off by the bound of their lse and
/// logit; p by its weight bound, times |ln p - ln t| up to `log_ratio`, the largest difference
/// of log-probabilities in the row.
inline double kl_bound(const TeacherBound& teacher, double index_logit, double keys,
                       double log_ratio) {
    return 2 * (teacher.log + index_logit) + gamma(8 * kExpRoundoffs + 8 * keys) +
           teacher.weight * (log_ratio + teacher.spread);
}

/// Error of one component of a KL gradient: scale / rows * sum over tokens of (t - p) times the
/// other operand, |t - p| off by both weight bounds in total over a row, n additions.
inline double kl_gradient_bound(const TeacherBound& teacher, double index_logit, double keys,
                                double scale, double operand_max, double rows_summed, double rows) {
    const double weights =
        teacher.weight + weight_bound(index_logit, keys) + 2 * gamma(keys + rows_summed + 4);
    return scale * operand_max * rows_summed / rows * weights;
}

/// Error of one number of the gradient of an Index Branch's weights, sum over tokens of d index_q
/// or d index_k times x of at most `x_max`, where these are off by the two bounds above: d index_q
/// of each of the `rows`, d index_k of all keys together. The way back through RoPE may gather two
/// channels in one.
inline double fit_gradient_bound(double d_index_q, double d_index_k, double rows, double x_max) {
    return std::sqrt(2.0) * x_max * std::max(rows * d_index_q, d_index_k);
}

/// What the losses of two fits differ by after `steps` steps of AdamW, beside the bound `kl` of the
/// loss itself. A step moves a weight by about rate * g / |g|; a gradient g that is off by e moves
/// it otherwise by at most rate * min(2, 2 e / |g|), and the loss by |g| times that.
inline double fit_loss_bound(double kl, double gradient, double weights, double rate,
                             double steps) {
    return kl + 2 * gradient * rate * weights * steps;
}

/// Error of a mean-key score, sum over G heads of q . mean(k) of at most Bk keys: the sum of the
/// heads, the mean and its division, dh products and their sum; magnitudes add up to G |q| |k|.
inline double mean_key_bound(const Problem& p, double q_norm, double k_norm) {
    const double heads = static_cast<double>(p.group_size());
    const double terms = heads + static_cast<double>(p.block_size + p.head_dim);
    return gamma(terms + 3) * heads * q_norm * k_norm;
}

/// A mean of n independent draws is off by more than five standard deviations less than once in a
/// million seeds.
inline double sampling_bound(double variance, double draws) {
    return 5 * std::sqrt(variance / draws);
}

/// Finite differences of a loss with curvature: central difference with step h is off by
/// h^2 / 6 times the third derivative; for a log-softmax of logits with slope a per unit step the
/// third derivative is at most a^3 (cumulants of a variable within [-a, a] are at most 2 a^3).
inline double central_difference_bound(double step, double slope) {
    return step * step / 6 * 2 * slope * slope * slope;
}

/// The same for sum p w, |w| <= w_max, of softmax weights p over logits with slopes within
/// [-slope, slope]: its third derivative, E[wa^3] - 3 E[wa] E[a^2] of centred w and a, is at most
/// 64 w_max slope^3. Double arithmetic with `terms` roundings of logits up to `logit` adds its own
/// error over the step.
inline double attention_difference_bound(double step, double slope, double w_max, double logit,
                                         double terms) {
    return step * step / 6 * 64 * w_max * slope * slope * slope +
           0x1p-52 * w_max * (logit + terms) / step;
}

}  // namespace msa
