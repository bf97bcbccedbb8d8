// SPDX-License-Identifier: MIT
#include "experiments/report/table.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "analysis/metrics.h"
#include "core/error.h"
#include "experiments/report/text.h"

namespace msa::experiments::report {
namespace {

using analysis::Estimate;
using nlohmann::ordered_json;

template <typename... Cases>
struct Match : Cases... {
    using Cases::operator()...;
};
template <typename... Cases>
Match(Cases...) -> Match<Cases...>;  // clang 14 does not deduce it

std::string cell(double value, const Form& form) {
    if (form.words != nullptr && !std::isnan(value)) return form.words(value);
    const double scaled = value * form.times / form.per;
    return form.decimals < 0 ? number_text(scaled, -form.decimals)
                             : fixed_text(scaled, form.decimals);
}

std::string cell(const Estimate& of, const Form& form) {
    std::string value = cell(of.value, form);
    switch (form.shown) {
        case Shown::value: return value;
        case Shown::low: return concat(value, " (", cell(of.low, form), ")");
        case Shown::high: return concat(value, " (", cell(of.high, form), ")");
        case Shown::interval: break;
    }
    return concat(value, " [", cell(of.low, form), ", ", cell(of.high, form), "]");
}

std::string cell(const Value& value, const Form& form) {
    return std::visit(Match{[](std::monostate) { return std::string("-"); },
                            [](bool is) { return std::string(is ? "yes" : "no"); },
                            [&](int64_t count) {
                                return form.words == nullptr
                                           ? std::to_string(count)
                                           : form.words(static_cast<double>(count));
                            },
                            [&](double number) { return cell(number, form); },
                            [](const std::string& words) { return words; },
                            [&](const Estimate& of) { return cell(of, form); }},
                      value);
}

ordered_json number_json(double value) {
    return std::isnan(value) ? ordered_json() : ordered_json(value);
}

/// Names and values of a cell in files: one, or three of an estimate.
std::vector<std::pair<std::string, ordered_json>> entries(const Column& column,
                                                          const Value& value) {
    if (column.type != Type::estimate)
        return {
            {column.key, std::visit(Match{[](std::monostate) { return ordered_json(); },
                                          [](double number) { return number_json(number); },
                                          [](const Estimate&) { return ordered_json(); },
                                          [](const auto& other) { return ordered_json(other); }},
                                    value)}};
    const auto* of = std::get_if<Estimate>(&value);
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const Estimate estimate = of != nullptr ? *of : Estimate{kNone, kNone, kNone};
    return {{column.key, number_json(estimate.value)},
            {column.key + "_low", number_json(estimate.low)},
            {column.key + "_high", number_json(estimate.high)}};
}

std::string csv_cell(const ordered_json& value) {
    if (value.is_null()) return "";
    if (!value.is_string()) return value.dump();
    return csv_text(value.get<std::string>());
}

bool is_snake_case(const std::string& name) {
    return !name.empty() && std::ranges::all_of(name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    });
}

}  // namespace

const char* to_string(Type type) {
    constexpr std::array kNames{"truth", "integer", "real", "text", "estimate"};
    return kNames[static_cast<size_t>(type)];
}

std::string tokens_text(double count) { return count_text(static_cast<int64_t>(count)); }

Column metric(const char* name, Form form) {
    const analysis::Metric& of = analysis::metric(name);
    Column column{name, of.unit, of.definition, of.heading, form};
    std::ranges::replace(column.heading, ' ', '\n');
    return column;
}

Column shown(Column column, std::string heading, Form form) {
    column.heading = std::move(heading);
    column.form = form;
    return column;
}

Column hidden(Column column) { return shown(std::move(column), ""); }

void check_column(const Column& column, bool may_be_null) {
    MSA_CHECK(is_snake_case(column.key));
    MSA_CHECK(!column.definition.empty());
    MSA_CHECK(may_be_null == !column.null.empty());
}

Table::Table(Shape shape, std::vector<std::vector<Value>> rows)
    : shape_(std::move(shape)), rows_(std::move(rows)) {
    MSA_CHECK(is_snake_case(shape_.name));
    MSA_CHECK(shape_.keys > 0 || rows_.size() == 1);
    std::set<std::string> known;
    for (const std::vector<Value>& row : rows_) {
        std::string key;
        for (size_t c = 0; c < shape_.keys; ++c)
            key += entries(shape_.columns[c], row[c]).front().second.dump() + ' ';
        if (!known.insert(key).second)
            throw std::logic_error(concat("table ", shape_.name, " has two rows ", key));
    }
}

Table Table::hidden() const {
    Table table = *this;
    for (Column& column : table.shape_.columns) column.heading.clear();
    return table;
}

ordered_json Table::json() const {
    ordered_json json{{"about", shape_.about},
                      {"key", ordered_json::array()},
                      {"columns", ordered_json::array()},
                      {"rows", ordered_json::array()}};
    for (size_t c = 0; c < shape_.columns.size(); ++c) {
        const std::string& key = shape_.columns[c].key;
        if (c < shape_.keys) json["key"].push_back(key);
        json["columns"].push_back(key);
    }
    for (const std::vector<Value>& row : rows_) {
        ordered_json& object = json["rows"].emplace_back(ordered_json::object());
        for (size_t c = 0; c < row.size(); ++c)
            for (auto& [key, value] : entries(shape_.columns[c], row[c]))
                object[key] = std::move(value);
    }
    return json;
}

std::string Table::csv() const {
    std::string lines;
    const auto end_line = [&] { lines.back() = '\n'; };  // in place of a comma
    for (const Column& column : shape_.columns)
        for (const auto& [key, value] : entries(column, {})) lines += key + ',';
    end_line();
    for (const std::vector<Value>& row : rows_) {
        for (size_t c = 0; c < row.size(); ++c)
            for (const auto& [key, value] : entries(shape_.columns[c], row[c]))
                lines += csv_cell(value) + ',';
        end_line();
    }
    return lines;
}

void Table::print(std::ostream& out) const {
    std::vector<size_t> shown;
    std::vector<std::string> header;
    for (size_t c = 0; c < shape_.columns.size(); ++c) {
        const std::string& heading = shape_.columns[c].heading;
        const bool has = std::ranges::any_of(rows_, [c](const std::vector<Value>& row) {
            return !std::holds_alternative<std::monostate>(row[c]);
        });
        if (heading.empty() || !has) continue;
        shown.push_back(c);
        header.push_back(heading);
    }
    if (shown.empty()) return;
    AlignedColumns table(header);
    for (const std::vector<Value>& row : rows_) {
        std::vector<std::string> cells;
        for (size_t c : shown) cells.push_back(cell(row[c], shape_.columns[c].form));
        table.add(cells);
    }
    print_paragraph(out, shape_.about + ":");
    out << '\n';
    table.print(out);
}

}  // namespace msa::experiments::report
