// SPDX-License-Identifier: MIT
// Measures of an indexer on held-out queries.
#pragma once

#include <cmath>
#include <cstdint>

namespace msa::experiments::fit {

/// The numbers of one evaluation: macro averages over queries, then groups or heads.
struct Evaluation {
    int64_t step = 0;
    double kl = 0, kl_selected = 0;
    double block_recall = 0, score_recall = 0, mass_kept = 0, oracle_mass = 0;
    double output_error = 0;
    double entropy_index = 0, entropy_teacher = 0;

    /// By the attention that the selection keeps; by the loss where no query sees more than k
    /// blocks.
    bool is_better_than(const Evaluation& other) const {
        return std::isfinite(mass_kept) && std::isfinite(other.mass_kept)
                   ? mass_kept > other.mass_kept
                   : kl < other.kl;
    }
};

/// The metrics of an evaluation: names in analysis/metrics.h, and members of Evaluation.
struct Measure {
    const char* metric;
    double Evaluation::*value;
};
inline constexpr Measure kMeasures[] = {
    {"kl", &Evaluation::kl},
    {"kl_selected", &Evaluation::kl_selected},
    {"block_recall", &Evaluation::block_recall},
    {"score_recall", &Evaluation::score_recall},
    {"mass_kept", &Evaluation::mass_kept},
    {"oracle_mass", &Evaluation::oracle_mass},
    {"output_error", &Evaluation::output_error},
    {"entropy_index", &Evaluation::entropy_index},
    {"entropy_teacher", &Evaluation::entropy_teacher},
};

/// Mass kept of the best evaluation with the first block forced.
inline constexpr const char* kFirstForced = "first_forced_mass";

/// What choices that nobody trains do where the fit is evaluated, with as many blocks.
struct Untrained {
    double random_recall = 0;  // block recall that blocks by chance have on average
    double window_mass = 0, mean_key_mass = 0;  // kept by these selectors, the first block forced
};
struct UntrainedMeasure {
    const char* name;
    double Untrained::*value;
};
inline constexpr UntrainedMeasure kUntrained[] = {
    {"random_recall", &Untrained::random_recall},
    {"window_mass", &Untrained::window_mass},
    {"mean_key_mass", &Untrained::mean_key_mass},
};

}  // namespace msa::experiments::fit
