// SPDX-License-Identifier: MIT

#include "analysis/over_gpus.h"

#include <algorithm>
#include <functional>

#include "experiments/cost/cost.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::cost {
namespace {

using analysis::DecodeOverGpus, analysis::LayerSizes, analysis::PrefillOverGpus, analysis::RankTime;
using report::Column, report::ColumnOf, report::Form;

/// One context on one number of GPUs.
struct Division {
    LayerSizes sizes;
    int64_t gpus;
    PrefillOverGpus prefill;
    DecodeOverGpus decode;
};

template <typename Get>
ColumnOf<Division> prefill_column(Column column, Get get) {
    return {std::move(column), [get](const Division& of) { return std::invoke(get, of.prefill); }};
}
template <typename Get>
ColumnOf<Division> decode_column(Column column, Get get) {
    return {std::move(column), [get](const Division& of) { return std::invoke(get, of.decode); }};
}

// Prefill.

double slowest(const PrefillOverGpus& of) {
    double seconds = 0;
    for (const RankTime& rank : of.ranks) seconds = std::max(seconds, rank.compute());
    return seconds;
}

constexpr Form kPart{.decimals = 2, .times = 100};
const Column kGpus{"gpus", "", "GPUs that share the layer", "GPUs"};
const Column kOne{"one_gpu_seconds", "s", "time of the layer on one GPU", "one GPU", kTime};
const Column kDivided{"divided_seconds", "s", "time of the divided layer", "all", kTime};
const Column kSpeedup{
    "divided_speedup", "1", "one_gpu_seconds over divided_seconds", "speed-up", {.decimals = 2}};

const ColumnOf<Division> kTokensOf{report::kTokens,
                                   [](const Division& of) { return of.sizes.tokens; }};
const ColumnOf<Division> kGpusOf{kGpus, &Division::gpus};

const report::TableOf<Division> kPrefill{
    "prefill_over_gpus",
    "prefill of a layer that GPUs share",
    2,
    {kTokensOf,
     kGpusOf,
     prefill_column(kOne, &PrefillOverGpus::one_seconds),
     prefill_column({"slowest_rank_seconds", "s", "chunks of the slowest GPU, without its waiting",
                     "slowest\nrank", kTime},
                    slowest),
     prefill_column({"imbalance", "1", "time of the slowest GPU's chunks over the mean, less 1",
                     "imbalance\n%", kPart},
                    &PrefillOverGpus::imbalance),
     prefill_column(report::kGatherBytes, &PrefillOverGpus::gather_bytes),
     prefill_column(report::shown(report::kGatherSeconds, "gather", kTime),
                    &PrefillOverGpus::gather_seconds),
     prefill_column(
         {"exposed_seconds", "s", "what a GPU waits for keys, at most", "not over-\nlapped", kTime},
         &PrefillOverGpus::exposed_seconds),
     prefill_column(kDivided, &PrefillOverGpus::seconds),
     prefill_column(kSpeedup, &PrefillOverGpus::speedup),
     {{"share_of_ideal", "1", "divided_speedup over the number of GPUs", "of ideal\n%",
       report::kPercent},
      [](const Division& of) { return of.prefill.speedup() / static_cast<double>(of.gpus); }}}};

// A GPU's part of prefill.

struct Rank {
    const Division* of;
    size_t rank;
    const RankTime* time;
};

std::vector<Rank> ranks_of(const std::vector<Division>& all) {
    std::vector<Rank> ranks;
    for (const Division& of : all)
        for (size_t rank = 0; rank < of.prefill.ranks.size(); ++rank)
            ranks.push_back({&of, rank, &of.prefill.ranks[rank]});
    return ranks;
}

const report::TableOf<Rank> kRanks{
    "ranks",
    "prefill of a layer that GPUs share, GPU by GPU",
    3,
    {{report::hidden(report::kTokens), [](const Rank& of) { return of.of->sizes.tokens; }},
     {report::hidden(kGpus), [](const Rank& of) { return of.of->gpus; }},
     {report::kRank, &Rank::rank},
     {{"early_seconds", "s", "the first of its two chunks"},
      [](const Rank& of) { return of.time->early; }},
     {{"late_seconds", "s", "the second"}, [](const Rank& of) { return of.time->late; }},
     {{"waited_seconds", "s", "what it waits for keys"},
      [](const Rank& of) { return of.time->waited(); }},
     {{"end_seconds", "s", "when its second chunk is done"},
      [](const Rank& of) { return of.time->end; }}}};

// Decode.

const report::TableOf<Division> kDecode{
    "decode_over_gpus",
    "decode of a layer that GPUs share",
    2,
    {kTokensOf, kGpusOf, decode_column(kOne, &DecodeOverGpus::one_seconds),
     decode_column(
         {"step_seconds", "s",
          "launches and chains of dependent reads of a step, on one GPU as well", "step", kTime},
         &DecodeOverGpus::step_seconds),
     decode_column({"select_seconds", "s", "index select on a GPU's part", "select", kTime},
                   &DecodeOverGpus::select_seconds),
     decode_column(
         {"attend_seconds", "s", "attention over k / P of the blocks, of P GPUs", "attend", kTime},
         &DecodeOverGpus::attend_seconds),
     decode_column(
         {"attend_worst_seconds", "s", "attention over k blocks, as one GPU has them all"},
         &DecodeOverGpus::attend_worst_seconds),
     decode_column({"exchange_bytes",
                    "B",
                    "bytes of both exchanges, into a GPU",
                    "exchange\nKB",
                    {.decimals = -4, .per = 1000}},
                   &DecodeOverGpus::exchange_bytes),
     decode_column({"exchange_seconds", "s", "time of both exchanges", "exchange", kTime},
                   &DecodeOverGpus::exchange_seconds),
     decode_column(kDivided, &DecodeOverGpus::seconds),
     decode_column(kSpeedup, &DecodeOverGpus::speedup),
     decode_column({"worst_speedup",
                    "1",
                    "divided_speedup where one GPU has all selected blocks",
                    "all blocks\nwith one",
                    {.decimals = 2}},
                   &DecodeOverGpus::worst_speedup)}};

std::string links_text(const analysis::Hardware& on) {
    const auto words = [](const char* name, const std::optional<analysis::Hardware::Link>& link) {
        if (!link) return std::string();
        return concat(name, " ", number_text(link->bytes_per_second / kGiga), " GB/s, ",
                      number_text(link->seconds / kMicro), " us; ");
    };
    return concat(words("links", on.link), words("network", on.network), on.chips_of_host,
                  " to a host");
}

}  // namespace

