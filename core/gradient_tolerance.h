// SPDX-License-Identifier: MIT
// Three kinds of bounds: on the difference between two correct gradients, on the difference between
// results computed from them, and on the difference between a finite difference and the gradient.
// Roundoffs and the bounds of a forward pass: core/tolerance.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/tolerance.h"

namespace msa {

/// A weight p = exp(logit - lse) from a saved lse is off by a factor of at most 1 + this. The
/// errors are those of the logit and the lse, the rounding of both to base 2, and that of exp.
inline double saved_weight_bound(double logit, double keys, double lse_magnitude) {
    return std::expm1(logit + lse_bound(logit, keys, lse_magnitude) +
                      4 * kRoundoff * lse_magnitude) +
           gamma(kExpRoundoffs);
}

/// The sizes that the bounds of an attention gradient depend on. The errors of a key's d_k and d_v
/// grow with `mass`, the total weight that its rows (query, head) give it, which is at most their
/// number. A key that draws most of every row's attention, like a first token, is off by N G times
/// the error of a row. The sum's own rounding, gamma(rows), is added; it is linear in the rows if
/// all errors agree in sign, and far less otherwise. d_q sums over its own keys, whose weights add
/// up to 1.
struct GradientSizes {
    double weight;              // saved_weight_bound
    double out;                 // attention_bound of the saved out
    double d_out_norm, v_norm;  // largest norm of a row
    double d_out_max, q_max, k_max;
    double keys;  // that a row attends to
    double rows;  // that attend to a key
    double mass;
    double sink_mass;  // the weight that all rows give a sink
    double scale;
    int64_t width;
    double taken = 0;           // rounding of p and dS if products take them in another type
    double stored = kRoundoff;  // rounding of the results

    /// Largest size of dP - D; out is a mean of v.
    double difference() const { return 2 * d_out_norm * v_norm; }
    /// Error of dS = p (dP - D) in units of p: of p, of two products of `width`, and of out.
    double d_logit() const {
        const double products = gamma(static_cast<double>(width) + 3) * difference();
        const double from_out = d_out_norm * std::sqrt(static_cast<double>(width)) * out;
        return (weight + taken) * difference() + (1 + weight) * (products + from_out);
    }
    double d_q() const { return scale * k_max * (d_logit() + sum(keys) * difference()); }
    double d_k() const { return scale * q_max * mass * (d_logit() + sum(rows) * difference()); }
    double d_v() const { return d_out_max * mass * (weight + taken + sum(rows)); }
    /// Error of the sink's weight times D.
    double d_sinks() const { return sink_mass * (d_logit() + sum(rows) * difference()); }

private:
    /// Rounding of a sum of `terms` products and of the result.
    double sum(double terms) const { return (1 + weight) * gamma(terms + 3) + stored; }
};

/// What an lse kept as a float adds to the bound of its logits: its rounding, that of its partial
/// sum, and those of its base-2 logarithm.
inline double stored_lse_bound(double lse_magnitude) { return 4 * kRoundoff * lse_magnitude; }

/// A head has the weight 1 - e^(sink - lse), whose error is e^(sink - lse) times that of lse.
/// index_kl uses a given lse only if a row's weights average at least an eighth (kLeastShare), so
/// the logarithm of their sum is off by at most seven times `lse`, and each head by its own error.
inline double kept_share_bound(double lse) { return 8 * lse; }

/// Error of one component of a KL gradient: scale / rows * sum over tokens of (t - p) times the
/// other operand. Over a row, |t - p| is off by both weight bounds in total; n additions follow.
inline double kl_gradient_bound(const TeacherBound& teacher, double index_logit, double keys,
                                double scale, double operand_max, double rows_summed, double rows) {
    const double weights =
        teacher.weight + weight_bound(index_logit, keys) + 2 * gamma(keys + rows_summed + 4);
    return scale * operand_max * rows_summed / rows * weights;
}

/// Error of a score of the lightning indexer, scale * sum over heads of w max(0, q . k), where the
/// weights of a row add up to `weights` in size: products of `width` and their sum, then H more
/// products and sums.
inline double lightning_bound(double scale, double weights, double q_norm, double k_norm,
                              int64_t width, int64_t heads) {
    return gamma(static_cast<double>(width + heads) + 4) * scale * weights * q_norm * k_norm;
}

/// Error of one number of the gradient of an Index Branch's weights, sum over tokens of d index_q
/// or d index_k times x of at most `x_max`, `d_index_q` bounds the error of each of the `rows`,
/// `d_index_k` that of all keys together. The gradient of RoPE may add two channels into one.
inline double fit_gradient_bound(double d_index_q, double d_index_k, double rows, double x_max) {
    return std::sqrt(2.0) * x_max * std::max(rows * d_index_q, d_index_k);
}

/// The difference of two fits' losses after `steps` steps of AdamW, beside the bound `kl` of the
/// loss itself. A step moves a weight by about lr * g / |g|. An error e of the gradient g changes
/// that by at most lr * min(2, 2 e / |g|), and the loss by |g| times that.
inline double fit_loss_bound(double kl, double gradient, double weights, double lr, double steps) {
    return kl + 2 * gradient * lr * weights * steps;
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
