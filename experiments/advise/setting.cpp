// SPDX-License-Identifier: MIT
#include "experiments/advise/setting.h"

#include <algorithm>

namespace msa::experiments::advise {

bool is_bound(const Setting& setting) {
    return make_selector(setting.selector)->family() == Family::oracle;
}

std::string setting_text(const Setting& s) {
    return concat(s.selector, ", Bk ", s.block_size, ", k ", s.rule.top_k, ", forced first ",
                  s.rule.forced_first, ", newest ", s.rule.forced_local);
}

int64_t Grid::largest() const {
    int64_t most = 0;
    for (const Setting& setting : settings) most = std::max(most, setting.tokens());
    return most;
}

Grid make_grid(const AdviseOptions& o, const std::vector<std::string>& selectors, int64_t most,
               const std::string& why_most) {
    Grid grid;
    const auto add = [&](const std::string& selector, int64_t block_size,
                         const SelectionRule& asked) {
        if (asked.forced_first + asked.forced_local > asked.top_k) return;
        const Setting setting{selector, block_size, make_selector(selector)->adjust(asked, 0)};
        if (std::find(grid.settings.begin(), grid.settings.end(), setting) != grid.settings.end())
            return;
        if (setting.tokens() > most)
            ++grid.too_large;
        else
            grid.settings.push_back(setting);
    };
    for (const std::string& selector : selectors)
        for (int64_t block_size : o.block_sizes)
            for (int64_t top_k : o.top_ks)
                for (int64_t first : o.forced_first)
                    for (int64_t local : o.forced_local)
                        add(selector, block_size, {top_k, local, first});
    require(!grid.settings.empty(), "--block-sizes and --top-ks leave no setting of at most ", most,
            " tokens, ", why_most);
    return grid;
}

}  // namespace msa::experiments::advise
