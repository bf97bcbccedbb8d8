// SPDX-License-Identifier: MIT

#include "analysis/over_gpus.h"

#include <algorithm>
#include <ostream>

#include "experiments/cost/from_sizes.h"
#include "experiments/driver/table.h"

namespace msa::experiments::cost {
namespace {

using analysis::DecodeOverGpus, analysis::LayerSizes, analysis::PrefillOverGpus, analysis::RankTime;
using nlohmann::ordered_json;

/// One context on one number of GPUs.
struct Division {
    LayerSizes sizes;
    int64_t gpus;
    PrefillOverGpus prefill;
    DecodeOverGpus decode;
};

ordered_json link_json(const std::optional<analysis::Hardware::Link>& link) {
    if (!link) return nullptr;
    return {{"bytes_per_second", link->bytes_per_second}, {"seconds", link->seconds}};
}

ordered_json prefill_json(const PrefillOverGpus& x) {
    ordered_json json{{"one_seconds", x.one_seconds},
                      {"seconds", x.seconds()},
                      {"speedup", x.speedup()},
                      {"imbalance", x.imbalance()},
                      {"gather_bytes", x.gather_bytes},
                      {"gather_seconds", x.gather_seconds},
                      {"exposed_seconds", x.exposed_seconds()},
                      {"ranks", ordered_json::array()}};
    for (const RankTime& rank : x.ranks)
        json["ranks"].push_back({{"early_seconds", rank.early},
                                 {"late_seconds", rank.late},
                                 {"waited_seconds", rank.waited()},
                                 {"end_seconds", rank.end}});
    return json;
}

ordered_json decode_json(const DecodeOverGpus& x) {
    return {{"one_seconds", x.one_seconds},
            {"seconds", x.seconds()},
            {"speedup", x.speedup()},
            {"worst_speedup", x.worst_speedup()},
            {"step_seconds", x.step_seconds},
            {"select_seconds", x.select_seconds},
            {"attend_seconds", x.attend_seconds},
            {"attend_worst_seconds", x.attend_worst_seconds},
            {"exchange_bytes", x.exchange_bytes},
            {"exchange_seconds", x.exchange_seconds}};
}

void print_divisions_json(const CostOptions& o, const Model& model,
                          const std::vector<Division>& all, const analysis::Hardware& on,
                          std::ostream& out) {
    ordered_json json{{"format", "msa-cost-gpus"},
                      {"format_version", kRecordVersion},
                      {"model", model.name},
                      {"hardware", hardware_json(on, o.ceilings)},
                      {"link", link_json(on.link)},
                      {"network", link_json(on.network)},
                      {"chips_of_host", on.chips_of_host},
                      {"rows", ordered_json::array()}};
    for (const Division& x : all)
        json["rows"].push_back({{"tokens", x.sizes.tokens},
                                {"gpus", x.gpus},
                                {"prefill", prefill_json(x.prefill)},
                                {"decode", decode_json(x.decode)}});
    out << json.dump(2) << '\n';
}

void print_prefill(const std::vector<Division>& all, std::ostream& out) {
    Table table({"prefill\ncontext", "GPUs", "one GPU\nms", "slowest\nrank ms", "imbalance\n%",
                 "gather\nMB", "gather\nms", "not over-\nlapped ms", "all\nms", "speed-up",
                 "of ideal\n%"});
    for (const Division& x : all) {
        const PrefillOverGpus& p = x.prefill;
        double slowest = 0;
        for (const RankTime& rank : p.ranks) slowest = std::max(slowest, rank.compute());
        table.add({count_text(x.sizes.tokens), std::to_string(x.gpus),
                   number_text(p.one_seconds / kMilli), number_text(slowest / kMilli),
                   fixed_text(100 * p.imbalance(), 2), number_text(p.gather_bytes / kMega),
                   number_text(p.gather_seconds / kMilli),
                   number_text(p.exposed_seconds() / kMilli), number_text(p.seconds() / kMilli),
                   fixed_text(p.speedup(), 2),
                   fixed_text(100 * p.speedup() / static_cast<double>(x.gpus), 1)});
    }
    table.print(out);
    out << '\n';
}

void print_decode(const std::vector<Division>& all, std::ostream& out) {
    Table table({"decode\ncontext", "GPUs", "one GPU\nus", "step\nus", "select\nus", "attend\nus",
                 "exchange\nKB", "exchange\nus", "all\nus", "speed-up", "all blocks\nwith one"});
    for (const Division& x : all) {
        const DecodeOverGpus& d = x.decode;
        table.add({count_text(x.sizes.tokens), std::to_string(x.gpus),
                   number_text(d.one_seconds / kMicro), number_text(d.step_seconds / kMicro),
                   number_text(d.select_seconds / kMicro), number_text(d.attend_seconds / kMicro),
                   number_text(d.exchange_bytes / 1000), number_text(d.exchange_seconds / kMicro),
                   number_text(d.seconds() / kMicro), fixed_text(d.speedup(), 2),
                   fixed_text(d.worst_speedup(), 2)});
    }
    table.print(out);
    out << '\n';
}

std::string links_text(const analysis::Hardware& on) {
    const auto words = [](const char* name, const std::optional<analysis::Hardware::Link>& link) {
        if (!link) return std::string();
        return concat("; ", name, " ", number_text(link->bytes_per_second / kGiga), " GB/s, ",
                      number_text(link->seconds / kMicro), " us");
    };
    return words("links", on.link) + words("network", on.network) +
           concat("; ", on.chips_of_host, " to a host");
}

}  // namespace

void cost_over_gpus(const CostOptions& o, const analysis::Hardware& on, std::ostream& out) {
    const Model model = model_of(o);
    std::vector<Division> all;
    for (int64_t tokens : o.contexts)
        for (int64_t gpus : o.gpus) {
            const LayerSizes sizes = sizes_of(o, model, tokens);
            const int count = static_cast<int>(gpus);
            all.push_back({sizes, gpus, prefill_over_gpus(sizes, count, on),
                           decode_over_gpus(sizes, count, on)});
        }
    if (o.json) return print_divisions_json(o, model, all, on, out);
    const LayerSizes& s = all.front().sizes;
    out << model.name << ", one of " << model.layers << " layers: " << sizes_text(s) << '\n'
        << hardware_text(on, o.ceilings, {s.element, s.index_element}) << links_text(on) << "\n\n";
    print_prefill(all, out);
    print_decode(all, out);
    print_paragraph(
        out,
        "Prefill: queries in zig-zag chunks, two for each GPU, whose keys are gathered in the "
        "order of the sequence while earlier chunks are answered. Decode: keys divided; the best "
        "k blocks of each GPU are exchanged, then partial outputs. Times are the roofline's in the "
        "order 'automatic', without launches. Imbalance: the slowest GPU's chunks over the mean. "
        "Not overlapped: what a GPU waits for keys, at most. All blocks with one: the speed-up "
        "where one GPU has all selected blocks.");
}

}  // namespace msa::experiments::cost
