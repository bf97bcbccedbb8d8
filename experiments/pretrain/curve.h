// SPDX-License-Identifier: MIT
// Curves of a run: a table that grows by rows, in a file of results and as text.
#pragma once

#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "core/io/results.h"

namespace msa::experiments::pretrain {

/// A column of a curve. With parts (layers, tasks), it has one value for each.
struct Column {
    std::string name, unit, description;
    std::string axis{};                // of the parts: "layer"; empty: one value
    std::vector<std::string> parts{};  // their names
    size_t width() const { return axis.empty() ? 1 : parts.size(); }
};

class Curve {
public:
    /// Its datasets lie in `group`; the first column is the step.
    Curve(std::string group, std::vector<Column> columns);

    /// Adds a row: the values of all columns, concatenated; NaN for missing values.
    void add(std::vector<double> row);
    int64_t rows() const { return std::ssize(rows_); }
    bool has(int64_t step) const { return !rows_.empty() && rows_.back()[0] == double(step); }
    /// The last value of a column; NaN without rows.
    double last(const std::string& column, size_t part = 0) const;

    /// Writes a dataset for each column, [rows] or [rows, parts], to the current unit.
    void write(io::UnitWriter& to) const;
    /// Replaces the rows by those of a file.
    void read(const io::ResultsReader& from);
    /// Prints row `row` as lines "step,group,name,part,value", without NaN values.
    void print(int64_t row, std::ostream& out) const;

private:
    std::string group_;
    std::vector<Column> columns_;
    std::vector<std::vector<double>> rows_;
};

}  // namespace msa::experiments::pretrain
