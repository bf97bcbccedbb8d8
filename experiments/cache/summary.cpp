// SPDX-License-Identifier: MIT
#include "experiments/cache/summary.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>

#include "analysis/metrics.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/table.h"
#include "experiments/driver/units.h"

namespace msa::experiments::cache {
namespace {

using analysis::Prefetch, analysis::StackDistances;
using nlohmann::ordered_json;

double share(int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
}

template <typename T>
ordered_json or_null(const std::optional<T>& value) {
    return value ? ordered_json(*value) : ordered_json();
}

ordered_json json_of(const Point& point) {
    return {{"blocks", point.blocks},
            {"share_of_context", point.share_of_context},
            {"cache_bytes", point.cache_bytes},
            {"hit_rate", point.hit_rate},
            {"hit_rate_lfu", or_null(point.lfu)},
            {"hit_rate_belady", or_null(point.belady)},
            {"misses_per_token", point.misses},
            {"bytes_per_token", point.bytes},
            {"link_seconds_per_token", point.link_seconds},
            {"late_misses_per_token", or_null(point.late)},
            {"in_vain_per_token", or_null(point.late_in_vain)}};
}

ordered_json json_of(const SelectorReport& of) {
    ordered_json json{{"selector", of.selector},
                      {"layers", of.layers},
                      {"layers_guessed", of.layers_guessed},
                      {"recommended", nullptr},
                      {"whole_context", json_of(of.whole)},
                      {"blocks_lfu", or_null(of.lfu)},
                      {"blocks_belady", or_null(of.belady)},
                      {"written_bytes_per_token", of.written_bytes},
                      {"points", ordered_json::array()}};
    if (of.recommended) json["recommended"] = json_of(*of.recommended);
    for (const Point& point : of.points) json["points"].push_back(json_of(point));
    return json;
}

ordered_json json_of(const Prefetch& guessed, int64_t uses, int64_t smallest_cache) {
    return {{"hit_share", share(guessed.hits, uses)},
            {"hits", guessed.hits},
            {"left_without_cache", guessed.left.misses(0)},
            {"left_with_smallest_cache", guessed.left.misses(smallest_cache)}};
}

ordered_json json_of(const LayerReport& of) {
    const analysis::Reuse& reuse = of.seen.reuse;
    ordered_json json{{"layer", of.layer},
                      {"selector", of.selector},
                      {"steps", of.steps},
                      {"groups", of.groups},
                      {"block_bytes", of.block_bytes},
                      {"smallest_cache", of.smallest_cache},
                      {"uses", reuse.uses},
                      {"written", reuse.written},
                      {"cold", reuse.distances.cold},
                      {"reuses", reuse.distances.reuses},
                      {"previous_step", json_of(of.seen.by_step, reuse.uses, of.smallest_cache)},
                      {"previous_layer", nullptr},
                      {"previous_layer_note", of.note}};
    if (of.seen.by_layer) {
        json["previous_layer"] = json_of(*of.seen.by_layer, reuse.uses, of.smallest_cache);
        json["previous_layer"]["layer"] = or_null(of.previous);
    }
    return json;
}

std::string percent(double part, int decimals = 1) { return fixed_text(100 * part, decimals); }

std::string percent(const std::optional<double>& part) { return part ? percent(*part) : "-"; }

std::string blocks_text(const std::optional<int64_t>& blocks) {
    return blocks ? std::to_string(*blocks) : "none";
}

std::vector<std::string> cells(const std::string& selector, const Point& point) {
    return {selector,
            std::to_string(point.blocks),
            percent(point.share_of_context),
            number_text(point.cache_bytes / kMebi),
            percent(point.hit_rate),
            number_text(point.misses),
            number_text(point.bytes / kMega),
            number_text(point.link_seconds / kMicro)};
}

const std::vector<std::string> kHeader{"selector",    "blocks",          "% of\ncontext",
                                       "cache\nMiB",  "LRU\nhits %",     "misses\n/ token",
                                       "MB\n/ token", "link us\n/ token"};

void print_recommended(const Report& report, std::ostream& out) {
    out << "recommended, the smallest cache for the link, least recently used first out:\n\n";
    std::vector<std::string> header = kHeader;
    header.insert(header.end(), {"LFU\nblocks", "Belady\nblocks"});
    Table table(header);
    std::vector<std::string> none;
    for (const SelectorReport& of : report.selectors) {
        if (!of.recommended) {
            none.push_back(of.selector);
            continue;
        }
        std::vector<std::string> row = cells(of.selector, *of.recommended);
        row.insert(row.end(), {blocks_text(of.lfu), blocks_text(of.belady)});
        table.add(row);
    }
    if (!table.empty()) table.print(out);
    if (!none.empty()) out << "no cache is enough: " << join(none) << '\n';
}

void print_sizes(const Report& report, std::ostream& out) {
    out << "\nby the size of the cache:\n\n";
    std::vector<std::string> header = kHeader;
    header.insert(header.begin() + 5, {"LFU\nhits %", "Belady\nhits %"});
    Table table(header);
    for (const SelectorReport& of : report.selectors)
        for (const Point& point : of.points) {
            std::vector<std::string> row = cells(of.selector, point);
            row.insert(row.begin() + 5, {percent(point.lfu), percent(point.belady)});
            table.add(row);
        }
    table.print(out);
}

/// The distance that half of the reuses do not exceed; -1 where there are none.
int64_t median_distance(const StackDistances& distances) {
    const int64_t reuses = distances.misses(0) - distances.cold;
    int64_t sum = 0;
    for (size_t d = 0; d < distances.reuses.size(); ++d) {
        sum += distances.reuses[d];
        if (reuses > 0 && 2 * sum >= reuses) return static_cast<int64_t>(d);
    }
    return -1;
}

void print_layers(const Report& report, std::ostream& out) {
    out << "\nby layer, all groups together, with a cache of k blocks per token:\n\n";
    Table table({"layer", "selector", "k", "cold\n%", "median\ndistance", "previous\nstep %",
                 "previous\nlayer %", "misses\n/ token", "left\n/ token", "in vain\n/ token"});
    for (const LayerReport& of : report.layers) {
        const analysis::Reuse& reuse = of.seen.reuse;
        const int64_t k = of.smallest_cache, median = median_distance(reuse.distances);
        const std::optional<Prefetch>& guessed = of.seen.by_layer;
        table.add({std::to_string(of.layer), of.selector, std::to_string(k),
                   percent(share(reuse.distances.cold, reuse.uses)),
                   median < 0 ? "-" : std::to_string(median),
                   percent(share(of.seen.by_step.hits, reuse.uses)),
                   guessed ? percent(share(guessed->hits, reuse.uses)) : "-",
                   number_text(share(reuse.distances.misses(k), of.steps)),
                   guessed ? number_text(share(guessed->left.misses(k), of.steps)) : "-",
                   guessed ? number_text(share(guessed->in_vain.misses(k), of.steps)) : "-"});
    }
    table.print(out);
    int64_t last = -1;
    for (const LayerReport& of : report.layers) {
        if (of.layer == last || of.note.empty()) continue;
        last = of.layer;
        out << "layer " << of.layer << ": "
            << (of.previous ? text("guessed from layer ", *of.previous, "; ")
                            : std::string("no prefetch by the previous layer: "))
            << of.note << '\n';
    }
}

void print_words(const Report& report, std::ostream& out) {
    print_paragraph(
        out,
        text("Each layer and group has a cache of its own, of as many blocks. Every query is a "
             "decode step, and reads the blocks that it selected. Those that the cache does "
             "not hold are misses, and cross the link; cold ones, first uses, among them. The "
             "cache starts empty, so few steps have many cold misses. Blocks that the steps "
             "write themselves are on the GPU when they are complete: no misses. Each is "
             "written out once, in the other direction: ",
             number_text(report.selectors.front().written_bytes / kMega), " MB per token."));
    print_paragraph(
        out,
        "LFU blocks, Belady blocks: the smallest size tried that would do if the block used "
        "least often left first, or the one whose next use is furthest away (Belady's "
        "optimum, which knows the future), without prefetch. Median distance: the blocks used "
        "since a block's last use, over all reuses. Previous step, previous layer: share of a "
        "step's blocks that the step before selected, or the layer before in the same step and "
        "group. Left: misses that prefetching the previous layer's blocks does not foresee; in "
        "vain: what it fetches and the step does not use. The previous step's blocks are in any "
        "cache "
        "here, so prefetching them saves nothing more.");
    if (report.model_layers > report.selectors.front().layers)
        print_paragraph(
            out, text("Misses, bytes and times are those of ", report.selectors.front().layers,
                      " layers, scaled to ", report.model_layers, "."));
}

}  // namespace

std::string cache_definitions() {
    const auto of = [](const char* name) {
        return ordered_json{name, analysis::metric(name).definition};
    };
    const ordered_json definitions{
        {"steps", "queries of a sequence in order: decode steps"},
        {"blocks", "blocks that the cache of a layer and group holds"},
        {"uses", "blocks that the steps selected, over all steps and groups"},
        {"written",
         "first uses of blocks that the steps write themselves: they are on the GPU, no misses"},
        {"cold", "first uses of other blocks: misses of any cache, which starts empty"},
        {"reuses",
         "further uses by LRU stack distance: the blocks used more recently than this one; a cache "
         "of n blocks misses those from n on. All blocks of a step are asked for at once"},
        of("hit_rate"),
        of("bytes_per_token"),
        of("written_bytes_per_token"),
        of("link_seconds_per_token"),
        {"recommended",
         "the smallest least-recently-used cache whose link_seconds_per_token are at most the time "
         "per token"},
        {"previous_step", "share of uses whose block the step before used, too"},
        {"previous_layer",
         "share of uses whose block the layer before selected in the same step and group"},
        of("late_misses_per_token"),
        of("in_vain_per_token")};
    return definitions.dump();
}

std::string cache_summary(const Report& report, const io::RunRecord& run) {
    ordered_json json = begin_summary("msa-cache-summary", run);
    json.update(
        ordered_json{{"file", report.file},
                     {"element", report.element},
                     {"block_size", report.block_size},
                     {"context_blocks", report.context_blocks},
                     {"steps", report.steps},
                     {"sequences", report.sequences},
                     {"model_layers", report.model_layers},
                     {"prefetch", report.prefetch ? ordered_json(kByLayer) : ordered_json()},
                     {"link",
                      {{"bytes_per_second", report.link},
                       {"seconds_per_token", report.seconds_per_token},
                       {"bytes_per_token", report.bytes_per_token()}}},
                     {"selectors", ordered_json::array()},
                     {"layers", ordered_json::array()}});
    for (const SelectorReport& of : report.selectors) json["selectors"].push_back(json_of(of));
    for (const LayerReport& of : report.layers) json["layers"].push_back(json_of(of));
    return json.dump(2) + "\n";
}

void print_report(const Report& report, std::ostream& out) {
    const LayerReport& first = report.layers.front();
    out << report.steps << " decode steps of " << report.sequences
        << (report.sequences == 1 ? " sequence" : " sequences") << ", up to "
        << report.context_blocks << " blocks of " << report.block_size << " tokens; a block is "
        << number_text(static_cast<double>(first.block_bytes) / 1024) << " KiB of "
        << report.element << " per layer and group\nlink " << number_text(report.link / kGiga)
        << " GB/s, " << number_text(report.seconds_per_token / kMilli) << " ms per token: at most "
        << number_text(report.bytes_per_token() / kMega) << " MB per token, for "
        << report.model_layers << (report.model_layers == 1 ? " layer" : " layers") << '\n'
        << (report.prefetch ? "the previous layer's blocks are prefetched; those in vain cross the "
                              "link, too\n\n"
                            : "\n");
    print_recommended(report, out);
    print_sizes(report, out);
    print_layers(report, out);
    out << '\n';
    print_words(report, out);
}

std::string nearest_text(const Report& report) {
    if (report.reached()) return "";
    const SelectorReport& best = *std::ranges::min_element(
        report.selectors, {}, [](const SelectorReport& of) { return of.whole.bytes; });
    return text("link: no cache keeps it within ", number_text(report.seconds_per_token / kMicro),
                " us per token: with the whole context of ", report.context_blocks,
                " blocks, cold blocks alone are ", number_text(best.whole.bytes / kMega),
                " MB per token (", best.selector, "), ",
                number_text(best.whole.link_seconds / kMicro), " us at ",
                number_text(report.link / kGiga), " GB/s; over more decode steps they are fewer");
}

}  // namespace msa::experiments::cache
