// SPDX-License-Identifier: MIT
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>
#include <span>

#include "analysis/metrics.h"
#include "experiments/cache/report.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/table.h"

namespace msa::experiments::cache {
namespace {

using analysis::Prefetch, analysis::StackDistances;
using nlohmann::ordered_json;

double share(int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
}

/// Of the points: the table by size, the objects of JSON and the lines of rows.csv.
const std::vector<ColumnOf<Point>> kPointColumns{
    {{"selector", "selector"}, &Point::selector},
    {{"blocks", "blocks"}, &Point::blocks},
    {{"share_of_context", "% of\ncontext", kPercent}, &Point::share_of_context},
    {{"cache_bytes", "cache\nMiB", {.decimals = -4, .per = kMebi}}, &Point::cache_bytes},
    {{"hit_rate", "LRU\nhits %", kPercent}, &Point::hit_rate},
    {{"hit_rate_lfu", "LFU\nhits %", kPercent}, &Point::lfu},
    {{"hit_rate_belady", "Belady\nhits %", kPercent}, &Point::belady},
    {{"misses_per_token", "misses\n/ token", {.decimals = -4}}, &Point::misses},
    {{"bytes_per_token", "MB\n/ token", {.decimals = -4, .per = kMega}}, &Point::bytes},
    {{"link_seconds_per_token", "link us\n/ token", {.decimals = -4, .per = kMicro}},
     &Point::link_seconds},
    {{"late_misses_per_token"}, &Point::late},
    {{"in_vain_per_token"}, &Point::late_in_vain},
};

std::vector<Point> tried_points(const Report& report) {
    std::vector<Point> all;
    for (const SelectorReport& of : report.selectors)
        std::ranges::copy(of.points, std::back_inserter(all));
    return all;
}

ordered_json json_of(const Point& point) {
    ordered_json json = Rows(kPointColumns, std::span(&point, 1)).json(0);
    json.erase("selector");
    return json;
}

ordered_json json_of(const SelectorReport& of) {
    ordered_json json{{"selector", of.selector},
                      {"layers", of.layers},
                      {"layers_guessed", of.layers_guessed},
                      {"recommended", nullptr},
                      {"whole_context", json_of(of.whole)},
                      {"blocks_lfu", value_json(of.lfu)},
                      {"blocks_belady", value_json(of.belady)},
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
        json["previous_layer"]["layer"] = value_json(of.previous);
    }
    return json;
}

std::string blocks_text(const std::optional<int64_t>& blocks) {
    return blocks ? std::to_string(*blocks) : "none";
}

void print_recommended(const Report& report, std::ostream& out) {
    out << "recommended, the smallest cache for the link, least recently used first out:\n\n";
    std::vector<ColumnOf<Point>> columns = kPointColumns;
    for (ColumnOf<Point>& one : columns)  // of these policies, the size that would do
        if (one.column.heading.starts_with("LFU") || one.column.heading.starts_with("Belady"))
            one.column.heading.clear();
    const auto report_of = [&](const Point& point) -> const SelectorReport& {
        return *std::ranges::find(report.selectors, point.selector, &SelectorReport::selector);
    };
    columns.push_back({{"", "LFU\nblocks"},
                       [&](const Point& point) { return blocks_text(report_of(point).lfu); }});
    columns.push_back({{"", "Belady\nblocks"},
                       [&](const Point& point) { return blocks_text(report_of(point).belady); }});
    std::vector<Point> found;
    std::vector<std::string> none;
    for (const SelectorReport& of : report.selectors)
        if (of.recommended)
            found.push_back(*of.recommended);
        else
            none.push_back(of.selector);
    Rows(columns, found).print(out);
    if (!none.empty()) out << "no cache is enough: " << join(none) << '\n';
}

/// The distance that half of the reuses do not exceed; nothing where there are none.
std::optional<int64_t> median_distance(const StackDistances& distances) {
    const int64_t reuses = distances.misses(0) - distances.cold;
    int64_t sum = 0;
    for (size_t d = 0; d < distances.reuses.size(); ++d) {
        sum += distances.reuses[d];
        if (reuses > 0 && 2 * sum >= reuses) return static_cast<int64_t>(d);
    }
    return std::nullopt;
}

constexpr Form kFigures{.decimals = -4};

std::optional<double> share_if(const LayerReport& of, int64_t Prefetch::*part) {
    if (!of.seen.by_layer) return std::nullopt;
    return share((*of.seen.by_layer).*part, of.seen.reuse.uses);
}

/// Misses per step of a cache of k blocks.
std::optional<double> misses_if(const LayerReport& of, StackDistances Prefetch::*part) {
    if (!of.seen.by_layer) return std::nullopt;
    return share(((*of.seen.by_layer).*part).misses(of.smallest_cache), of.steps);
}

const std::vector<ColumnOf<LayerReport>> kLayerColumns{
    {{"", "layer"}, &LayerReport::layer},
    {{"", "selector"}, &LayerReport::selector},
    {{"", "k"}, &LayerReport::smallest_cache},
    {{"", "cold\n%", kPercent},
     [](const auto& of) { return share(of.seen.reuse.distances.cold, of.seen.reuse.uses); }},
    {{"", "median\ndistance"},
     [](const auto& of) { return median_distance(of.seen.reuse.distances); }},
    {{"", "previous\nstep %", kPercent},
     [](const auto& of) { return share(of.seen.by_step.hits, of.seen.reuse.uses); }},
    {{"", "previous\nlayer %", kPercent},
     [](const auto& of) { return share_if(of, &Prefetch::hits); }},
    {{"", "misses\n/ token", kFigures},
     [](const auto& of) {
         return share(of.seen.reuse.distances.misses(of.smallest_cache), of.steps);
     }},
    {{"", "left\n/ token", kFigures},
     [](const auto& of) { return misses_if(of, &Prefetch::left); }},
    {{"", "in vain\n/ token", kFigures},
     [](const auto& of) { return misses_if(of, &Prefetch::in_vain); }},
};

void print_layers(const Report& report, std::ostream& out) {
    out << "\nby layer, all groups together, with a cache of k blocks per token:\n\n";
    Rows(kLayerColumns, report.layers).print(out);
    int64_t last = -1;
    for (const LayerReport& of : report.layers) {
        if (of.layer == last || of.note.empty()) continue;
        last = of.layer;
        out << "layer " << of.layer << ": "
            << (of.previous ? concat("guessed from layer ", *of.previous, "; ")
                            : std::string("no prefetch by the previous layer: "))
            << of.note << '\n';
    }
}

void print_words(const Report& report, std::ostream& out) {
    print_paragraph(
        out,
        concat("Each layer and group has a cache of its own, of as many blocks. Every query is a "
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
            out, concat("Misses, bytes and times are those of ", report.selectors.front().layers,
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

std::string cache_rows_csv(const Report& report) {
    return Rows(kPointColumns, tried_points(report)).csv();
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
    out << "\nby the size of the cache:\n\n";
    Rows(kPointColumns, tried_points(report)).print(out);
    print_layers(report, out);
    out << '\n';
    print_words(report, out);
}

std::string nearest_text(const Report& report) {
    if (report.reached()) return "";
    const SelectorReport& best = *std::ranges::min_element(
        report.selectors, {}, [](const SelectorReport& of) { return of.whole.bytes; });
    return concat("link: no cache keeps it within ", number_text(report.seconds_per_token / kMicro),
                  " us per token: with the whole context of ", report.context_blocks,
                  " blocks, cold blocks alone are ", number_text(best.whole.bytes / kMega),
                  " MB per token (", best.selector, "), ",
                  number_text(best.whole.link_seconds / kMicro), " us at ",
                  number_text(report.link / kGiga), " GB/s; over more decode steps they are fewer");
}

}  // namespace msa::experiments::cache
