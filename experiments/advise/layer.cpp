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
#include "experiments/driver/attend.h"
#include "experiments/driver/choice_errors.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/driver/sample.h"
#include "experiments/measure/layer.h"

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

/// What is added up for all settings of a layer.
struct SettingSums {
    SettingSums(int64_t settings, int64_t blocks, int64_t groups)
        : mass({settings, blocks, groups}),
          difference({settings, blocks, groups}),
          norm({blocks, groups}),
          tile_union({settings, blocks}) {}
    Tensor<double, 3> mass, difference;  // [settings, blocks, Hkv]
    Tensor<double, 2> norm;              // [blocks, Hkv]
    Tensor<double, 2> tile_union;        // [settings, blocks], mean over groups
};

class LayerMeasurement {
public:
    LayerMeasurement(const AdviseOptions& o, const io::ActivationsReader& file,
                     const io::LayerInfo& layer, const std::vector<Setting>& settings,
                     const QueryBlocks& queries, Backend& backend)
        : o_(o),
          layer_(layer),
          settings_(settings),
          queries_(queries),
          backend_(backend),
          data_(file, layer, layer_elements(backend, layer, o.element)),
          view_(backend, data_),
          sums_(std::ssize(settings), std::ssize(queries.sequences), layer.kv_heads) {
        for (const Setting& setting : settings) add_size(setting);
    }

    void run(Progress& progress) {
        const int64_t step = chunk_queries(), all = std::ssize(queries_.tokens);
        for (int64_t begin = 0; begin < all; begin += step) {
            stop_if_asked();
            const QueryRange range{begin, std::min(begin + step, all)};
            add(range);
            progress.advance(range.end - range.begin);
        }
    }
    const SettingSums& sums() const { return sums_; }

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

    int64_t chunk_queries() const {
        const int64_t finest = sizes_.begin()->second.whole.blocks();
        const int64_t bytes =
            8 * layer_.kv_heads * finest * 4 + 8 * layer_.query_heads * layer_.head_dim * 4;
        const int64_t blocks = kChunkBytes / bytes / queries_.size;
        return std::clamp<int64_t>(blocks, 1, 64) * queries_.size;
    }

    void add(QueryRange range) {
        const std::span<const int64_t> tokens =
            std::span(queries_.tokens)
                .subspan(static_cast<size_t>(range.begin),
                         static_cast<size_t>(range.end - range.begin));
        std::optional<Attention> dense;
        std::map<int64_t, Mirror<3>> masses;  // P_b by block size
        for (auto& [block_size, size] : sizes_) {
            const SelectorLayer layer = selector_layer(size);
            const measure::ChunkView queries(layer, view_, size.queries.with_queries(range),
                                             tokens);
            const Problem& p = queries.problem;
            const SelectorChunk& chunk = queries.chunk;
            if (!dense) {
                dense = attend(backend_, p, queries.input(), {});
                add_norm(dense->out, range.begin);
            }
            const auto finer = std::find_if(
                masses.rbegin(), masses.rend(),
                [of = block_size](const auto& known) { return of % known.first == 0; });
            const Mirror<3> mass = finer == masses.rend()
                                       ? chunk.mass()
                                       : sum_blocks(backend_, finer->second.host(),
                                                    block_size / finer->first, p.blocks());
            masses[block_size] = mass;
            std::vector<int64_t> numbers;
            std::vector<Tensor<int32_t, 3>> ids;
            for (const auto& [name, selector] : size.selectors) {
                // The oracle's scores are P_b, which is there already.
                const Mirror<3> scores = name == kOracle ? mass : selector->score(layer, chunk);
                for (size_t s = 0; s < settings_.size(); ++s) {
                    const Setting& setting = settings_[s];
                    if (setting.block_size != block_size || setting.selector != name) continue;
                    numbers.push_back(static_cast<int64_t>(s));
                    ids.push_back(pick(backend_, p, setting.rule, scores.floats()));
                }
            }
            const std::vector<Tensor<double, 2>> errors =
                squared_errors(backend_, p, queries.input(), *dense,
                               std::vector<View<const int32_t, 3>>(ids.begin(), ids.end()));
            for (size_t n = 0; n < numbers.size(); ++n)
                add_setting(numbers[n], range.begin, mass.host(), ids[n], errors[n]);
        }
    }

    int64_t block_of(int64_t first, int64_t row) const { return (first + row) / queries_.size; }

