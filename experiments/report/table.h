// SPDX-License-Identifier: MIT
// Tables, the one form of a program's answer. A program describes each of its tables once: the
// name, the columns that identify a row, and all columns. Plain structs fill it. JSON, CSV, HDF5
// and the page are written from the same rows.
#pragma once

#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/io/unit_writer.h"
#include "experiments/report/column.h"

namespace msa::experiments::report {

/// The name of a table and its columns.
struct Shape {
    std::string name;   // in files, snake_case
    std::string about;  // what a row is; the line before the table on the page
    size_t keys;        // number of first columns that identify a row; 0: there is one row
    std::vector<Column> columns;
};

class Table {
public:
    /// Throws std::logic_error if two rows have the same key.
    Table(Shape shape, std::vector<std::vector<Value>> rows);

    const Shape& shape() const { return shape_; }
    bool empty() const { return rows_.empty(); }
    /// The values of each row, in the order of the columns.
    const std::vector<std::vector<Value>>& rows() const { return rows_; }
    /// The same table, only in files.
    Table hidden() const;
    /// {"about", "key": [...], "columns": [...], "rows": [...]}. A row is a flat object. An
    /// estimate has three entries: KEY, KEY_low, KEY_high.
    nlohmann::ordered_json json() const;
    /// A header and a line for each row, with the entries of JSON. Reading a number back gives the
    /// same bits; null is empty.
    std::string csv() const;
    /// A dataset for each column, in the group /tables/NAME.
    void write(io::UnitWriter&) const;
    /// Prints what the table is about and the columns with a heading that have a value in any row;
    /// nothing if there are none.
    void print(std::ostream&) const;

private:
    Shape shape_;
    std::vector<std::vector<Value>> rows_;
};

/// The description of a table whose rows are made of structs `Row`.
template <typename Row>
class TableOf {
public:
    TableOf(std::string name, std::string about, size_t keys, std::vector<ColumnOf<Row>> columns)
        : shape_{std::move(name), std::move(about), keys, {}}, columns_(std::move(columns)) {
        for (const ColumnOf<Row>& one : columns_) shape_.columns.push_back(one.column);
    }
    const Shape& shape() const { return shape_; }
    template <std::ranges::input_range Rows>
    Table of(const Rows& rows) const {
        std::vector<std::vector<Value>> all;
        for (const Row& row : rows) {
            std::vector<Value>& values = all.emplace_back();
            for (const ColumnOf<Row>& one : columns_) values.push_back(one.value(row));
        }
        return {shape_, std::move(all)};
    }
    /// A table of one row.
    Table of(const Row& row) const { return of(std::span(&row, 1)); }

private:
    Shape shape_;
    std::vector<ColumnOf<Row>> columns_;
};

/// Columns one after the other.
template <typename Row>
std::vector<ColumnOf<Row>> joined(const std::vector<std::vector<ColumnOf<Row>>>& all) {
    std::vector<ColumnOf<Row>> columns;
    for (const std::vector<ColumnOf<Row>>& some : all)
        columns.insert(columns.end(), some.begin(), some.end());
    return columns;
}
/// The same columns, only in files.
template <typename Row>
std::vector<ColumnOf<Row>> hidden(std::vector<ColumnOf<Row>> columns) {
    for (ColumnOf<Row>& one : columns) one.column.heading.clear();
    return columns;
}

}  // namespace msa::experiments::report
