// SPDX-License-Identifier: MIT
#include "experiments/compare/rows.h"

#include <algorithm>

#include "experiments/compare/policies.h"

namespace msa::experiments::compare {

std::vector<Row> read_rows(const io::ResultsReader& results) {
    std::vector<Row> rows;
    for (const std::string& layer : results.list("/layers"))
        for (const std::string& key : results.list("/metrics")) {
            Row row{layer, key, "", "", 0};
            if (!results.has(row.group())) continue;
            row.selector = results.words(row.group(), "selector");
            row.setting = results.words(row.group(), "setting");
            row.budget = row.size(results, "budget");
            rows.push_back(row);
        }
    const std::vector<std::string> order = list_policies();
    const auto rank = [&](const Row& row) {
        return std::find(order.begin(), order.end(), row.selector) - order.begin();
    };
    std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
        if (a.layer != b.layer) return std::stoll(a.layer) < std::stoll(b.layer);
        if (rank(a) != rank(b)) return rank(a) < rank(b);
        return a.budget < b.budget;
    });
    return rows;
}

}  // namespace msa::experiments::compare
