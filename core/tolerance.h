// SPDX-License-Identifier: MIT
// Bounds on the difference between two correct results. Every tolerance is derived here or in
// core/gradient_tolerance.h, core/e4m3_tolerance.h or core/train/tolerance.h. u is the unit
// roundoff of the arithmetic that sums (float: 2^-24; the reference sums in double and only rounds
// its result, which the constants below absorb). A sum of n products, in any order, is off by at
// most gamma(n) = n u / (1 - n u) times the sum of magnitudes. If n u > 1/2 the bound is 2 n u,
// since n u holds for any n (S. M. Rump, BIT 52, 2012).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/backend.h"
#include "core/number/convert.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

inline constexpr double kRoundoff = 0x1p-24;  // of a float sum
/// Error of one float exp in roundoffs: 2 ulp (test CpuTile.Exp2IsWithinTwoUlp) are 4.
inline constexpr double kExpRoundoffs = 4;

constexpr double gamma(double n) {
    const double share = n * kRoundoff;
    return share < 0.5 ? share / (1 - share) : 2 * share;
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

/// The same for a Main Branch logit. A soft cap does not enlarge an error, since the slope of tanh
/// is at most 1. It adds at most 16 roundoffs of the cap: t = e^(-2|x|) is off by kExpRoundoffs and
/// by the rounding of its exponent; (1 - t) / (1 + t) is off by at most twice that and three
/// roundings of its own; two more roundings scale it.
inline double main_logit_bound(const Problem& p, double q_norm, double k_norm) {
    return logit_bound(p.softmax_scale(), q_norm, k_norm, p.head_dim) +
           16 * kRoundoff * p.softcap.value_or(0);
}

/// The same for e4m3 operands on tensor cores, which align the 32 products of a step and the sum so
/// far to the largest and keep 13 fraction bits of each (Hopper): every term of every step is off
/// by at most 2^-13 of the largest partial sum.
inline double e4m3_logit_bound(double scale, double q_norm, double k_norm, int64_t width) {
    return std::ceil(static_cast<double>(width) / 32) * 33 * 0x1p-13 * scale * q_norm * k_norm;
}

/// A softmax weight over n keys is off by a factor of at most 1 + this, its normaliser included,
/// when every logit is off by `logit`: e^(2 logit) for weight and sum, exp itself twice, n
/// additions in the sum and up to n rescalings by an online softmax.
inline double weight_bound(double logit, double keys) {
    return std::expm1(2 * logit) + gamma(2 * kExpRoundoffs + 2 * keys + 4);
}

/// Error of an attention output: weights, n products and additions with values up to v_max, and the
/// rounding of the stored result. Tensor cores take the weights (the largest of a row is at least
/// 1) in the operands' type, which adds a rounding of each unless that is float.
inline double attention_bound(double logit, double keys, double v_max, Element operands,
                              Element stored) {
    const double taken =
        operands == Element::f32 ? 0 : storage_roundoff(operands) + keys * storage_floor(operands);
    return (weight_bound(logit, keys) + taken + gamma(keys + 2)) * v_max +
           stored_bound(stored, v_max);
}

/// Addition to attention_bound for slots: roundings of partial outputs and their mean (<= v_max).
inline double slot_bound(Element stored, double v_max) { return 2 * stored_bound(stored, v_max); }

/// Error of lse = m + ln(sum): logit, relative error of the sum, rounding of the result.
inline double lse_bound(double logit, double keys, double lse_magnitude) {
    return logit + gamma(kExpRoundoffs + 2 * keys + 4) + 2 * kRoundoff * lse_magnitude;
}

/// Addition to lse_bound for a sink: ln(e^lse + e^sink) does not enlarge an error of lse, and adds
/// an exp and a logarithm of at most ln 2.
inline double sink_lse_bound() { return gamma(kExpRoundoffs + 2); }

/// Addition to attention_bound for a sink: out is multiplied by e^(lse - lse') <= 1. The factor's
/// logarithm is off by at most the error `lse` of lse; its arithmetic is an exp, a sum and a
/// quotient. out is rounded once more.
inline double sink_output_bound(double lse, Element stored, double v_max) {
    return (std::expm1(lse) + gamma(kExpRoundoffs + 4)) * v_max + stored_bound(stored, v_max);
}

/// Error of attention merged from attention to single blocks: of their outputs, of their weights
/// e^(lse_b - lse) with a double sum, and a rounding and an addition for each block.
inline double joined_bound(double logit, double keys, double lse_magnitude, double v_max) {
    const double shares = std::expm1(2 * lse_bound(logit, keys, lse_magnitude)) + gamma(keys + 2);
    return attention_bound(logit, keys, v_max, Element::f32, Element::f32) + shares * v_max;
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

/// Error of a probability exp(logit - lse), at most 1, if only lse is rounded to float; doubled for
/// the double arithmetic around it.
inline double sink_bound(double lse_magnitude) { return std::expm1(2 * kRoundoff * lse_magnitude); }

/// Error of H = lse - scale * q . mean_key in double, with only lse and mean_key rounded: a mean of
/// keys is no longer than the longest key, and sum |q_d m_d| <= |q| |m|; doubled.
inline double entropy_bound(double lse_magnitude, double scale, double q_norm, double k_norm) {
    return 2 * kRoundoff * (lse_magnitude + scale * q_norm * k_norm);
}

/// Errors of the teacher's probabilities: `log` of a logarithm without roundings, `weight` of all
/// probabilities together; `spread` is the logarithm of the largest divisor.
struct TeacherBound {
    double log, weight, spread;
};
/// The mean has the error of its heads. The maximum and its sum have the error of one head each;
/// the sum lies in [1, G] and takes one more addition per key.
inline TeacherBound teacher_bound(double main_logit, double keys, int64_t heads, Teacher teacher) {
    if (teacher == Teacher::mean) return {main_logit, weight_bound(main_logit, keys), 0};
    return {2 * main_logit, weight_bound(2 * main_logit, 3 * keys + kExpRoundoffs + 4),
            std::log(static_cast<double>(heads))};
}

/// Error of a row's KL = sum p (ln p - ln t). ln p and ln t are off by the bound of their lse and
/// logit; p by its weight bound, times |ln p - ln t|, which is at most `log_ratio` in the row.
inline double kl_bound(const TeacherBound& teacher, double index_logit, double keys,
                       double log_ratio) {
    return 2 * (teacher.log + index_logit) + gamma(8 * kExpRoundoffs + 8 * keys) +
           teacher.weight * (log_ratio + teacher.spread);
}

/// Error of a mean-key score, sum over G heads of q . mean(k) of at most Bk keys: the sum of the
/// heads, the mean and its division, dh products and their sum; magnitudes add up to G |q| |k|.
inline double mean_key_bound(const Problem& p, double q_norm, double k_norm) {
    const double heads = static_cast<double>(p.group_size());
    const double terms = heads + static_cast<double>(p.block_size + p.head_dim);
    return gamma(terms + 3) * heads * q_norm * k_norm;
}

/// A mean of independent draws is off by over 5 deviations for less than one seed in a million.
inline double sampling_bound(double variance, double draws) {
    return 5 * std::sqrt(variance / draws);
}

}  // namespace msa
