// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analysis/metrics.h"
#include "analysis/rows.h"
#include "core/io/results.h"
#include "experiments/driver/rows.h"

namespace msa::experiments {

/// Writes the datasets of one group of metrics, with their macro averages as attributes of the
/// group.
class Metrics {
public:
    Metrics(io::UnitWriter& to, std::string group) : to_(to), group_(std::move(group)) {}
    /// Adds a metric of analysis/metrics.h, under its own name or under `name`.
    void add(const char* metric, const std::vector<double>& values, const char* name = nullptr) {
        add_with_mean(metric, values, analysis::average(values), name);
    }
    /// The same with a given mean instead of that of all values.
    void add_with_mean(const char* metric, const std::vector<double>& values, double mean,
                       const char* name = nullptr) {
        const analysis::Metric& of = analysis::metric(metric);
        const std::string dataset = name != nullptr ? name : metric;
        to_.write<double, 1>(group_ + "/" + dataset, {values.data(), {std::ssize(values)}},
                             {of.axis, of.unit, of.definition});
        to_.attribute(group_, dataset, mean);
    }

private:
    io::UnitWriter& to_;
    std::string group_;
};

/// The datasets of a group of metrics value by value, rows of metric, axis, index and value behind
/// `name`.
inline void add_metric_values(const io::ResultsReader& results, const std::string& group,
                              const std::vector<Value>& name, Rows& to) {
    for (const std::string& metric : results.list(group)) {
        const std::string dataset = group + "/" + metric;
        const Tensor<double, 1> values = results.read<double, 1>(dataset);
        for (int64_t n = 0; n < values.size(); ++n) {
            std::vector<Value> line = name;
            for (const Value& value :
                 {Value(metric), Value(results.text(dataset, "axes")), Value(n), Value(values(n))})
                line.push_back(value);
            to.add(line);
        }
    }
}

}  // namespace msa::experiments
