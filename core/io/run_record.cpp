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
    return {
        {"program", r.program},   {"options", options.is_discarded() ? json(r.options) : options},
        {"seed", r.seed},         {"commit", r.commit},
        {"compiler", r.compiler}, {"inputs", r.inputs}};
}

/// The first difference between what is known and wanted, which is `there`; empty where there is
/// none. Both have the same inputs; elsewhere what is known may have more.
std::string difference(const json& known, const json& wanted, const char* there,
                       const std::string& group = "") {
    for (const auto& [key, value] : wanted.items()) {
        const json before = known.value(key, json());
        if (before.is_object() && value.is_object()) {
            if (std::string inner = difference(before, value, there, group + key + ".");
                !inner.empty())
                return inner;
        } else if (dumped(before) != dumped(value)) {
            return concat(group, key, " was ", dumped(before), ", is ", dumped(value), there);
        }
    }
    if (group != "inputs.") return "";
    for (const auto& [key, value] : known.items())
        if (!wanted.contains(key))
            return concat(group, key, " was ", dumped(value), ", is missing", there);
    return "";
}

}  // namespace

void require_same_run(const std::string& place, const RunRecord& known, const RunRecord& wanted) {
    if (const std::string other = difference(identity(known), identity(wanted), " now");
        !other.empty())
        throw FileError(place + ": cannot resume, " + other, FileProblem::other_run);
}

void require_same_shards(const std::string& place, const RunRecord& known,
                         const RunRecord& wanted) {
    const auto of_shard = [](const RunRecord& r) {
        json all = identity(r);
        all["element"] = r.element;
        all["index_element"] = r.index_element;
        all["computed_in"] = r.computed_in;
        return all;
    };
    const std::string other = difference(of_shard(wanted), of_shard(known), " here");
    require(other.empty(), place, ": is of another run, ", other);
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
                                      {"joined", r.joined},
                                      {"shard", r.shard},
                                      {"input_paths", r.input_paths}})
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
                                          {"captures", &r.captures},
                                          {"shard", &r.shard}})
            all.at(name).get_to(*value);
        all.at("seed").get_to(r.seed);
        all.at("inputs").get_to(r.inputs);
        all.at("units").get_to(r.units);
        r.joined = all.value("joined", r.joined);  // of shards of an earlier version: none
        all.at("input_paths").get_to(r.input_paths);
    } catch (const json::exception&) {
        throw FileError(place + ": cannot resume, its record of the run is unreadable",
                        FileProblem::other_run);
    }
    return r;
}

}  // namespace msa::io
