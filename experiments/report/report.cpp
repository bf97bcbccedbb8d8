// SPDX-License-Identifier: MIT
#include "experiments/report/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>
#include <stdexcept>

#include "core/error.h"
#include "experiments/report/text.h"

namespace msa::experiments::report {
namespace {

using nlohmann::ordered_json;

void print_paragraphs(const std::string& text, std::ostream& out) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) print_paragraph(out, line);
}

ordered_json column_json(const Column& of) {
    ordered_json json{
        {"type", to_string(of.type)}, {"unit", of.unit}, {"definition", of.definition}};
    if (!of.null.empty()) json["null"] = of.null;
    return json;
}

ordered_json run_json(const io::RunRecord& record) {
    ordered_json run{{"commit", record.commit},
                     {"compiler", record.compiler},
                     {"seed", record.seed},
                     {"options", ordered_json::parse(record.options)}};
    if (!record.element.empty()) run["element"] = record.element;
    if (!record.index_element.empty()) run["index_element"] = record.index_element;
    if (!record.computed_in.empty()) run["computed_in"] = record.computed_in;
    if (!record.inputs.empty()) run["inputs"] = record.inputs;
    if (!record.captures.empty()) run["captures"] = ordered_json::parse(record.captures);
    return run;
}

/// JSON text with what holds nothing nested, as a row, on one line.
std::string lines_of(const ordered_json& json, const std::string& indent) {
    const auto is_nested = [](const ordered_json& part) { return part.is_structured(); };
    if (std::ranges::none_of(json, is_nested)) return json.dump();
    std::string lines, more = indent + ' ';
    for (const auto& [key, part] : json.items())
        add_item(lines, ",", '\n', more, json.is_object() ? ordered_json(key).dump() + ": " : "",
                 lines_of(part, more));
    return concat(json.is_object() ? '{' : '[', lines, '\n', indent, json.is_object() ? '}' : ']');
}

std::vector<Shape> shapes_of(const Report& report) {
    std::vector<Shape> shapes;
    for (const Table& table : report.tables) shapes.push_back(table.shape());
    return shapes;
}

bool same(const Column& a, const Column& b) {
    return a.type == b.type && a.unit == b.unit && a.definition == b.definition;
}

}  // namespace

void Report::note(std::string key, std::string text) {
    if (!text.empty()) notes.push_back({std::move(key), std::move(text)});
}

std::vector<Column> columns_of(std::span<const Shape> tables) {
    std::vector<Column> all;
    for (const Shape& table : tables)
        for (const Column& column : table.columns) {
            const auto known = std::ranges::find(all, column.key, &Column::key);
            if (known == all.end())
                all.push_back(column);
            else if (!same(*known, column))
                throw std::logic_error(
                    concat("column ", column.key, " of table ", table.name, " means two things"));
        }
    return all;
}

std::string definitions(std::span<const Shape> tables) {
    ordered_json json = ordered_json::object();
    for (const Column& column : columns_of(tables)) json[column.key] = column.definition;
    return json.dump();
}

void check(const Report& report) {
    std::set<std::string> notes, tables;
    for (const Note& note : report.notes) MSA_CHECK(notes.insert(note.key).second);
    for (const Table& table : report.tables) MSA_CHECK(tables.insert(table.shape().name).second);
    for (const Column& column : columns_of(shapes_of(report)))
        MSA_CHECK(column.type != Type::estimate || notes.contains(kIntervals));
}

std::string json_text(const Report& report, const io::RunRecord& record) {
    check(report);
    ordered_json notes = ordered_json::object(), columns = ordered_json::object(),
                 tables = ordered_json::object();
    for (const Note& note : report.notes) notes[note.key] = note.text;
    for (const Table& table : report.tables) tables[table.shape().name] = table.json();
    for (const Column& column : columns_of(shapes_of(report)))
        columns[column.key] = column_json(column);
    const ordered_json json{
        {"format", kFormat},
        {"format_version", kVersion},
        {"program", record.program},
        {"run", run_json(record)},
        {"title", report.title},
        {"verdict",
         {{"reached", report.verdict.reached ? ordered_json(*report.verdict.reached) : nullptr},
          {"text", report.verdict.text}}},
        {"notes", notes},
        {"columns", columns},
        {"tables", tables}};
    return lines_of(json, "") + "\n";
}

void print(const Report& report, std::ostream& out) {
    print_paragraphs(report.title, out);
    for (const Table& table : report.tables) {
        std::ostringstream text;
        table.print(text);
        if (!text.str().empty()) out << '\n' << text.str();
    }
    if (!report.verdict.text.empty()) {
        out << '\n';
        print_paragraphs(report.verdict.text, out);
    }
    if (!report.notes.empty()) out << '\n';
    for (const Note& note : report.notes) print_paragraphs(note.text, out);
}

}  // namespace msa::experiments::report