    void add_norm(const Tensor<float, 3>& dense, int64_t first) {
        const Tensor<double, 2> norms = analysis::squared_differences(dense, {}, layer_.kv_heads);
        for (int64_t i = 0; i < norms.extent(0); ++i)
            for (int64_t r = 0; r < norms.extent(1); ++r)
                sums_.norm(block_of(first, i), r) += norms(i, r);
    }

    void add_setting(int64_t s, int64_t first, View<const float, 3> mass,
                     View<const int32_t, 3> ids, const Tensor<double, 2>& errors) {
        const int64_t rows = queries_.size;
        const auto shares = static_cast<double>(rows);
#pragma omp parallel for
        for (int64_t begin = 0; begin < ids.extent(0); begin += rows) {
            const int64_t block = block_of(first, begin);
            double distinct = 0;
            for (int64_t r = 0; r < layer_.kv_heads; ++r) {
                std::set<int32_t> all;
                for (int64_t i = begin; i < begin + rows; ++i) {
                    const std::span<const int32_t> kept = selected(ids, i, r);
                    all.insert(kept.begin(), kept.end());
                    sums_.mass(s, block, r) += analysis::mass_of(mass[i][r], kept) / shares;
                    sums_.difference(s, block, r) += errors(i, r);
                }
                distinct += static_cast<double>(all.size());
            }
            sums_.tile_union(s, block) = distinct / static_cast<double>(layer_.kv_heads);
        }
    }

    const AdviseOptions& o_;
    const io::LayerInfo& layer_;
    const std::vector<Setting>& settings_;
    const QueryBlocks& queries_;
    Backend& backend_;
    measure::LayerData data_;
    measure::LayerView view_;
    std::map<int64_t, Size> sizes_;  // by block size, ascending
    SettingSums sums_;
};

/// Blocks of the kernels' tiles: the mean over the sampled ones, as the cost model takes it.
std::optional<double> mean_union(const SettingSums& sums, const QueryBlocks& queries,
                                 int64_t setting, int64_t top_k) {
    if (!queries.adjacent) return std::nullopt;
    const View<const double, 1> of = sums.tile_union.view()[setting];
    const double mean =
        std::accumulate(of.data(), of.data() + of.size(), 0.0) / static_cast<double>(of.size());
    return std::clamp(mean, static_cast<double>(top_k), static_cast<double>(top_k * queries.size));
}

void write_settings(const std::vector<Setting>& settings, const std::string& group,
                    io::UnitWriter& to) {
    std::vector<std::string> names;
    Tensor<int64_t, 2> table({std::ssize(settings), 5});
    for (int64_t s = 0; s < table.extent(0); ++s) {
        const Setting& setting = settings[static_cast<size_t>(s)];
        const auto known = std::find(names.begin(), names.end(), setting.selector);
        table(s, 0) = known - names.begin();
        if (known == names.end()) names.push_back(setting.selector);
        table(s, 1) = setting.block_size;
        table(s, 2) = setting.rule.top_k;
        table(s, 3) = setting.rule.forced_first;
        table(s, 4) = setting.rule.forced_local;
    }
    to.write<int64_t, 2>(group + "/settings", table.view(),
                         {"setting,column", "",
                          "columns: number in the attribute selectors, block size, k, oldest and "
                          "newest blocks always kept"});
    to.attribute(group + "/settings", "selectors", join(names));
}

void write_prices(const AdviseOptions& o, const io::LayerInfo& layer,
                  const std::vector<Setting>& settings, const QueryBlocks& queries,
                  const SettingSums& sums, const analysis::Hardware& on, const std::string& group,
                  io::UnitWriter& to) {
    const Pricer price(layer, o.context, o.decode, on);
    write_price(to, group, "dense", price.dense());
    Tensor<double, 2> costs({std::ssize(settings), 5});
    for (int64_t s = 0; s < costs.extent(0); ++s) {
        const Setting& setting = settings[static_cast<size_t>(s)];
        const auto tile_union = mean_union(sums, queries, s, setting.rule.top_k);
        const Price of = price(setting, tile_union);
        costs(s, 0) = of.seconds;
        costs(s, 1) = of.work.flops;
        costs(s, 2) = of.work.bytes;
        costs(s, 3) = static_cast<double>(of.order);
        costs(s, 4) = tile_union.value_or(0);
    }
    to.write<double, 2>(group + "/costs", costs.view(),
                        {"setting,column", "",
                         "columns: seconds, FLOPs and bytes of the layer at the context; the loop "
                         "order that answers first (1 q_outer, 2 union, 3 kv_outer, 4 automatic); "
                         "blocks that the queries of a tile select together, 0: not measured"});
}

}  // namespace

