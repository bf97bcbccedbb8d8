// SPDX-License-Identifier: MIT
// The settings that msa-advise tries.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/select/selector.h"
#include "experiments/advise/options.h"

namespace msa::experiments::advise {

/// Whether the selector needs dense attention. Such a setting is a bound, not advice.
bool is_bound(const Setting&);

/// "mean-key, Bk 64, k 16, forced first 1, newest 2"
std::string setting_text(const Setting&);

/// All settings, ordered by selector, block size and k. Excluded: forced blocks that do not fit
/// into k, settings that a selector's own forced blocks make equal to another, and budgets above
/// `most` tokens. InputError naming `most` if none is left.
struct Grid {
    std::vector<Setting> settings;
    int64_t too_large = 0;  // settings of more than `most` tokens
    int64_t largest() const;
};
Grid make_grid(const AdviseOptions&, const std::vector<std::string>& selectors, int64_t most,
               const std::string& why_most);

}  // namespace msa::experiments::advise
