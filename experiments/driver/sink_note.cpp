// SPDX-License-Identifier: MIT
#include "experiments/driver/sink_note.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "core/error.h"
#include "experiments/driver/options.h"
#include "experiments/driver/table.h"

namespace msa::experiments {
namespace {

constexpr double kSink = 0.05, kKept = 0.8;
constexpr const char* kRemedy = "--forced-first 1";

}  // namespace

nlohmann::ordered_json dropped_sinks(const nlohmann::ordered_json& rows) {
    nlohmann::ordered_json dropped = nlohmann::ordered_json::array();
    int64_t first = std::numeric_limits<int64_t>::max();
    for (const nlohmann::ordered_json& row : rows)
        if (row["sink_mass_dense"].is_number() && row["sink_mass_dense"].get<double>() > kSink)
            first = std::min(first, row["layer"].get<int64_t>());
    for (const nlohmann::ordered_json& row : rows) {
        const nlohmann::ordered_json &dense = row["sink_mass_dense"],
                                     &sparse = row["sink_mass_sparse"];
        if (dense.is_null() || sparse.is_null()) continue;
        if (dense.get<double>() <= kSink || sparse.get<double>() >= kKept * dense.get<double>())
            continue;
        nlohmann::ordered_json& of = dropped.emplace_back();
        for (const char* name : {"layer", "selector", "setting"})
            if (row.contains(name)) of[name] = row[name];
        of["sink_mass_dense"] = dense;
        of["sink_mass_sparse"] = sparse;
        of["sink_from_layer"] = first;
        of["remedy"] = kRemedy;
    }
    return dropped;
}

void print_dropped_sinks(const nlohmann::ordered_json& dropped, std::ostream& out) {
    if (dropped.empty()) return;
    std::map<std::string, std::string> layers;  // of each selector
    std::set<std::string> selectors;
    for (const nlohmann::ordered_json& row : dropped) {
        std::string name = row["selector"];
        selectors.insert(name);
        if (row.contains("setting")) name += "@" + row["setting"].get<std::string>();
        std::string& of = layers[name];
        of += concat(of.empty() ? "" : ", ", row["layer"].get<int64_t>(), " (",
                     fixed_text(row["sink_mass_dense"], 3), " to ",
                     fixed_text(row["sink_mass_sparse"], 3), ")");
    }
    std::string words;
    for (const auto& [selector, of] : layers)
        words += concat(words.empty() ? "" : "; ", selector, " in layer ", of);
    print_paragraph(
        out, concat("Sink from layer ", dropped.front()["sink_from_layer"].get<int64_t>(), "; ",
                    join({selectors.begin(), selectors.end()}),
                    selectors.size() == 1 ? " drops it" : " drop it", "; force block 0."));
    print_paragraph(out,
                    concat("Sink dropped, probability on token 0 from dense to sparse: ", words,
                           ". The model puts it there in dense attention, and it goes to other "
                           "tokens here: ",
                           kRemedy, " keeps it."));
}

}  // namespace msa::experiments
