// SPDX-License-Identifier: MIT
#include "core/io/run_record.h"

#include <nlohmann/json.hpp>

#include "core/io/file_error.h"

namespace msa::io {
namespace {

using nlohmann::json;

/// JSON has no bytes that are not UTF-8: they become U+FFFD, also in the file names of a record.
std::string dumped(const json& value, int indent = -1) {
    return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

/// What must agree for results to be of one run.
json identity(const RunRecord& r) {
    const json options = json::parse(r.options, nullptr, false);
    json all{
        {"program", r.program},   {"options", options.is_discarded() ? json(r.options) : options},
        {"seed", r.seed},         {"commit", r.commit},
        {"compiler", r.compiler}, {"inputs", r.inputs}};
    for (const auto& [name, value] : {std::pair{"element", &r.element},
                                      {"index_element", &r.index_element},
                                      {"computed_in", &r.computed_in}})
        if (!value->empty()) all[name] = *value;
    return all;
}

bool is_of_elements(const std::string& key) {
    return key == "element" || key == "index_element" || key == "computed_in";
}

/// The first difference between what is known and wanted; empty where there is none. Both have the
/// same inputs; elsewhere what is known may have more.
std::string difference(const json& known, const json& wanted, const std::string& group = "") {
    for (const auto& [key, value] : wanted.items()) {
        const json before = known.value(key, json());
        if (before.is_null() && is_of_elements(key)) continue;
        if (before.is_object() && value.is_object()) {
            if (std::string inner = difference(before, value, group + key + "."); !inner.empty())
                return inner;
        } else if (dumped(before) != dumped(value)) {
            return concat(group, key, " was ", dumped(before), ", is ", dumped(value), " now");
        }
    }
    if (group != "inputs.") return "";
    for (const auto& [key, value] : known.items())
        if (!wanted.contains(key))
            return concat(group, key, " was ", dumped(value), ", is missing now");
    return "";
}

void require_same(const std::string& place, const json& known, const RunRecord& wanted) {
    if (const std::string other = difference(known, identity(wanted)); !other.empty())
        throw FileError(place + ": is of another run, " + other, FileProblem::other_run);
}

}  // namespace

void require_same_run(const std::string& place, const RunRecord& known, const RunRecord& wanted) {
    require_same(place, identity(known), wanted);
}

std::string identity_text(const RunRecord& r) { return dumped(identity(r)); }

void require_of_run(const std::string& place, const std::string& text, const RunRecord& wanted) {
    const json known = json::parse(text, nullptr, false);
    if (!known.is_object())
        throw FileError(place + ": does not say of which run it is", FileProblem::other_run);
    require_same(place, known, wanted);
}

std::string to_json(const RunRecord& r) {
    json all = identity(r);
    all["options"] = r.options;  // as text, whose keys have an order
    for (const auto& [name, value] : {std::pair<const char*, json>{"definitions", r.definitions},
                                      {"element", r.element},
                                      {"index_element", r.index_element},
                                      {"computed_in", r.computed_in},
                                      {"captures", r.captures},
                                      {"units", r.units},
                                      {"joined", r.joined}})
        all[name] = value;
    return dumped(all, 2);
}

RunRecord parse_record(const std::string& place, const std::string& text) {
    RunRecord r;
    try {
        const json all = json::parse(text);
        for (const auto& [name, value] : {std::pair{"program", &r.program},
                                          {"options", &r.options},
                                          {"definitions", &r.definitions},
                                          {"commit", &r.commit},
                                          {"compiler", &r.compiler},
                                          {"element", &r.element},
                                          {"index_element", &r.index_element},
                                          {"computed_in", &r.computed_in},
                                          {"captures", &r.captures}})
            all.at(name).get_to(*value);
        all.at("seed").get_to(r.seed);
        all.at("inputs").get_to(r.inputs);
        all.at("units").get_to(r.units);
        all.at("joined").get_to(r.joined);
    } catch (const json::exception&) {
        throw FileError(place + ": its record of the run is unreadable", FileProblem::other_run);
    }
    return r;
}

}  // namespace msa::io