QueryBlocks choose_blocks(const AdviseOptions& o, const io::ActivationsInfo& info,
                          const io::LayerInfo& layer, int64_t largest) {
    QueryBlocks all{cuda::sparse_tile_queries(layer.query_heads / layer.kv_heads), {}, {}, true};
    const std::vector<int64_t>& cu = info.cu_seqlens;
    std::vector<std::vector<int64_t>> of_sequence(cu.size() - 1);
    size_t s = 0;
    for (int64_t token : chosen_queries(o, cu, layer.layer)) {
        while (token >= cu[s + 1]) ++s;
        if (token - cu[s] >= largest) of_sequence[s].push_back(token);
    }
    std::vector<std::pair<size_t, size_t>> blocks;  // sequence, first query
    for (s = 0; s < of_sequence.size(); ++s)
        for (size_t first = 0; first + static_cast<size_t>(all.size) <= of_sequence[s].size();
             first += static_cast<size_t>(all.size))
            blocks.emplace_back(s, first);
    require(std::ssize(blocks) >= kLeastBlocks, "layer ", layer.layer, ": the chosen queries have ",
            blocks.size(), " blocks of ", all.size, " queries that see more than ", largest,
            " keys, the largest budget; at least ", kLeastBlocks,
            " are needed: choose smaller --top-ks or --block-sizes, or more queries");
    const int64_t wanted =
        o.sample_queries == 0 ? 0 : std::max(kLeastBlocks, o.sample_queries / all.size);
    for (int64_t n : stratified_sample(std::ssize(blocks), wanted, o.seed)) {
        const auto [sequence, first] = blocks[static_cast<size_t>(n)];
        const auto begin = of_sequence[sequence].begin() + static_cast<int64_t>(first);
        all.adjacent &= *(begin + (all.size - 1)) - *begin == all.size - 1;
        all.tokens.insert(all.tokens.end(), begin, begin + all.size);
        all.sequences.push_back(static_cast<int64_t>(sequence));
    }
    return all;
}

void advise_layer(const AdviseOptions& o, const io::ActivationsReader& file,
                  const io::LayerInfo& layer, const std::vector<Setting>& settings,
                  const analysis::Hardware& on, const Worker& worker, io::UnitWriter& to) {
    int64_t largest = 0;
    for (const Setting& setting : settings) largest = std::max(largest, setting.tokens());
    const QueryBlocks queries = choose_blocks(o, file.info(), layer, largest);
    LayerMeasurement measurement(o, file, layer, settings, queries, worker.backend);
    Progress progress(worker.progress, text("layer ", layer.layer), std::ssize(queries.tokens),
                      "queries");
    measurement.run(progress);

    const std::string name = std::to_string(layer.layer), group = "/advise/" + name;
    const Problem p = io::layer_problem(file.info(), layer, settings.front().block_size);
    write_layer(to, layer, p,
                {{"tokens", p.keys()},
                 {"longest_sequence", p.batch.longest_keys()},
                 {"queries", std::ssize(queries.tokens)},
                 {"block_queries", queries.size},
                 {"largest_budget", largest}});
    to.write<int64_t, 1>("/queries/" + name + "/token",
                         {queries.tokens.data(), {std::ssize(queries.tokens)}},
                         {"query", "token", "packed token index of each measured query"});
    to.write<int64_t, 1>("/queries/" + name + "/block_sequence",
                         {queries.sequences.data(), {std::ssize(queries.sequences)}},
                         {"block", "", "sequence of each block of queries"});
    write_settings(settings, group, to);
    const SettingSums& sums = measurement.sums();
    to.write<double, 3>(
        group + "/mass_kept", sums.mass.view(),
        {"setting,block,group", "probability", "mass kept, mean over the queries of a block"});
    to.write<double, 3>(
        group + "/difference", sums.difference.view(),
        {"setting,block,group", "",
         "sum of |o_sparse - o_dense|^2 over a block's queries and a group's heads"});
    to.write<double, 2>(group + "/norm", sums.norm.view(),
                        {"block,group", "", "sum of |o_dense|^2 likewise"});
    write_prices(o, layer, settings, queries, sums, on, group, to);
}

}  // namespace msa::experiments::advise
