// SPDX-License-Identifier: MIT
// The one writer of programs' findings: rows under columns. A column has its key in files, heading
// in tables, unit, definition, and access to a row's value. The same rows are written as JSON
// objects, CSV lines and a text table.
#pragma once

#include <functional>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <ranges>
#include <string>
#include <variant>
#include <vector>

#include "analysis/bootstrap.h"

namespace msa::experiments {

using Anything =
    std::variant<std::monostate, bool, int64_t, double, std::string, analysis::Estimate>;
/// A row's value in a column, or nothing. NaN counts as nothing.
struct Value : Anything {
    using Anything::Anything;
    template <typename T>
    Value(const std::optional<T>& value) {
        if (value) *this = *value;
    }
};
/// As a value of JSON; an estimate is {"value", "low", "high"}.
nlohmann::ordered_json value_json(const Value&);

/// How a table shows an interval: "0.95 [0.94, 0.96]", or one end, "0.95 (0.94)".
enum class Shown : uint8_t { value, interval, low, high };

/// The format of a number in a table: value * times / per with this many decimals; if negative,
/// this many significant digits.
struct Form {
    int decimals = 4;
    double times = 1, per = 1;
    Shown shown = Shown::value;
};
inline constexpr Form kPercent{.decimals = 1, .times = 100};

struct Column {
    std::string key;        // in JSON and CSV; empty: only in tables
    std::string heading{};  // may have line breaks; empty: only in files
    Form form{};
    std::string definition{};  // empty: the key is clear
};
/// The column of a metric of analysis/metrics.h, with one word of the heading per line.
Column metric_column(const char* metric, Form form = {});

/// A column, and how to get its value from a row's object: a member or a function.
template <typename Of>
struct ColumnOf {
    Column column;
    std::function<Value(const Of&)> value;
};

class Rows {
public:
    explicit Rows(std::vector<Column> columns) : columns_(std::move(columns)) {}
    /// Adds a row for each object.
    template <typename Of>
    Rows(const std::vector<ColumnOf<Of>>& columns, const std::ranges::input_range auto& things) {
        for (const ColumnOf<Of>& one : columns) columns_.push_back(one.column);
        for (const Of& thing : things) {
            std::vector<Value>& row = rows_.emplace_back();
            for (const ColumnOf<Of>& one : columns) row.push_back(one.value(thing));
        }
    }
    /// As many values as there are columns.
    void add(std::vector<Value> row);
    bool empty() const { return rows_.empty(); }

    /// One row by key: an object.
    nlohmann::ordered_json json(size_t row) const;
    /// All rows: an array.
    nlohmann::ordered_json json() const;
    /// A header and a line for each row. An estimate has three columns: KEY, KEY_low, KEY_high.
    std::string csv() const;
    /// Prints the table, if there are rows.
    void print(std::ostream&) const;
    /// Prints the definitions of the headings that have one.
    void print_definitions(std::ostream&) const;

private:
    std::vector<Column> columns_;
    std::vector<std::vector<Value>> rows_;
};

}  // namespace msa::experiments
