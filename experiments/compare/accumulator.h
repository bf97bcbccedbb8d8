// SPDX-License-Identifier: MIT
// Configs of msa-compare that keep blocks, and what is known of any config.
#pragma once

#include <string>
#include <utility>

#include "analysis/hardware.h"
#include "core/io/results.h"
#include "core/select/policy.h"
#include "experiments/compare/plan.h"
#include "experiments/compare/sums.h"

namespace msa::experiments::compare {

/// What a config is, and what choosing costs it: known before its queries.
struct ConfigAbout {
    Config config;
    analysis::Cost index = {};  // of the scores, per query of the phase, of all views

    /// The whole phase's scores, of one view.
    void add_index_cost(const Policy&, const Problem& phase, int64_t prompt);
    /// Attributes of the config's group of metrics.
    void write(io::UnitWriter& to, const std::string& layer, int64_t block_size) const;
};

/// A config that keeps blocks, and what it adds up.
class Accumulator {
public:
    Accumulator(Config config, LayerSums& sums, int64_t blocks)
        : about_{std::move(config)}, sums_(sums) {
        sums_.keep_blocks(about_.config.key(), blocks);
    }

    /// A chunk's choice, ids [Nq, Hkv, any], the oracle's [Nq, Hkv, k], and |o_sparse - o_dense|^2
    /// [Nq, Hkv] over the choice.
    void add(const MeasuredChunk&, View<const int32_t, 3> ids, View<const int32_t, 3> oracle_ids,
             View<const double, 2> differences);
    ConfigAbout& about() { return about_; }

private:
    ConfigAbout about_;
    LayerSums& sums_;
};

}  // namespace msa::experiments::compare
