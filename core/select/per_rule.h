// SPDX-License-Identifier: MIT
// A policy's state for each budget.
#pragma once

#include <deque>
#include <utility>

#include "core/selection.h"

namespace msa {

template <typename T>
class PerRule {
public:
    /// Created on first use. References stay valid until clear.
    T& operator[](const SelectionRule& rule) {
        for (auto& [known, value] : all_)
            if (known == rule) return value;
        return all_.emplace_back(rule, T()).second;
    }
    void clear() { all_.clear(); }

private:
    std::deque<std::pair<SelectionRule, T>> all_;  // a handful, one per budget
};

}  // namespace msa
