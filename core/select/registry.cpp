// SPDX-License-Identifier: MIT
#include "core/error.h"
#include "core/select/selector.h"

namespace msa {
namespace {

using Maker = std::unique_ptr<Selector> (*)();
constexpr Maker kMakers[] = {
    make_index_selector,    make_oracle_selector, make_oracle_logit_selector,
    make_mean_key_selector, make_random_selector, make_window_selector,
};

}  // namespace

std::vector<std::string> list_selectors() {
    std::vector<std::string> names;
    for (Maker make : kMakers) names.emplace_back(make()->name());
    return names;
}

std::unique_ptr<Selector> make_selector(std::string_view name) {
    std::string known;
    for (Maker make : kMakers) {
        std::unique_ptr<Selector> selector = make();
        if (selector->name() == name) return selector;
        known += (known.empty() ? "" : ", ") + std::string(selector->name());
    }
    throw InputError(text("no selector is called '", name, "'; there are: ", known));
}

}  // namespace msa
