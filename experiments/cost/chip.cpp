// SPDX-License-Identifier: MIT
#include "experiments/cost/from_sizes.h"
#include "experiments/driver/table.h"

namespace msa::experiments::cost {
namespace {

const char* to_string(Ceilings ceilings) {
    return ceilings == Ceilings::peak ? "peak" : "measured";
}

}  // namespace

nlohmann::ordered_json hardware_json(const analysis::Hardware& on, Ceilings ceilings) {
    nlohmann::ordered_json flops, json;
    for (const auto& [element, peak] : on.flops_per_second) flops[msa::to_string(element)] = peak;
    json["name"] = on.name;
    json["ceilings"] = to_string(ceilings);
    json["flops_per_second"] = flops;
    json["bytes_per_second"] = on.bytes_per_second;
    json["cache_bytes"] = nullptr;
    json["cache_bytes_per_second"] = nullptr;
    if (on.cache_bytes) json["cache_bytes"] = *on.cache_bytes;
    if (on.cache_bytes_per_second) json["cache_bytes_per_second"] = *on.cache_bytes_per_second;
    return json;
}

std::string hardware_text(const analysis::Hardware& on, Ceilings ceilings,
                          const std::set<Element>& used) {
    std::string line = on.name + ", " + to_string(ceilings) + " rates:";
    for (Element element : used)
        line += concat(" ", msa::to_string(element), " ", number_text(on.peak(element) / kTera),
                       " TFLOP/s,");
    line += " memory " + number_text(on.bytes_per_second / kTera) + " TB/s";
    if (on.cache_bytes) line += ", cache " + number_text(*on.cache_bytes / kMebi) + " MiB";
    if (on.cache_bytes_per_second)
        line += " at " + number_text(*on.cache_bytes_per_second / kTera) + " TB/s";
    return line;
}

}  // namespace msa::experiments::cost
