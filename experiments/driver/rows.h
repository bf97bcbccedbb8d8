// SPDX-License-Identifier: MIT
// The one writer of what programs find: rows under columns, each of which has its key in files, its
// heading in tables, its unit, its definition, and where a row's value stands. Of the same rows
// come objects of JSON, lines of CSV and a table for people.
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
/// What a row has in a column, or nothing. A number that is NaN is nothing.
struct Value : Anything {
    using Anything::Anything;
    template <typename T>
    Value(const std::optional<T>& value) {
        if (value) *this = *value;
    }
};
/// As a value of JSON; an estimate is {"value", "low", "high"}.
nlohmann::ordered_json value_json(const Value&);

/// What a table shows of an interval beside the value: "0.95 [0.94, 0.96]", "0.95 (0.94)".
enum class Shown : uint8_t { value, interval, low, high };

/// How a number stands in a table: value * times / per, with so many decimals; with fewer than
/// none, as many significant digits.
struct Form {
    int decimals = 4;
    double times = 1, per = 1;
    Shown shown = Shown::value;
};
inline constexpr Form kPercent{.decimals = 1, .times = 100};

struct Column {
    std::string key;        // in JSON and CSV; empty: in tables alone
    std::string heading{};  // may have line breaks; empty: in files alone
    Form form{};
    std::string definition{};  // empty: as the key says
};
/// The column of a metric of analysis/metrics.h: its words stand one below the other.
Column metric_column(const char* metric, Form form = {});

/// A column, and its value of one of the things that rows are of: a member, or a function.
template <typename Of>
struct ColumnOf {
    Column column;
    std::function<Value(const Of&)> value;
};

class Rows {
public:
    explicit Rows(std::vector<Column> columns) : columns_(std::move(columns)) {}
    /// A row for each thing.
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
    /// All of them: an array.
    nlohmann::ordered_json json() const;
    /// A header and a line for each row. An estimate has three columns: KEY, KEY_low, KEY_high.
    std::string csv() const;
    /// The table, where there are rows.
    void print(std::ostream&) const;
    /// The headings that have a definition, with it.
    void print_definitions(std::ostream&) const;

private:
    std::vector<Column> columns_;
    std::vector<std::vector<Value>> rows_;
};

}  // namespace msa::experiments
