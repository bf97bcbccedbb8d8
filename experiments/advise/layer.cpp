// SPDX-License-Identifier: MIT
#include "experiments/advise/layer.h"

#include <algorithm>
#include <optional>
#include <set>

#include "core/kernel_sizes.h"
#include "experiments/advise/advice.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/sample.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::advise {
namespace {

constexpr int64_t kLeastTiles = 2, kLeastBlocks = 2;

/// Queries of a layer for the unions of their blocks, as whole kernel tiles of neighbouring
/// queries. All see more keys than the largest budget. A tile lies in one block of queries.
struct Tiles {
    int64_t size = 0;  // T, queries of a tile
    measure::LayerQueries queries = {};
    bool adjacent = true;  // the queries of each tile follow each other without gaps

    int64_t count() const { return std::ssize(queries.tokens) / size; }
};

/// Blocks that the queries of a tile select together.
class Unions : public measure::Observer {
public:
    Unions(const Tiles& tiles, const std::vector<Setting>& settings)
        : tiles_(tiles), settings_(settings), blocks_(settings.size()) {}

    void chosen(const measure::MeasuredChunk& chunk, size_t setting, View<const int32_t, 3> ids,
                const Attention*) override {
        blocks_[setting] += blocks_of_tiles(ids);
        groups_ = chunk.problem.kv_heads;
    }
    /// As the cost model takes it: the mean over the sampled tiles and the groups. Nothing where
    /// their queries do not follow each other.
    std::optional<double> mean(size_t setting) const {
        if (!tiles_.adjacent || tiles_.count() == 0) return std::nullopt;
        const int64_t top_k = settings_[setting].rule.top_k;
        const double mean = static_cast<double>(blocks_[setting]) / static_cast<double>(groups_) /
                            static_cast<double>(tiles_.count());
        return std::clamp(mean, static_cast<double>(top_k),
                          static_cast<double>(top_k * tiles_.size));
    }

private:
    /// Distinct blocks of each tile and group, summed.
    int64_t blocks_of_tiles(View<const int32_t, 3> ids) const {
        int64_t distinct = 0;
#pragma omp parallel for reduction(+ : distinct)
        for (int64_t begin = 0; begin < ids.extent(0); begin += tiles_.size)
            for (int64_t r = 0; r < ids.extent(1); ++r) {
                std::set<int32_t> all;
                for (int64_t i = begin; i < begin + tiles_.size; ++i) {
                    const std::span<const int32_t> kept = selected(ids, i, r);
                    all.insert(kept.begin(), kept.end());
                }
                distinct += std::ssize(all);
            }
        return distinct;
    }

    const Tiles& tiles_;
    const std::vector<Setting>& settings_;
    std::vector<int64_t> blocks_;  // [settings]
    int64_t groups_ = 1;
};

void write_settings(const AdviseOptions& o, const std::vector<Setting>& settings,
                    const std::string& group, io::UnitWriter& to) {
    Tensor<int64_t, 2> table({std::ssize(settings), 5});
    for (int64_t s = 0; s < table.extent(0); ++s) {
        const Setting& setting = settings[static_cast<size_t>(s)];
        table(s, 0) = std::ranges::find(o.selectors, setting.selector) - o.selectors.begin();
        table(s, 1) = setting.block_size;
        table(s, 2) = setting.rule.top_k;
        table(s, 3) = setting.rule.forced_first;
        table(s, 4) = setting.rule.forced_local;
    }
    to.write<int64_t, 2>(
        group + "/settings", table.view(),
        {"setting,column", "",
         "columns: number in the option selectors of /run, block size, k, oldest and "
         "newest blocks always kept"});
}

void write_prices(const AdviseOptions& o, const io::LayerInfo& layer,
                  const std::vector<Setting>& settings, const Unions& unions,
                  const analysis::Hardware& on, const std::string& group, io::UnitWriter& to) {
    const Pricer price(layer, o.context.value(), o.decode, on);
    write_price(to, group, "dense", price.dense());
    Tensor<double, 2> costs({std::ssize(settings), 5});
    for (int64_t s = 0; s < costs.extent(0); ++s) {
        const Setting& setting = settings[static_cast<size_t>(s)];
        const auto union_blocks = unions.mean(static_cast<size_t>(s));
        const Price priced = price(setting, union_blocks);
        costs(s, 0) = priced.seconds;
        costs(s, 1) = priced.work.flops;
        costs(s, 2) = priced.work.bytes;
        costs(s, 3) = static_cast<double>(priced.order);
        costs(s, 4) = union_blocks.value_or(0);
    }
    to.write<double, 2>(group + "/costs", costs.view(),
                        {"setting,column", "",
                         "columns: seconds, FLOPs and bytes of the layer at the context; the loop "
                         "order that answers first (1 q_outer, 2 union, 3 kv_outer, 4 automatic); "
                         "blocks that the queries of a tile select together, 0: not measured"});
}

measure::LayerQueries all_counted(const Problem& whole, std::vector<int64_t> tokens) {
    const Problem p = whole.with_query_rows(tokens);
    std::vector<analysis::RowKind> kinds(tokens.size(), analysis::RowKind::counted);
    return {p, std::move(tokens), std::move(kinds)};
}

/// Those of the packed tokens that see more than so many keys.
std::vector<int64_t> seeing_beyond(const Problem& whole, std::vector<int64_t> tokens,
                                   int64_t keys) {
    const std::vector<KeyRange>& visible = visible_keys(whole);
    std::erase_if(tokens,
                  [&](int64_t token) { return visible[static_cast<size_t>(token)].count <= keys; });
    return tokens;
}

/// Chooses tiles from the queries that the options name, of --sample-queries queries together.
Tiles choose_tiles(const AdviseOptions& o, const io::ActivationsInfo& info,
                   const io::LayerInfo& layer, int64_t largest) {
    Tiles tiles{.size = cuda::sparse_tile_queries(layer.query_heads / layer.kv_heads)};
    const Problem whole = io::layer_problem(info, layer, largest);
    const std::vector<int64_t> seeing =
        seeing_beyond(whole, chosen_queries(o, info.cu_seqlens, layer.layer), largest);
    const analysis::QueryBlocks blocks = all_counted(whole, seeing).blocks;
    std::vector<int64_t> firsts;
    for (int64_t b = 0; b < blocks.count(); ++b)
        for (int64_t first = blocks.range(b).begin; first + tiles.size <= blocks.range(b).end;
             first += tiles.size)
            firsts.push_back(first);
    const int64_t wanted =
        o.sample_queries == 0 ? 0 : std::max(kLeastTiles, o.sample_queries / tiles.size);
    std::vector<int64_t> tokens;
    for (int64_t n : stratified_sample(std::ssize(firsts), wanted, o.seed)) {
        const auto begin = seeing.begin() + firsts[static_cast<size_t>(n)];
        tiles.adjacent &= *(begin + (tiles.size - 1)) - *begin == tiles.size - 1;
        tokens.insert(tokens.end(), begin, begin + tiles.size);
    }
    tiles.queries = all_counted(whole, std::move(tokens));
    return tiles;
}

}  // namespace

