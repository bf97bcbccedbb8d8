// SPDX-License-Identifier: MIT
#include "experiments/advise/layer.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "core/kernel_sizes.h"
#include "core/tolerance.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/driver/sample.h"
#include "experiments/measure/checks.h"
#include "experiments/measure/choice_errors.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::advise {
namespace {

constexpr int64_t kLeastBlocks = 2;

const char* const kOracle = "oracle";

/// P_b of blocks `factor` times as large.
Mirror<3> sum_blocks(Backend& backend, View<const float, 3> fine, int64_t factor, int64_t blocks) {
    Tensor<float, 3> coarse({fine.extent(0), fine.extent(1), blocks});
#pragma omp parallel for
    for (int64_t i = 0; i < coarse.extent(0); ++i)
        for (int64_t r = 0; r < coarse.extent(1); ++r)
            for (int64_t b = 0; b < blocks; ++b) {
                const int64_t begin = b * factor, end = std::min(begin + factor, fine.extent(2));
                const float* mass = fine[i][r].data();
                coarse(i, r, b) =
                    static_cast<float>(std::accumulate(mass + begin, mass + end, 0.0));
            }
    return {backend, std::move(coarse)};
}

/// Of one setting, over the queries of a block.
struct SettingSums {
    explicit SettingSums(int64_t groups) : mass(groups), error(groups) {}
    measure::KeptMass mass;
    analysis::OutputError error;  // over the heads of each group together
};

class LayerMeasurement {
public:
    LayerMeasurement(const AdviseOptions& o, const io::ActivationsReader& file,
                     const io::LayerInfo& layer, const std::vector<Setting>& settings,
                     const Tiles& tiles, Backend& backend)
        : o_(o),
          layer_(layer),
          settings_(settings),
          tiles_(tiles),
          queries_(tiles.queries),
          backend_(backend),
          data_(file, layer, layer_elements(backend, layer, o.element)),
          view_(backend, data_),
          k_norm_(largest_norm(host_view(data_.k))),
          sums_(queries_.blocks, {0, std::ssize(queries_.tokens)}),
          tile_blocks_(settings.size()) {
        for (const Setting& setting : settings) add_size(setting);
    }

    void run(Progress& progress) {
        const Problem& finest = sizes_.begin()->second.whole;
        for (const QueryRange range :
             measure::chunks(queries_.blocks, {0, std::ssize(queries_.tokens)},
                             measure::chunk_queries(backend_, finest, 8, 8))) {
            stop_if_asked();
            add(range);
            progress.advance(range.end - range.begin);
        }
    }
    /// Blocks that the queries of a tile select together, as the cost model takes it: the mean over
    /// the sampled tiles and the groups. Nothing where their queries do not follow each other.
    std::optional<double> mean_union(size_t setting) const {
        if (!tiles_.adjacent) return std::nullopt;
        const int64_t top_k = settings_[setting].rule.top_k;
        const int64_t tiles = std::ssize(queries_.tokens) / tiles_.size;
        const double mean = static_cast<double>(tile_blocks_[setting]) /
                            static_cast<double>(layer_.kv_heads) / static_cast<double>(tiles);
        return std::clamp(mean, static_cast<double>(top_k),
                          static_cast<double>(top_k * tiles_.size));
    }
    void write(const std::string& layer, io::UnitWriter& to) const {
        sums_.write(to, layer);
        checks_.write(to, layer);
    }

private:
    /// One block size, with the selectors that have settings of it.
    struct Size {
        Problem whole, queries;
        std::map<std::string, std::unique_ptr<Selector>> selectors;
    };

    void add_size(const Setting& setting) {
        Size& size = sizes_[setting.block_size];
        if (size.selectors.empty()) {
            size.whole = data_.problem(setting.block_size);
            size.queries = size.whole.with_query_rows(queries_.tokens);
        }
        std::unique_ptr<Selector>& selector = size.selectors[setting.selector];
        if (selector) return;
        selector = make_selector(setting.selector);
        selector->prepare(selector_layer(size));
    }

    SelectorLayer selector_layer(const Size& size) const {
        return view_.selector_layer(size.whole, o_.seed);
    }

