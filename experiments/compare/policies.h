// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "core/select/token_selector.h"

namespace msa::experiments::compare {

/// Selectors of blocks and of tokens, in the order of the documentation.
inline std::vector<std::string> list_policies() {
    std::vector<std::string> names = list_selectors();
    for (const std::string& name : list_token_selectors()) names.push_back(name);
    return names;
}

/// The name of a policy, given that or another one it goes by. InputError for none.
inline std::string policy_name(const std::string& name) {
    return find_token_selector(name) ? name : std::string(make_selector(name)->name());
}

}  // namespace msa::experiments::compare
