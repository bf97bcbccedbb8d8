// SPDX-License-Identifier: MIT
// The numbers of a choice of blocks, by metric, and their columns in tables.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/measure/accumulators.h"
#include "experiments/report/table.h"

namespace msa::experiments::measure {

/// Numbers of a choice on a layer, or means over several layers, by metric, with their draws.
class NumbersByMetric {
public:
    NumbersByMetric() = default;
    /// All numbers of the list (accumulators.h) that the sums of the choice have.
    NumbersByMetric(const LayerNumbers&, const std::string& choice);
    /// The means of the numbers that all of them have, draw by draw.
    static NumbersByMetric mean(const std::vector<const NumbersByMetric*>&);

    void add(std::string metric, Numbers);
    bool has(std::string_view metric) const { return find(metric) != nullptr; }
    /// NaN where it was not measured.
    const analysis::Estimate& operator[](std::string_view metric) const;
    /// It must have been measured.
    const Numbers& numbers(std::string_view metric) const;

private:
    struct One {
        std::string metric;
        Numbers numbers;
        analysis::Estimate estimate;
    };
    const One* find(std::string_view metric) const;
    std::vector<One> all_;
};

/// A metric among the first columns of a table, and how the page shows it. With an empty heading it
/// is only in files.
struct OnPage {
    const char* metric;
    const char* heading = "";
    report::Form form = {};
};
/// The columns of the metrics `first`, in this order, then those of all other measured metrics,
/// which are only in files.
std::vector<report::Column> columns_of(const Measured&, const std::vector<OnPage>& first);

/// The same for rows of a table; `kept(row)` has their numbers.
template <typename Row, typename Get>
std::vector<report::ColumnOf<Row>> metric_columns(const Measured& measured,
                                                  const std::vector<OnPage>& first, Get kept) {
    std::vector<report::ColumnOf<Row>> all;
    for (const report::Column& column : columns_of(measured, first))
        all.push_back({column, [kept, metric = column.key](const Row& row) -> analysis::Estimate {
                           return std::invoke(kept, row)[metric];
                       }});
    return all;
}

}  // namespace msa::experiments::measure
