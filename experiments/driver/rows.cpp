// SPDX-License-Identifier: MIT
#include "experiments/driver/rows.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>

#include "analysis/metrics.h"
#include "core/error.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/run.h"
#include "experiments/driver/table.h"

namespace msa::experiments {
namespace {

using analysis::Estimate;
using nlohmann::ordered_json;

template <typename... Cases>
struct Match : Cases... {
    using Cases::operator()...;
};
template <typename... Cases>
Match(Cases...) -> Match<Cases...>;  // clang 14 does not deduce it

std::string shown(double value, const Form& form) {
    const double scaled = value * form.times / form.per;
    return form.decimals < 0 ? number_text(scaled, -form.decimals)
                             : fixed_text(scaled, form.decimals);
}

std::string shown(const Estimate& of, const Form& form) {
    std::string value = shown(of.value, form);
    switch (form.shown) {
        case Shown::value: return value;
        case Shown::low: return concat(value, " (", shown(of.low, form), ")");
        case Shown::high: return concat(value, " (", shown(of.high, form), ")");
        case Shown::interval: break;
    }
    return concat(value, " [", shown(of.low, form), ", ", shown(of.high, form), "]");
}

std::string cell(const Value& value, const Form& form) {
    return std::visit(Match{[](std::monostate) { return std::string("-"); },
                            [](bool is) { return std::string(is ? "yes" : "no"); },
                            [](int64_t count) { return std::to_string(count); },
                            [&](double number) { return shown(number, form); },
                            [](const std::string& words) { return words; },
                            [&](const Estimate& of) { return shown(of, form); }},
                      static_cast<const Anything&>(value));
}

std::string csv_number(double value) {
    if (std::isnan(value)) return "";
    std::ostringstream out;
    out << std::setprecision(9) << value;
    return out.str();
}

std::string csv_words(const std::string& words) {
    if (words.find_first_of(",\"\n ") == words.npos) return words;
    std::string quoted = "\"";
    for (char letter : words)
        quoted += letter == '"' ? std::string("\"\"") : std::string(1, letter);
    return quoted + '"';
}

std::string csv_cell(const Value& value) {
    return std::visit(Match{[](std::monostate) { return std::string(); },
                            [](bool is) { return std::string(is ? "true" : "false"); },
                            [](int64_t count) { return std::to_string(count); },
                            [](double number) { return csv_number(number); },
                            [](const std::string& words) { return csv_words(words); },
                            [](const Estimate& of) {
                                return concat(csv_number(of.value), ',', csv_number(of.low), ',',
                                              csv_number(of.high));
                            }},
                      static_cast<const Anything&>(value));
}

}  // namespace

ordered_json value_json(const Value& value) {
    return std::visit(Match{[](std::monostate) { return ordered_json(); },
                            [](double number) { return json_number(number); },
                            [](const Estimate& of) { return estimate_json(of); },
                            [](const auto& other) { return ordered_json(other); }},
                      static_cast<const Anything&>(value));
}

Column metric_column(const char* name, Form form) {
    const analysis::Metric& metric = analysis::metric(name);
    Column column{name, metric.heading, form, metric.definition};
    std::ranges::replace(column.heading, ' ', '\n');
    return column;
}

void Rows::add(std::vector<Value> row) {
    MSA_CHECK(row.size() == columns_.size());
    rows_.push_back(std::move(row));
}

ordered_json Rows::json(size_t row) const {
    ordered_json object;
    for (size_t c = 0; c < columns_.size(); ++c)
        if (!columns_[c].key.empty()) object[columns_[c].key] = value_json(rows_.at(row)[c]);
    return object;
}

ordered_json Rows::json() const {
    ordered_json all = ordered_json::array();
    for (size_t row = 0; row < rows_.size(); ++row) all.push_back(json(row));
    return all;
}

std::string Rows::csv() const {
    std::string lines;
    const auto end_line = [&] { lines.back() = '\n'; };  // in place of a comma
    std::vector<bool> is_estimate;
    for (size_t c = 0; c < columns_.size(); ++c) {
        const std::string& key = columns_[c].key;
        is_estimate.push_back(std::ranges::any_of(
            rows_, [&](const auto& row) { return std::holds_alternative<Estimate>(row[c]); }));
        if (key.empty()) continue;
        lines += key + ',';
        if (is_estimate.back()) lines += concat(key, "_low,", key, "_high,");
    }
    end_line();
    for (const std::vector<Value>& row : rows_) {
        for (size_t c = 0; c < row.size(); ++c) {
            if (columns_[c].key.empty()) continue;
            const bool is_short = is_estimate[c] && !std::holds_alternative<Estimate>(row[c]);
            lines += csv_cell(row[c]) + (is_short ? ",,," : ",");
        }
        end_line();
    }
    return lines;
}

void Rows::print(std::ostream& out) const {
    if (rows_.empty()) return;
    std::vector<std::string> header;
    for (const Column& column : columns_)
        if (!column.heading.empty()) header.push_back(column.heading);
    Table table(header);
    for (const std::vector<Value>& row : rows_) {
        std::vector<std::string> cells;
        for (size_t c = 0; c < columns_.size(); ++c)
            if (!columns_[c].heading.empty()) cells.push_back(cell(row[c], columns_[c].form));
        table.add(cells);
    }
    table.print(out);
}

void Rows::print_definitions(std::ostream& out) const {
    Table table({"column", "definition"});
    for (const Column& column : columns_) {
        if (column.heading.empty() || column.definition.empty()) continue;
        std::string heading = column.heading;
        std::ranges::replace(heading, '\n', ' ');
        table.add({heading, column.definition});
    }
    table.print(out);
}

}  // namespace msa::experiments
