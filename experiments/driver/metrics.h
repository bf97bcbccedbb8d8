// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "analysis/rows.h"
#include "core/io/results.h"

namespace msa::experiments {

/// The datasets of one group of metrics, and their macro averages as attributes of the group.
class Metrics {
public:
    Metrics(io::ResultsWriter& to, std::string group) : to_(to), group_(std::move(group)) {}
    void add(const std::string& name, const std::vector<double>& values, const char* axis,
             const char* unit) {
        add(name, values, axis, unit, analysis::average(values));
    }
    /// With an average of its own.
    void add(const std::string& name, const std::vector<double>& values, const char* axis,
             const char* unit, double mean) {
        to_.write<double, 1>(group_ + "/" + name,
                             {values.data(), {static_cast<int64_t>(values.size())}},
                             {axis, unit, name});
        to_.attribute(group_, name, mean);
    }

private:
    io::ResultsWriter& to_;
    std::string group_;
};

}  // namespace msa::experiments