measure::LayerQueries advised_queries(const AdviseOptions& o, const io::ActivationsInfo& info,
                                      const io::LayerInfo& layer, int64_t largest) {
    const Problem whole = io::layer_problem(info, layer, largest);
    measure::LayerQueries queries = all_counted(
        whole,
        seeing_beyond(whole, sampled_queries(o, info.cu_seqlens, layer.layer, o.seed), largest));
    require(queries.blocks.count() >= kLeastBlocks, "layer ", layer.layer, ": ",
            queries.tokens.size(), " of the chosen queries see more than ", largest,
            " keys, the largest budget, in ", queries.blocks.count(), " stretches of ",
            analysis::kBlockPositions, " positions; at least ", kLeastBlocks,
            " are needed: choose smaller --top-k or --block-size, or more queries");
    return queries;
}

void advise_layer(const AdviseOptions& o, const io::ActivationsReader& file,
                  const io::LayerInfo& layer, const std::vector<Setting>& settings,
                  const analysis::Hardware& on, const Worker& worker, io::UnitWriter& to) {
    int64_t largest = 0;
    for (const Setting& setting : settings) largest = std::max(largest, setting.tokens());
    const measure::LayerQueries queries = advised_queries(o, file.info(), layer, largest);
    const Tiles tiles = choose_tiles(o, file.info(), layer, largest);
    const measure::LayerData data(file, layer, layer_elements(worker.backend, layer, o.element));
    const auto task_of = [&](const measure::LayerQueries& of) {
        measure::Task task{.data = data,
                           .queries = of,
                           .part = {0, std::ssize(of.tokens)},
                           .backend = worker.backend,
                           .block_sizes = {},
                           .seed = o.seed,
                           .of_blocks = 8,
                           .of_heads = 8,
                           .with_oracle = kMeasured.recalls,
                           .error_of = kMeasured.error_of};
        for (size_t s = 0; s < settings.size(); ++s) {
            const Setting& setting = settings[s];
            task.choices.push_back({.key = std::to_string(s),
                                    .block_size = setting.block_size,
                                    .rule = setting.rule,
                                    .used = setting.rule,
                                    .selector = setting.selector});
            task.block_sizes.push_back(setting.block_size);
        }
        return task;
    };
    Progress progress(worker.progress, concat("layer ", layer.layer),
                      std::ssize(queries.tokens) + std::ssize(tiles.queries.tokens), "queries");
    measure::Task task = task_of(queries);
    measure::Tally tally{measure::Sums(queries.blocks, task.part)};
    measure::Observer nothing;
    measure::measure(task, tally, nothing, progress);
    Unions unions(tiles, settings);
    measure::Task of_tiles = task_of(tiles.queries);
    of_tiles.only_ids = true;
    measure::Tally unused{measure::Sums(tiles.queries.blocks, of_tiles.part)};
    if (tiles.count() > 0) measure::measure(of_tiles, unused, unions, progress);

    const std::string name = std::to_string(layer.layer), group = "/advise/" + name;
    const Problem p = io::layer_problem(file.info(), layer, settings.front().block_size);
    write_layer(to, layer, p,
                {{"tokens", p.keys()},
                 {"longest_sequence", p.batch.longest_keys()},
                 {"queries", std::ssize(queries.tokens)},
                 {"tile_queries", tiles.size},
                 {"tiles", tiles.count()},
                 {"largest_budget", largest}});
    measure::write_tokens(to, "/queries/" + name, queries.tokens);
    write_settings(o, settings, group, to);
    tally.write(to, name);
    write_prices(o, layer, settings, unions, on, group, to);
}

}  // namespace msa::experiments::advise