    void add(QueryRange range) {
        std::optional<Attention> dense;
        std::map<int64_t, Mirror<3>> masses;  // P_b by block size
        for (const auto& [block_size, size] : sizes_) {
            const SelectorLayer layer = selector_layer(size);
            const measure::ChunkView queries(layer, view_, size.queries.with_queries(range),
                                             queries_.tokens_of(range));
            if (!dense) dense = queries.dense();
            const auto finer = std::find_if(
                masses.rbegin(), masses.rend(),
                [of = block_size](const auto& known) { return of % known.first == 0; });
            const Mirror<3> mass =
                finer == masses.rend()
                    ? queries.chunk.mass()
                    : sum_blocks(backend_, finer->second.host(), block_size / finer->first,
                                 queries.problem.blocks());
            masses[block_size] = mass;
            const measure::MeasuredChunk chunk(queries, queries_, range, k_norm_, *dense,
                                               mass.host());
            checks_.begin(chunk.rows(), queries.tokens);
            add_size(size, block_size, layer, chunk, mass);
        }
    }

    void add_size(const Size& size, int64_t block_size, const SelectorLayer& layer,
                  const measure::MeasuredChunk& chunk, const Mirror<3>& mass) {
        const Problem& p = chunk.problem;
        std::vector<size_t> numbers;
        std::vector<Tensor<int32_t, 3>> ids;
        for (const auto& [name, selector] : size.selectors) {
            // The oracle's scores are P_b, which is there already.
            const Mirror<3> scores =
                name == kOracle ? mass : selector->score(layer, chunk.queries.chunk);
            for (size_t s = 0; s < settings_.size(); ++s) {
                const Setting& setting = settings_[s];
                if (setting.block_size != block_size || setting.selector != name) continue;
                numbers.push_back(s);
                ids.push_back(pick(backend_, p, setting.rule, scores.floats()));
            }
        }
        const std::vector<Tensor<double, 2>> errors =
            measure::squared_errors(backend_, p, chunk.queries.input(), chunk.dense,
                                    std::vector<View<const int32_t, 3>>(ids.begin(), ids.end()));
        for (size_t n = 0; n < numbers.size(); ++n)
            add_setting(numbers[n], chunk, ids[n], errors[n]);
    }

    void add_setting(size_t s, const measure::MeasuredChunk& chunk, View<const int32_t, 3> ids,
                     View<const double, 2> errors) {
        const std::string name = std::to_string(s);
        checks_.check(settings_[s].selector, ids, errors);
        tile_blocks_[s] += blocks_of_tiles(ids);
        sums_.add(chunk.blocks, [&](const measure::BlockRows& rows) {
            SettingSums sums(layer_.kv_heads);
            const View<const int32_t, 3> picked = rows.of(ids);
            const View<const float, 3> mass = rows.of(chunk.mass);
            for (int64_t i = 0; i < picked.extent(0); ++i)
                for (int64_t r = 0; r < picked.extent(1); ++r)
                    sums.mass.means[static_cast<size_t>(r)].add(
                        analysis::mass_of(mass[i][r], selected(picked, i, r)));
            sums.error.add(rows.of(chunk.kinds), rows.of(errors), rows.of(chunk.norm));
            return measure::States{{name + "/mass", sums.mass.state()},
                                   {name + "/group_output_error", sums.error.state()}};
        });
    }

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

    const AdviseOptions& o_;
    const io::LayerInfo& layer_;
    const std::vector<Setting>& settings_;
    const Tiles& tiles_;
    const measure::LayerQueries& queries_;
    Backend& backend_;
    measure::LayerData data_;
    measure::LayerView view_;
    std::map<int64_t, Size> sizes_;  // by block size, ascending
    double k_norm_;
    measure::Sums sums_;
    measure::SelfChecks checks_;
    std::vector<int64_t> tile_blocks_;  // [settings]
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
                  const std::vector<Setting>& settings, const LayerMeasurement& of,
                  const analysis::Hardware& on, const std::string& group, io::UnitWriter& to) {
    const Pricer price(layer, o.context, o.decode, on);
    write_price(to, group, "dense", price.dense());
    Tensor<double, 2> costs({std::ssize(settings), 5});
    for (int64_t s = 0; s < costs.extent(0); ++s) {
        const Setting& setting = settings[static_cast<size_t>(s)];
        const auto tile_union = of.mean_union(static_cast<size_t>(s));
        const Price priced = price(setting, tile_union);
        costs(s, 0) = priced.seconds;
        costs(s, 1) = priced.work.flops;
        costs(s, 2) = priced.work.bytes;
        costs(s, 3) = static_cast<double>(priced.order);
        costs(s, 4) = tile_union.value_or(0);
    }
    to.write<double, 2>(group + "/costs", costs.view(),
                        {"setting,column", "",
                         "columns: seconds, FLOPs and bytes of the layer at the context; the loop "
                         "order that answers first (1 q_outer, 2 union, 3 kv_outer, 4 automatic); "
                         "blocks that the queries of a tile select together, 0: not measured"});
}

}  // namespace

