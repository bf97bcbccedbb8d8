// SPDX-License-Identifier: MIT
// A report in the HDF5 file of the results: a group for each table, a dataset for each column.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "experiments/report/report.h"
#include "experiments/report/text.h"

namespace msa::experiments::report {
namespace {

using analysis::Estimate;

constexpr const char* kTables = "/tables";
constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();
constexpr int32_t kNoTruth = -1;

/// The value, or `none` where there is none.
template <typename T>
T value_or(const Value& value, T none) {
    const T* const of = std::get_if<T>(&value);
    return of == nullptr ? std::move(none) : *of;
}

/// A number as a double, which must hold it exactly; undefined where there is none.
double real_of(const Value& value) {
    const auto* const count = std::get_if<int64_t>(&value);
    if (count == nullptr) return value_or(value, kUndefined);
    MSA_CHECK(std::abs(*count) <= int64_t{1} << 53);
    return static_cast<double>(*count);
}

template <typename T>
void write_numbers(io::UnitWriter& to, const std::string& place, const std::vector<T>& values,
                   const io::Describe& describe) {
    to.write<T, 1>(place, {values.data(), {std::ssize(values)}}, describe);
}

void write_column(io::UnitWriter& to, const std::string& place, const Column& column,
                  const std::vector<Value>& cells) {
    const auto of_cells = [&](const auto& get) {
        std::vector<std::decay_t<decltype(get(cells.front()))>> values;
        for (const Value& cell : cells) values.push_back(get(cell));
        return values;
    };
    const io::Describe rows{"row", column.unit, column.definition};
    switch (column.type) {
        case Type::text:
            to.write_texts(
                place, of_cells([](const Value& of) { return value_or(of, std::string()); }), rows);
            break;
        case Type::truth:
            write_numbers(to, place, of_cells([](const Value& of) {
                              const auto* const is = std::get_if<bool>(&of);
                              return is == nullptr ? kNoTruth : int32_t{*is};
                          }),
                          rows);
            break;
        case Type::integer:
            if (column.null.empty()) {
                write_numbers(to, place,
                              of_cells([](const Value& of) { return std::get<int64_t>(of); }),
                              rows);
                break;
            }
            [[fallthrough]];  // an integer that may be missing is a real number
        case Type::real: write_numbers(to, place, of_cells(real_of), rows); break;
        case Type::estimate: {
            std::vector<double> values;
            for (const Value& cell : cells) {
                const Estimate of = value_or(cell, Estimate{kUndefined, kUndefined, kUndefined});
                values.insert(values.end(), {of.value, of.low, of.high});
            }
            to.write<double, 2>(place, {values.data(), {std::ssize(cells), 3}},
                                {"row,end", column.unit, column.definition});
        }
    }
    to.attribute(place, "type", std::string(to_string(column.type)));
    if (!column.null.empty()) to.attribute(place, "null", column.null);
}

}  // namespace

void Table::write(io::UnitWriter& to) const {
    const std::string group = concat(kTables, '/', shape_.name);
    std::vector<std::string> names;
    for (const Column& column : shape_.columns) names.push_back(column.key);
    to.attribute(group, "about", shape_.about);
    to.attribute(group, "columns", join(names, " "));
    names.resize(shape_.keys);
    to.attribute(group, "key", join(names, " "));
    for (size_t c = 0; c < shape_.columns.size(); ++c) {
        const Column& column = shape_.columns[c];
        std::vector<Value> cells;
        for (const std::vector<Value>& row : rows_) cells.push_back(row[c]);
        write_column(to, concat(group, '/', column.key), column, cells);
    }
}

void write(const Report& report, io::UnitWriter& to) {
    check(report);
    std::vector<std::string> names;
    for (const Table& table : report.tables) names.push_back(table.shape().name);
    nlohmann::ordered_json notes = nlohmann::ordered_json::object();
    for (const Note& note : report.notes) notes[note.key] = note.text;
    for (const auto& [name, text] : {std::pair{"format", std::string(kFormat)},
                                     {"title", report.title},
                                     {"verdict", report.verdict.text},
                                     {"notes", notes.dump()},
                                     {"tables", join(names, " ")}})
        to.attribute(kTables, name, text);
    to.attribute(kTables, "format_version", int64_t{kVersion});
    if (report.verdict.reached) to.attribute(kTables, "reached", int64_t{*report.verdict.reached});
    for (const Table& table : report.tables) table.write(to);
}

}  // namespace msa::experiments::report