std::vector<report::Shape> tables_over_gpus() {
    return {kPrefill.shape(), kDecode.shape(), kRanks.shape()};
}

report::Report cost_over_gpus(const CostOptions& o, const analysis::Hardware& on) {
    const Model model = model_of(o);
    std::vector<Division> all;
    for (int64_t tokens : o.contexts)
        for (int64_t gpus : o.gpus) {
            const LayerSizes sizes = sizes_of(o, model, tokens);
            const int count = static_cast<int>(gpus);
            all.push_back({sizes, gpus, prefill_over_gpus(sizes, count, on),
                           decode_over_gpus(sizes, count, on)});
        }
    const LayerSizes& sizes = all.front().sizes;
    report::Report report{
        .title = concat(model_text(model, sizes), '\n',
                        chip_text(on, o.ceilings, {sizes.element, sizes.index_element}), '\n',
                        links_text(on)),
        .tables = {kPrefill.of(all), kDecode.of(all), kRanks.of(ranks_of(all)),
                   model_table(model, sizes)}};
    report.note("without_attention", without_attention_note(model));
    report.note(
        "divided",
        "Prefill: queries in zig-zag chunks, two for each GPU, whose keys are gathered in the "
        "order of the sequence while earlier chunks are answered. Decode: keys divided; the best "
        "k blocks of each GPU are exchanged, then partial outputs. Times are the roofline's in the "
        "order 'automatic', without launches. Imbalance: the slowest GPU's chunks over the mean. "
        "Not overlapped: what a GPU waits for keys, at most. All blocks with one: the speed-up "
        "where one GPU has all selected blocks.");
    return report;
}

}  // namespace msa::experiments::cost
