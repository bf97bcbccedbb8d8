// SPDX-License-Identifier: MIT
#include "experiments/cache/layer.h"

#include <algorithm>
#include <numeric>

#include "core/selection.h"
#include "experiments/driver/program.h"
#include "experiments/driver/selected_blocks.h"
#include "experiments/report/text.h"

namespace msa::experiments::cache {
namespace {

using analysis::CachePolicy, analysis::DecodeSteps, analysis::Prefetch, analysis::StackDistances;

const char* const kWhyNeighbours =
    "decode steps follow each other, so run msa-analyze without --sample-queries and with one "
    "range of --queries or --positions";

void check_positions(const std::string& file, const LayerSteps& of) {
    const PackedBatch& batch = of.problem.batch;
    const std::vector<int64_t>&position = batch.query_positions(), &begin = batch.cu_seqlens_q();
    for (int64_t s = 0; s < batch.sequences(); ++s)
        for (auto i = static_cast<size_t>(begin[static_cast<size_t>(s)] + 1);
             i < static_cast<size_t>(begin[static_cast<size_t>(s + 1)]); ++i)
            require(position[i] == position[i - 1] + 1, file, ": /queries/", of.layer, "/position[",
                    i, "] is ", position[i], " and follows ", position[i - 1],
                    ", must be one more; ", kWhyNeighbours);
    require(batch.longest_queries() > 1, file, ": /queries/", of.layer, "/token has ",
            batch.queries(), " queries of ", batch.sequences(),
            " sequences, must have at least two of one: decode steps follow each other");
}

/// "4" or "4, 5": the layers above `first` and below `end`.
std::string layers_between(int64_t first, int64_t end) {
    std::vector<int64_t> layers;
    for (int64_t layer = first + 1; layer < end; ++layer) layers.push_back(layer);
    return layers.size() > 4 ? concat(layers.front(), " to ", layers.back()) : join(layers);
}

/// Sets the previous layer, and why there is none.
void find_previous(const std::string& file, const io::ResultsReader& results, LayerSteps& of) {
    const std::string name = std::to_string(of.layer);
    const std::string lacks = layers_between(-1, of.layer);
    of.note = lacks.empty() ? "it is the first layer"
                            : concat(file, " has no layer before it: missing are layers ", lacks);
    for (int64_t layer : pick_layers(results, {}))
        if (layer < of.layer && layer > of.previous.value_or(-1)) of.previous = layer;
    if (!of.previous) return;
    const int64_t previous = *of.previous;
    const Problem p = read_queries(file, results, previous, kWhyNeighbours);
    if (p.batch == of.problem.batch && p.block_size == of.problem.block_size &&
        p.kv_heads == of.problem.kv_heads) {
        const std::string between = layers_between(previous, of.layer);
        of.note =
            between.empty() ? "" : concat("between the two, ", file, " lacks layers ", between);
    } else {
        of.note = concat("layer ", previous, ", the one before it in ", file,
                         ", has other queries, blocks or groups");
        of.previous.reset();
    }
}

int64_t slots_of(const io::ResultsReader& results, const std::string& selector, int64_t layer) {
    for (const io::DatasetInfo& dataset :
         results.datasets(concat("/select/", selector, "/", layer)))
        if (dataset.path == ids_dataset(selector, layer) && !dataset.shape.empty())
            return dataset.shape.back();
    return 0;
}

/// The steps of every sequence with queries, in one group.
std::vector<DecodeSteps> decode_steps(const Problem& p, View<const int32_t, 3> ids, int64_t group) {
    std::vector<DecodeSteps> all;
    const std::vector<int64_t>& begin = p.batch.cu_seqlens_q();
    for (size_t s = 0; s + 1 < begin.size(); ++s) {
        if (begin[s] == begin[s + 1]) continue;
        all.emplace_back(p.batch.query_positions()[static_cast<size_t>(begin[s])], p.block_size);
        for (int64_t i = begin[s]; i < begin[s + 1]; ++i) all.back().add(selected(ids, i, group));
    }
    return all;
}

/// `guesses` is empty where there are none.
Seen see(const std::vector<DecodeSteps>& sequences, const std::vector<DecodeSteps>& guesses,
         const std::vector<int64_t>& sizes) {
    Seen seen;
    if (!guesses.empty()) seen.by_layer.emplace();
    for (size_t s = 0; s < sequences.size(); ++s) {
        const DecodeSteps& steps = sequences[s];
        Seen one{.reuse = analysis::reuse(steps)};
        one.by_step = analysis::prefetch(steps, analysis::previous_steps(steps));
        if (!guesses.empty()) one.by_layer = analysis::prefetch(steps, guesses[s]);
        for (int64_t size : sizes) {
            one.lfu.push_back(analysis::cache_misses(steps, CachePolicy::lfu, size));
            one.belady.push_back(analysis::cache_misses(steps, CachePolicy::belady, size));
        }
        seen += one;
    }
    return seen;
}

/// Rows of a dataset by group, short ones filled up with zeros.
using Counts = std::vector<int64_t>;
void write_columns(const std::string& dataset, const std::vector<Counts>& groups,
                   const io::Describe& describe, io::UnitWriter& to) {
    size_t longest = 1;
    for (const Counts& column : groups) longest = std::max(longest, column.size());
    Tensor<int64_t, 2> table({std::ssize(groups), static_cast<int64_t>(longest)});
    for (size_t g = 0; g < groups.size(); ++g)
        std::copy(groups[g].begin(), groups[g].end(), table.data() + g * longest);
    to.write<int64_t, 2>(dataset, table.view(), describe);
}

template <typename Get>
void write_counts(const std::string& dataset, const std::vector<Seen>& groups, Get get,
                  const char* description, io::UnitWriter& to) {
    Counts counts;
    for (const Seen& seen : groups) counts.push_back(get(seen));
    to.write<int64_t, 1>(dataset, {counts.data(), {std::ssize(counts)}},
                         {"group", "uses", description});
}

template <typename Get>
void write_distances(const std::string& prefix, const std::vector<Seen>& groups, Get get,
                     const std::string& what, io::UnitWriter& to) {
    std::vector<Counts> reuses;
    for (const Seen& seen : groups) reuses.push_back(get(seen).reuses);
    write_columns(prefix + "reuses", reuses,
                  {"group,distance", "uses", what + " by LRU stack distance"}, to);
    const std::string cold = what + " of blocks that were never used before";
    write_counts(
        prefix + "cold", groups, [&](const Seen& seen) { return get(seen).cold; }, cold.c_str(),
        to);
}

template <typename Get>
void write_prefetch(const std::string& group, const std::vector<Seen>& groups, Get get,
                    io::UnitWriter& to) {
    write_counts(
        group + "hits", groups, [&](const Seen& seen) { return get(seen).hits; },
        "uses whose block was guessed", to);
    write_distances(
        group + "left_", groups, [&](const Seen& seen) { return get(seen).left; },
        "uses that were not guessed", to);
    write_distances(
        group + "in_vain_", groups, [&](const Seen& seen) { return get(seen).in_vain; },
        "guesses that were not used", to);
}

void write_seen(const std::string& group, const std::vector<Seen>& groups,
                const std::vector<int64_t>& sizes, io::UnitWriter& to) {
    write_counts(
        group + "uses", groups, [](const Seen& seen) { return seen.reuse.uses; },
        "blocks of all steps", to);
    write_counts(
        group + "written", groups, [](const Seen& seen) { return seen.reuse.written; },
        "first uses of blocks that the steps write: no misses", to);
    write_distances(
        group, groups, [](const Seen& seen) { return seen.reuse.distances; }, "other uses", to);
    to.write<int64_t, 1>(group + "sizes", {sizes.data(), {std::ssize(sizes)}},
                         {"size", "blocks", "sizes of the cache of a group"});
    for (const auto& [name, misses] : {std::pair{"lfu", &Seen::lfu}, {"belady", &Seen::belady}}) {
        std::vector<Counts> columns;
        for (const Seen& seen : groups) columns.push_back(seen.*misses);
        write_columns(group + name + "_misses", columns,
                      {"group,size", "uses", "uses that miss, cold ones included"}, to);
    }
    write_prefetch(
        group + "previous_step/", groups, [](const Seen& seen) { return seen.by_step; }, to);
    if (groups.front().by_layer)
        write_prefetch(
            group + "previous_layer/", groups, [](const Seen& seen) { return *seen.by_layer; }, to);
}

Counts sum_of_rows(const Tensor<int64_t, 2>& table) {
    Counts sums(static_cast<size_t>(table.extent(1)));
    for (int64_t g = 0; g < table.extent(0); ++g)
        for (size_t n = 0; n < sums.size(); ++n) sums[n] += table(g, n);
    return sums;
}

int64_t read_sum(const io::ResultsReader& results, const std::string& dataset) {
    const auto counts = results.read<int64_t, 1>(dataset);
    return std::accumulate(counts.data(), counts.data() + counts.size(), int64_t{0});
}

StackDistances read_distances(const io::ResultsReader& results, const std::string& prefix) {
    return {sum_of_rows(results.read<int64_t, 2>(prefix + "reuses")),
            read_sum(results, prefix + "cold")};
}

Prefetch read_prefetch(const io::ResultsReader& results, const std::string& group) {
    return {read_sum(results, group + "hits"), read_distances(results, group + "left_"),
            read_distances(results, group + "in_vain_")};
}

}  // namespace

std::vector<LayerSteps> read_steps(const CacheOptions& o, const io::ResultsReader& results) {
    const std::string file = o.results.string();
    std::vector<LayerSteps> layers;
    for (int64_t layer : pick_layers(results, o.layers)) {
        LayerSteps of{.layer = layer,
                      .problem = read_queries(file, results, layer, kWhyNeighbours)};
        check_positions(file, of);
        const Problem& p = of.problem;
        of.block_bytes = 2 * p.head_dim * p.block_size * element_bytes(*o.element);
        for (int64_t position : p.batch.query_positions())
            of.context_blocks = std::max(of.context_blocks, position / p.block_size + 1);
        for (const std::string& selector : o.selectors)
            of.longest_step = std::max(of.longest_step, slots_of(results, selector, layer));
        find_previous(file, results, of);
        layers.push_back(of);
    }
    return layers;
}

Seen& Seen::operator+=(const Seen& other) {
    const auto add = [](std::vector<int64_t>& to, const std::vector<int64_t>& more) {
        to.resize(std::max(to.size(), more.size()));
        for (size_t n = 0; n < more.size(); ++n) to[n] += more[n];
    };
    reuse += other.reuse;
    add(lfu, other.lfu);
    add(belady, other.belady);
    by_step += other.by_step;
    if (by_layer && other.by_layer) *by_layer += *other.by_layer;
    return *this;
}

void measure_layer(const CacheOptions& o, const io::ResultsReader& results, const LayerSteps& of,
                   const Worker& worker, io::UnitWriter& to) {
    const Problem& p = of.problem;
    const std::string at = concat("/layers/", of.layer), file = o.results.string();
    for (const auto& [name, value] : {std::pair{"kv_heads", p.kv_heads},
                                      {"head_dim", p.head_dim},
                                      {"block_size", p.block_size},
                                      {"block_bytes", of.block_bytes},
                                      {"context_blocks", of.context_blocks},
                                      {"smallest_cache", of.smallest_cache()},
                                      {"steps", of.steps()},
                                      {"sequences", p.batch.sequences()}})
        to.attribute(at, name, value);
    if (of.previous) to.attribute(at, "previous_layer", *of.previous);
    to.attribute(at, "previous_layer_note", of.note);
    for (const std::string& selector : o.selectors) {
        stop_if_asked();
        if (!results.has(ids_dataset(selector, of.layer))) continue;
        const Tensor<int32_t, 3> ids = read_ids(file, results, p, selector, of.layer);
        Tensor<int32_t, 3> guesses;
        if (of.previous && results.has(ids_dataset(selector, *of.previous)))
            guesses = read_ids(file, results, p, selector, *of.previous);
        std::vector<Seen> groups(static_cast<size_t>(p.kv_heads));
#pragma omp parallel for schedule(dynamic) num_threads(worker.threads)
        for (int64_t g = 0; g < p.kv_heads; ++g)
            groups[static_cast<size_t>(g)] =
                see(decode_steps(p, ids, g),
                    guesses.size() > 0 ? decode_steps(p, guesses, g) : std::vector<DecodeSteps>(),
                    o.sizes);
        write_seen(concat("/cache/", selector, "/", of.layer, "/"), groups, o.sizes, to);
    }
}

Seen read_seen(const io::ResultsReader& results, const std::string& selector, int64_t layer) {
    const std::string group = concat("/cache/", selector, "/", layer, "/");
    Seen seen{.reuse = {read_sum(results, group + "uses"), read_sum(results, group + "written"),
                        read_distances(results, group)},
              .lfu = sum_of_rows(results.read<int64_t, 2>(group + "lfu_misses")),
              .belady = sum_of_rows(results.read<int64_t, 2>(group + "belady_misses")),
              .by_step = read_prefetch(results, group + "previous_step/")};
    if (results.has(group + "previous_layer"))
        seen.by_layer = read_prefetch(results, group + "previous_layer/");
    return seen;
}

}  // namespace msa::experiments::cache
