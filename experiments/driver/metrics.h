// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analysis/metrics.h"
#include "analysis/rows.h"
#include "core/io/results.h"

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

/// metrics.csv, tidy: names that say what a line is of, then metric, axis, index and value.
class MetricsCsv {
public:
    explicit MetricsCsv(const std::vector<std::string>& names);
    /// The datasets of a group of metrics, value by value.
    void add(const io::ResultsReader&, const std::string& group,
             const std::vector<std::string>& names);
    /// A number without an axis.
    void add(const std::vector<std::string>& names, const std::string& metric, double value);
    const std::string& text() const { return text_; }

private:
    void add_line(std::vector<std::string> words, const std::vector<std::string>& more);
    std::string text_;
};

}  // namespace msa::experiments
