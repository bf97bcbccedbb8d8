// SPDX-License-Identifier: MIT
// The answer of msa-cache as tables.
#include <algorithm>

#include "experiments/cache/findings.h"
#include "experiments/driver/run_record.h"
#include "experiments/programs.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::cache {
namespace {

using analysis::Prefetch, analysis::StackDistances;
using report::Column, report::ColumnOf, report::Form, report::kPercent;

constexpr Form kFigures{.decimals = -4};
constexpr const char* kNoneBefore = "no layer before it has the same queries and ids";
constexpr const char* kNoneEnough = "no size tried keeps the link within its time";

double share(int64_t part, int64_t whole) {
    return static_cast<double>(part) / static_cast<double>(whole);
}

// A selector.

std::optional<int64_t> recommended_blocks(const SelectorFindings& of) {
    if (!of.recommended) return std::nullopt;
    return of.recommended->blocks;
}

const report::TableOf<SelectorFindings> kSelectors{
    "selectors",
    "the smallest cache for the link, in blocks",
    1,
    {{report::kSelector, &SelectorFindings::selector},
     {{.key = "blocks_lru",
       .unit = "blocks",
       .definition = "the smallest cache whose link_seconds_per_token are at most the time per "
                     "token, where the least recently used block leaves first; prefetch as asked",
       .heading = "LRU\nblocks",
       .null = "no cache keeps the link within its time"},
      recommended_blocks},
     {{.key = "blocks_lfu",
       .unit = "blocks",
       .definition = "the smallest size tried that would do without prefetch if the block used "
                     "least often left first",
       .heading = "LFU\nblocks",
       .null = kNoneEnough},
      &SelectorFindings::lfu},
     {{.key = "blocks_belady",
       .unit = "blocks",
       .definition = "the smallest size tried that would do without prefetch if the block whose "
                     "next use is furthest away left first: Belady's optimum, which knows the "
                     "future",
       .heading = "Belady\nblocks",
       .null = kNoneEnough},
      &SelectorFindings::belady},
     {{"layers_measured", "layers", "layers with ids of the selector"}, &SelectorFindings::layers},
     {{"layers_guessed", "layers", "of these, layers with guesses by a previous layer"},
      &SelectorFindings::layers_guessed},
     {report::hidden(report::metric("written_bytes_per_token")),
      &SelectorFindings::written_bytes}}};

// A size of the cache.

constexpr const char* kRoles[] = {"recommended", "tried", "whole"};

ColumnOf<Point> policy_column(const std::string& policy, const char* heading,
                              const std::string& which, std::optional<double> Point::*rate) {
    return {{.key = "hit_rate_" + policy,
             .unit = report::metric("hit_rate").unit,
             .definition = "hit_rate where the block " + which + " leaves first",
             .heading = heading,
             .form = kPercent,
             .null = "the size is not among those tried"},
            rate};
}

ColumnOf<Point> prefetch_column(const char* metric, std::optional<double> Point::*blocks) {
    Column column = report::hidden(report::metric(metric));
    column.null = "no layer has guesses";
    return {column, blocks};
}

const report::TableOf<Point> kCaches{
    "caches",
    "caches of so many blocks for each layer and group, least recently used first out; all layers "
    "of the model and all groups together",
    3,
    {{{.key = "cache_role",
       .unit = "",
       .definition = "why the cache is here. recommended: the one of blocks_lru. tried: --sizes. "
                     "whole: as many blocks as the longest context, so that only first "
                     "uses miss",
       .heading = "cache"},
      [](const Point& point) { return kRoles[static_cast<size_t>(point.role)]; }},
     {report::kSelector, &Point::selector},
     {{"blocks", "blocks", "blocks that the cache of a layer and group holds", "blocks"},
      &Point::blocks},
     {{"share_of_context", "1", "blocks over those that the last step of the longest sequence sees",
       "% of\ncontext", kPercent},
      &Point::share_of_context},
     {{"cache_bytes",
       "B",
       "keys and values in the caches",
       "cache\nMiB",
       {.decimals = -4, .per = kMebi}},
      &Point::cache_bytes},
     {report::shown(report::metric("hit_rate"), "LRU\nhits %", kPercent), &Point::hit_rate},
     policy_column("lfu", "LFU\nhits %", "used least often since the first step", &Point::lfu),
     policy_column("belady", "Belady\nhits %", "whose next use is furthest away", &Point::belady),
     {{"misses_per_token", "blocks", "blocks that miss, per step", "misses\n/ token", kFigures},
      &Point::misses},
     {report::shown(report::metric("bytes_per_token"), "MB\n/ token",
                    {.decimals = -4, .per = kMega}),
      &Point::bytes},
     {report::shown(report::metric("link_seconds_per_token"), "link us\n/ token",
                    {.decimals = -4, .per = kMicro}),
      &Point::link_seconds},
     prefetch_column("late_misses_per_token", &Point::late),
     prefetch_column("in_vain_per_token", &Point::late_in_vain)}};

// A layer.

/// The distance that half of the reuses do not exceed; nothing where there are none.
std::optional<int64_t> median_distance(const LayerFindings& of) {
    const StackDistances& distances = of.seen.reuse.distances;
    const int64_t reuses = distances.misses(0) - distances.cold;
    int64_t sum = 0;
    for (size_t d = 0; d < distances.reuses.size(); ++d) {
        sum += distances.reuses[d];
        if (reuses > 0 && 2 * sum >= reuses) return static_cast<int64_t>(d);
    }
    return std::nullopt;
}

/// A column that a layer has if it has guesses by the previous one.
template <typename Get>
ColumnOf<LayerFindings> guessed_column(Column column, Get get) {
    column.null = kNoneBefore;
    return {column, [get](const LayerFindings& of) {
                using Found = std::invoke_result_t<Get, const LayerFindings&, const Prefetch&>;
                return of.seen.by_layer ? std::optional<Found>(get(of, *of.seen.by_layer))
                                        : std::nullopt;
            }};
}

/// Per step, blocks that miss in a cache of k blocks.
double misses_per_step(const LayerFindings& of, const StackDistances& distances) {
    return share(distances.misses(of.smallest_cache), of.steps);
}

ColumnOf<LayerFindings> count_column(const char* key, const char* definition,
                                     int64_t (*get)(const LayerFindings&)) {
    return {{key, "blocks", definition}, get};
}

const std::string kLeft =
    "uses that prefetching the blocks of the previous step does not foresee, and that miss ";
const std::string kLeftByLayer =
    "uses that prefetching the blocks of the previous layer does not foresee, and that miss ";
constexpr const char *kNoCache = "without a cache", *kSmallest = "in one of k blocks";

const report::TableOf<LayerFindings> kLayers{
    "layers",
    "by layer, all groups together; misses are those of a cache of k blocks",
    2,
    {{report::kLayer, &LayerFindings::layer},
     {report::kSelector, &LayerFindings::selector},
     {{"smallest_cache", "blocks", "k: the smallest cache that holds every step", "k"},
      &LayerFindings::smallest_cache},
     {{"steps", "", "decode steps: the queries of each sequence in order"}, &LayerFindings::steps},
     {{"groups", "", "KV groups of the layer, each with a cache of its own"},
      &LayerFindings::groups},
     {{"block_bytes", "B", "keys and values of one block of one group"},
      &LayerFindings::block_bytes},
     count_column("uses", "blocks that the steps selected, over all steps and groups",
                  [](const LayerFindings& of) { return of.seen.reuse.uses; }),
     count_column(
         "written",
         "first uses of blocks that the steps write themselves: they are on the GPU, no misses",
         [](const LayerFindings& of) { return of.seen.reuse.written; }),
     count_column("cold", "first uses of other blocks: misses of any cache, which starts empty",
                  [](const LayerFindings& of) { return of.seen.reuse.distances.cold; }),
     {{"cold_share", "1", "cold over uses", "cold\n%", kPercent},
      [](const LayerFindings& of) {
          return share(of.seen.reuse.distances.cold, of.seen.reuse.uses);
      }},
     {{.key = "median_distance",
       .unit = "blocks",
       .definition = "blocks used since a block's last use, median over all reuses",
       .heading = "median\ndistance",
       .null = "no block is used again"},
      median_distance},
     count_column("previous_step_hits", "uses whose block the step before used, too",
                  [](const LayerFindings& of) { return of.seen.by_step.hits; }),
     {{"previous_step_share", "1", "previous_step_hits over uses", "previous\nstep %", kPercent},
      [](const LayerFindings& of) { return share(of.seen.by_step.hits, of.seen.reuse.uses); }},
     {{"previous_step_left", "blocks", kLeft + kNoCache},
      [](const LayerFindings& of) { return of.seen.by_step.left.misses(0); }},
     {{"previous_step_left_of_smallest", "blocks", kLeft + kSmallest},
      [](const LayerFindings& of) { return of.seen.by_step.left.misses(of.smallest_cache); }},
     {{.key = "previous_layer",
       .unit = "",
       .definition = "the layer whose blocks are guesses: the nearest one before it",
       .null = kNoneBefore},
      &LayerFindings::previous},
     {{"previous_layer_note", "", "why there is no previous layer, or which layers lie between"},
      &LayerFindings::note},
     guessed_column({"previous_layer_hits", "blocks",
                     "uses whose block the previous layer selected in the same step and group"},
                    [](const auto&, const Prefetch& guessed) { return guessed.hits; }),
     guessed_column({"previous_layer_share", "1", "previous_layer_hits over uses",
                     "previous\nlayer %", kPercent},
                    [](const auto& of, const Prefetch& guessed) {
                        return share(guessed.hits, of.seen.reuse.uses);
                    }),
     guessed_column({"previous_layer_left", "blocks", kLeftByLayer + kNoCache},
                    [](const auto&, const Prefetch& guessed) { return guessed.left.misses(0); }),
     guessed_column({"previous_layer_left_of_smallest", "blocks", kLeftByLayer + kSmallest},
                    [](const auto& of, const Prefetch& guessed) {
                        return guessed.left.misses(of.smallest_cache);
                    }),
     {{"layer_misses_per_token", "blocks", "uses that miss, per step", "misses\n/ token", kFigures},
      [](const LayerFindings& of) { return misses_per_step(of, of.seen.reuse.distances); }},
     guessed_column(
         {"layer_late_misses_per_token", "blocks", "previous_layer_left_of_smallest per step",
          "left\n/ token", kFigures},
         [](const auto& of, const Prefetch& guessed) { return misses_per_step(of, guessed.left); }),
     guessed_column({"layer_in_vain_per_token", "blocks",
                     "blocks of the previous layer that are fetched and not used, per step",
                     "in vain\n/ token", kFigures},
                    [](const auto& of, const Prefetch& guessed) {
                        return misses_per_step(of, guessed.in_vain);
                    })}};

// Reuses at a distance.

struct Reuses {
    int64_t layer = 0;
    std::string selector;
    int64_t distance = 0, reuses = 0;
};

const report::TableOf<Reuses> kReuses{
    "reuses",
    "uses of blocks that were used before, by stack distance",
    3,
    {{report::hidden(report::kLayer), &Reuses::layer},
     {report::hidden(report::kSelector), &Reuses::selector},
     {{"stack_distance", "blocks",
       "blocks used more recently than this one; a least-recently-used cache of n blocks misses "
       "those from n on. All blocks of a step are asked for at once"},
      &Reuses::distance},
     {{"reuses", "blocks", "uses of blocks that were used before, at this distance"},
      &Reuses::reuses}}};

std::vector<Reuses> reuses_of(const std::vector<LayerFindings>& layers) {
    std::vector<Reuses> all;
    for (const LayerFindings& of : layers)
        for (int64_t count : of.seen.reuse.distances.reuses) {
            const bool same =
                !all.empty() && all.back().layer == of.layer && all.back().selector == of.selector;
            all.push_back({of.layer, of.selector, same ? all.back().distance + 1 : 0, count});
        }
    return all;
}

const report::TableOf<Findings> kMeasured{
    "measured",
    "what was measured, and the link",
    0,
    {{report::kBlockSize, &Findings::block_size},
     {{"context_blocks", "blocks", "blocks that the last step of the longest sequence sees"},
      &Findings::context_blocks},
     {report::kQueries, &Findings::steps},
     {report::kSequences, &Findings::sequences},
     {{"most_bytes_per_token", "B", "bytes that the link carries in the time per token"},
      &Findings::bytes_per_token}}};

std::vector<Point> caches_of(const Findings& findings) {
    std::vector<Point> all;
    for (const SelectorFindings& of : findings.selectors)
        if (of.recommended) all.push_back(*of.recommended);
    for (const SelectorFindings& of : findings.selectors)
        all.insert(all.end(), of.points.begin(), of.points.end());
    for (const SelectorFindings& of : findings.selectors) all.push_back(of.whole);
    return all;
}

std::string title(const Findings& findings) {
    const double block = static_cast<double>(findings.layers.front().block_bytes);
    return concat(findings.steps, " decode steps of ", count_text(findings.sequences, "sequence"),
                  ", up to ", findings.context_blocks, " blocks of ", findings.block_size,
                  " tokens; a block is ", number_text(block / 1024), " KiB of ", findings.element,
                  " per layer and group\nlink ", number_text(findings.link / kGiga), " GB/s, ",
                  number_text(findings.seconds_per_token / kMilli), " ms per token: at most ",
                  number_text(findings.bytes_per_token() / kMega), " MB per token, for ",
                  count_text(findings.model_layers, "layer"),
                  findings.prefetch ? "\nthe previous layer's blocks are prefetched; those in vain "
                                      "cross the link, too"
                                    : "");
}

/// The smallest caches, or why none meets the time and the time that the nearest one needs.
report::Verdict verdict(const Findings& findings) {
    std::string found, none;
    for (const SelectorFindings& of : findings.selectors)
        if (of.recommended)
            add_item(found, ", ", of.selector, " ", of.recommended->blocks);
        else
            add_item(none, ", ", of.selector);
    if (findings.reached())
        return {true, concat("smallest cache within the time, in blocks: ", found,
                             none.empty() ? "" : "\nno cache is enough: ", none)};
    const SelectorFindings& best = *std::ranges::min_element(
        findings.selectors, {}, [](const SelectorFindings& of) { return of.whole.bytes; });
    return {
        false,
        concat("link: no cache keeps it within ", number_text(findings.seconds_per_token / kMicro),
               " us per token: with the whole context of ", findings.context_blocks,
               " blocks, cold blocks alone are ", number_text(best.whole.bytes / kMega),
               " MB per token (", best.selector, "), ",
               number_text(best.whole.link_seconds / kMicro), " us at ",
               number_text(findings.link / kGiga), " GB/s; over more decode steps they are fewer")};
}

/// Where the guesses of a layer do not come from the layer right before it.
std::string guesses_text(const std::vector<LayerFindings>& layers) {
    std::string lines;
    int64_t last = -1;
    for (const LayerFindings& of : layers) {
        if (of.layer == last || of.note.empty()) continue;
        last = of.layer;
        add_item(lines, "\n", "layer ", of.layer, ": ",
                 of.previous ? concat("guessed from layer ", *of.previous, "; ")
                             : std::string("no prefetch by the previous layer: "),
                 of.note);
    }
    return lines;
}

void add_words(const Findings& findings, report::Report& report) {
    const SelectorFindings& first = findings.selectors.front();
    report.note("guesses", guesses_text(findings.layers));
    report.note(
        "counting",
        concat("Each layer and group has a cache of its own, of as many blocks. Every query is a "
               "decode step, and reads the blocks that it selected. Those that the cache does "
               "not hold are misses, and cross the link; cold ones, first uses, among them. The "
               "cache starts empty, so few steps have many cold misses. Blocks that the steps "
               "write themselves are on the GPU when they are complete: no misses. Each is "
               "written out once, in the other direction: ",
               number_text(first.written_bytes / kMega), " MB per token."));
    report.note(
        "policies",
        "LFU blocks, Belady blocks: the smallest size tried that would do if the block used "
        "least often left first, or the one whose next use is furthest away (Belady's "
        "optimum, which knows the future), without prefetch.");
    report.note(
        "prefetch",
        "Median distance: the blocks used since a block's last use, over all reuses. Previous "
        "step, previous layer: share of a step's blocks that the step before selected, or the "
        "layer before in the same step and group. Left: misses that prefetching the previous "
        "layer's blocks does not foresee; in vain: what it fetches and the step does not use. "
        "The previous step's blocks are in any cache here, so prefetching them saves nothing "
        "more.");
    if (findings.model_layers > first.layers)
        report.note("scaled", concat("Misses, bytes and times are those of ", first.layers,
                                     " layers, scaled to ", findings.model_layers, "."));
}

}  // namespace

std::vector<report::Shape> tables() {
    return {kSelectors.shape(), kCaches.shape(), kLayers.shape(), kReuses.shape(),
            kMeasured.shape()};
}

report::Report make_report(const io::ResultsReader& results) {
    const Findings findings = make_findings(results);
    report::Report report{
        .title = title(findings),
        .tables = {kSelectors.of(findings.selectors), kCaches.of(caches_of(findings)),
                   kLayers.of(findings.layers), kReuses.of(reuses_of(findings.layers)),
                   kMeasured.of(findings)},
        .verdict = verdict(findings)};
    add_words(findings, report);
    report.note("captures", captures_text(results.run()));
    return report;
}

}  // namespace msa::experiments::cache