Tiles choose_tiles(const AdviseOptions& o, const io::ActivationsInfo& info,
                   const io::LayerInfo& layer, int64_t largest) {
    Tiles tiles{.size = cuda::sparse_tile_queries(layer.query_heads / layer.kv_heads)};
    std::vector<int64_t> seeing = chosen_queries(o, info.cu_seqlens, layer.layer);
    const Problem whole = io::layer_problem(info, layer, largest);
    const std::vector<KeyRange>& visible = visible_keys(whole);
    std::erase_if(seeing, [&](int64_t token) {
        return visible[static_cast<size_t>(token)].count <= largest;
    });
    const auto counted = [&](std::vector<int64_t> tokens) {
        const Problem p = whole.with_query_rows(tokens);
        std::vector<analysis::RowKind> kinds(tokens.size(), analysis::RowKind::counted);
        return measure::LayerQueries(p, std::move(tokens), std::move(kinds));
    };
    const analysis::QueryBlocks blocks = counted(seeing).blocks;
    std::vector<int64_t> firsts;
    for (int64_t b = 0; b < blocks.count(); ++b)
        for (int64_t first = blocks.range(b).begin; first + tiles.size <= blocks.range(b).end;
             first += tiles.size)
            firsts.push_back(first);
    const int64_t wanted =
        o.sample_queries == 0 ? 0 : std::max(kLeastBlocks, o.sample_queries / tiles.size);
    std::vector<int64_t> tokens;
    for (int64_t n : stratified_sample(std::ssize(firsts), wanted, o.seed)) {
        const auto begin = seeing.begin() + firsts[static_cast<size_t>(n)];
        tiles.adjacent &= *(begin + (tiles.size - 1)) - *begin == tiles.size - 1;
        tokens.insert(tokens.end(), begin, begin + tiles.size);
    }
    tiles.queries = counted(std::move(tokens));
    require(tiles.queries.blocks.count() >= kLeastBlocks, "layer ", layer.layer,
            ": of the chosen queries, ", firsts.size(), " tiles of ", tiles.size, " see more than ",
            largest, " keys, the largest budget, in ", tiles.queries.blocks.count(),
            " stretches of ", analysis::kBlockPositions, " positions; at least ", kLeastBlocks,
            " are needed: choose smaller --top-ks or --block-sizes, or more queries");
    return tiles;
}

void advise_layer(const AdviseOptions& o, const io::ActivationsReader& file,
                  const io::LayerInfo& layer, const std::vector<Setting>& settings,
                  const analysis::Hardware& on, const Worker& worker, io::UnitWriter& to) {
    int64_t largest = 0;
    for (const Setting& setting : settings) largest = std::max(largest, setting.tokens());
    const Tiles tiles = choose_tiles(o, file.info(), layer, largest);
    const std::vector<int64_t>& tokens = tiles.queries.tokens;
    LayerMeasurement measurement(o, file, layer, settings, tiles, worker.backend);
    Progress progress(worker.progress, text("layer ", layer.layer), std::ssize(tokens), "queries");
    measurement.run(progress);

    const std::string name = std::to_string(layer.layer), group = "/advise/" + name;
    const Problem p = io::layer_problem(file.info(), layer, settings.front().block_size);
    write_layer(to, layer, p,
                {{"tokens", p.keys()},
                 {"longest_sequence", p.batch.longest_keys()},
                 {"queries", std::ssize(tokens)},
                 {"tile_queries", tiles.size},
                 {"largest_budget", largest}});
    measure::write_tokens(to, "/queries/" + name, tokens);
    write_settings(o, settings, group, to);
    measurement.write(name, to);
    write_prices(o, layer, settings, measurement, on, group, to);
}

}  // namespace msa::experiments::advise
