// SPDX-License-Identifier: MIT
// What is measured of an Index Branch on held-out queries.
#pragma once

#include <cstdint>

namespace msa::experiments::fit {

/// The numbers of one evaluation: macro averages over queries, then groups or heads.
struct Evaluation {
    int64_t step = 0;
    double kl = 0;
    double block_recall = 0, score_recall = 0, mass_kept = 0, oracle_mass = 0;
    double output_error = 0;
    double entropy_index = 0, entropy_teacher = 0;
};

/// A number of an evaluation: its name in every file, its heading in the table, what it is.
struct Figure {
    const char* key;
    double Evaluation::*value;
    const char* heading;
    const char* definition;
};
inline constexpr Figure kFigures[] = {
    {"kl", &Evaluation::kl, "KL",
     "KL divergence of the index distribution from the teacher over all visible keys, in nats"},
    {"block_recall", &Evaluation::block_recall, "block recall",
     "|I* ∩ Î| / |I*|: share of the oracle's blocks I* that the Index Branch chose too (Î)"},
    {"score_recall", &Evaluation::score_recall, "score recall",
     "block recall weighted by mass: sum of P_b over I* ∩ Î / sum of P_b over I*"},
    {"mass_kept", &Evaluation::mass_kept, "mass kept",
     "sum of P_b over Î: share of the dense attention probability on the chosen blocks"},
    {"oracle_mass", &Evaluation::oracle_mass, "oracle mass",
     "sum of P_b over I*: mass kept by the oracle's choice of as many blocks"},
    {"output_error", &Evaluation::output_error, "output error",
     "|o_sparse - o_dense| / |o_dense| over the counted queries, mean over heads"},
    {"entropy_index", &Evaluation::entropy_index, "entropy index",
     "entropy of the index distribution over all visible keys, in nats"},
    {"entropy_teacher", &Evaluation::entropy_teacher, "entropy teacher",
     "entropy of the teacher over all visible keys, in nats"},
};

}  // namespace msa::experiments::fit
