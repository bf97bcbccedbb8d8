// SPDX-License-Identifier: MIT
// What a policy keeps for each of the budgets that it is asked for.
#pragma once

#include <deque>
#include <utility>

#include "core/selection.h"

namespace msa {

template <typename T>
class PerRule {
public:
    /// Made when it is first asked for. References stay valid until clear.
    T& operator[](const SelectionRule& rule) {
        for (auto& [known, value] : all_)
            if (known == rule) return value;
        return all_.emplace_back(rule, T()).second;
    }
    void clear() { all_.clear(); }

private:
    std::deque<std::pair<SelectionRule, T>> all_;  // a handful: one for each budget
};

}  // namespace msa
