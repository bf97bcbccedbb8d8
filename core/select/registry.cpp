// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/error.h"
#include "core/select/selector.h"

namespace msa {
namespace {

using Maker = std::unique_ptr<Selector> (*)();
constexpr Maker kMakers[] = {
    make_index_selector,
    make_oracle_selector,
    make_oracle_logit_selector,
    make_top_p_selector,
    make_mean_key_selector,
    make_quest_selector,
    make_nsa_selector,
    make_infllm_v2_selector,
    make_infllm_selector,
    make_dsa_selector,
    make_minference_selector,
    make_minference_vertical_slash_selector,
    make_minference_block_sparse_selector,
    make_flexprefill_selector,
    make_snapkv_selector,
    make_h2o_selector,
    make_h2o_oracle_selector,
    make_previous_layer_selector,
    make_window_selector,
    make_random_selector,
};

/// Names under which a policy is known elsewhere.
struct Alias {
    std::string_view name, selector;
};
constexpr Alias kAliases[] = {{"moba", "mean-key"}, {"a-shape", "window"}};

}  // namespace

SelectionRule force(SelectionRule asked, int64_t first, int64_t local) {
    asked.forced_first =
        std::max(asked.forced_first, std::min(first, asked.top_k - asked.forced_local));
    asked.forced_local =
        std::max(asked.forced_local, std::min(local, asked.top_k - asked.forced_first));
    return asked;
}

std::vector<std::string> list_selectors() {
    std::vector<std::string> names;
    for (Maker make : kMakers) names.emplace_back(make()->name());
    return names;
}

std::vector<std::string> list_pointwise_selectors() {
    std::vector<std::string> names = list_selectors();
    std::erase_if(names, [](const std::string& name) {
        const Selector::Needs needs = make_selector(name)->needs();
        return needs.queries || needs.previous_mass || needs.rule;
    });
    return names;
}

std::unique_ptr<Selector> make_selector(std::string_view name) {
    for (const Alias& alias : kAliases)
        if (alias.name == name) return make_selector(alias.selector);
    std::string known;
    for (Maker make : kMakers) {
        std::unique_ptr<Selector> selector = make();
        if (selector->name() == name) return selector;
        known += (known.empty() ? "" : ", ") + std::string(selector->name());
    }
    throw InputError(text("no selector is called '", name, "'; there are: ", known));
}

}  // namespace msa
