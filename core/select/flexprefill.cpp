// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/select/attention_rows.h"
#include "core/select/best_blocks.h"
#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/per_rule.h"
#include "core/select/query_blocks.h"
#include "core/select/selector.h"
#include "core/select/vertical_slash.h"

namespace msa {
namespace {

/// Square root of the Jensen-Shannon divergence (nats) of two distributions.
double distance(const std::vector<double>& p, const std::vector<double>& q) {
    double divergence = 0;
    for (size_t b = 0; b < p.size(); ++b) {
        const double mean = (p[b] + q[b]) / 2;
        if (p[b] > 0) divergence += p[b] / 2 * std::log(p[b] / mean);
        if (q[b] > 0) divergence += q[b] / 2 * std::log(q[b] / mean);
    }
    return std::sqrt(std::max(divergence, 0.0));
}

using Estimates = std::vector<std::vector<double>>;  // [row][block] distributions

/// Sets to 0 the estimates of all but the best cells of the map. Of query block y, queries[y]
/// queries count: the cells of those with any compete for the budget of all that count. The others
/// keep the budget row by row. Forced blocks are kept, and are paid from the budget.
void keep_best_cells(const SelectionRule& rule, const std::vector<int64_t>& queries,
                     Estimates& map) {
    struct Cell {
        double* estimate;
        int64_t price;
    };
    std::vector<Cell> cells;
    int64_t room = 0;
    for (size_t y = 0; y < map.size(); ++y) {
        const auto blocks = std::ssize(map[y]);
        if (queries[y] == 0) {
            const auto estimate = [&](int64_t b) -> double& {
                return map[y][static_cast<size_t>(b)];
            };
            for (int64_t b : beyond_budget(rule, blocks, estimate)) estimate(b) = 0;
            continue;
        }
        room += queries[y] * std::min(blocks, rule.top_k);
        for (int64_t b = 0; b < blocks; ++b)
            if (is_forced(rule, b, blocks))
                room -= queries[y];
            else
                cells.push_back({&map[y][static_cast<size_t>(b)], queries[y]});
    }
    std::stable_sort(cells.begin(), cells.end(),
                     [](const Cell& a, const Cell& b) { return *a.estimate > *b.estimate; });
    for (const Cell& cell : cells) {
        room -= cell.price;
        if (room < 0) *cell.estimate = 0;
    }
}

class FlexPrefillSelector final : public Selector {
public:
    std::string_view name() const override { return "flexprefill"; }
    std::string_view rule() const override {
        return "per group: where mean-pooled queries and keys predict the attention of the last "
               "query block (Jensen-Shannon distance below 0.1), the best blocks of that estimate "
               "over all query blocks together; vertical-slash elsewhere; first and local block "
               "forced, the queries that averages count keep the budget on average (FlexPrefill, "
               "arXiv 2502.20766)";
    }
    std::string_view note() const override {
        return "a fixed budget in place of the source's share gamma; query-aware groups have no "
               "further vertical-slash blocks, which the source adds";
    }
    std::vector<PolicyOption> options() override {
        return {{"tau", "Jensen-Shannon distance below which the estimate of means holds", &tau_, 0,
                 1}};
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override {
        return {.queries = true, .rule = true, .phases = Phases::prefill};
    }
    PolicyCost do_cost(const Phase& phase) const override {
        const PolicyCost probe = probe_cost(phase.problem, phase.problem.block_size, phase.prompt),
                         map = per_head(phase.problem, block_pairs(phase.problem));
        return {probe.flops + map.flops, probe.bytes + map.bytes};
    }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        lines_.emplace(layer, p.block_size);
        maps_.clear();
        for (const SelectionRule& rule : layer.all_rules())
            maps_[rule].resize(static_cast<size_t>(p.sequences() * p.kv_heads));
        for (int64_t s = 0; s < p.sequences(); ++s) {
            const int64_t blocks = ceil_div(sequence_length(p, s), p.block_size);
            if (blocks > 0) prepare_sequence(layer, s, blocks);
        }
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        const SelectionRule rule = force(layer.rule, 1, 1);
        const std::vector<std::optional<Estimates>>& maps = maps_[layer.rule];
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const int64_t blocks = visible_blocks(visible[row].count, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                const auto& map = maps[static_cast<size_t>(sequence[row] * p.kv_heads + r)];
                for (int64_t b = 0; b < blocks; ++b)
                    scores(i, r, b) =
                        map ? estimate(*map, blocks - 1, b)
                            : lines_->score(sequence[row], r, visible[row].count - 1, b);
                if (map) continue;
                const View<float, 1> row_scores = scores.view()[i][r];
                for (int64_t b : beyond_budget(rule, blocks, row_scores)) row_scores(b) = kLeftOut;
            }
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        asked = force(asked, 1, 1);
        asked.top_k = kUneven;
        return asked;
    }

private:
    static float estimate(const Estimates& map, int64_t query_block, int64_t b) {
        const double kept = map[static_cast<size_t>(query_block)][static_cast<size_t>(b)];
        return kept > 0 ? static_cast<float>(kept) : kLeftOut;
    }

    void prepare_sequence(const SelectorLayer& layer, int64_t s, int64_t blocks) {
        const Problem& p = layer.problem;
        const Mirror<3> of_means = estimate(layer, s, blocks);
        const View<const float, 3> mass = of_means.host();
        const Estimates truth = last_block(layer, s);
        const std::vector<int64_t> counted = counted_of_blocks(layer, s);
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            Estimates map;
            for (int64_t y = 0; y < blocks; ++y)
                map.emplace_back(&mass(y, r, 0), &mass(y, r, 0) + y + 1);
            if (!(distance(map.back(), truth[static_cast<size_t>(r)]) < tau_)) continue;
            for (const SelectionRule& rule : layer.all_rules()) {
                auto& kept = maps_[rule][static_cast<size_t>(s * p.kv_heads + r)];
                keep_best_cells(force(rule, 1, 1), counted, kept.emplace(map));
            }
        }
    }

    /// [blocks, Hkv, blocks]: P_b of the mean q of each query block, a key block's mean being one
    /// key; query block y sees the key blocks 0..y.
    static Mirror<3> estimate(const SelectorLayer& layer, int64_t s, int64_t blocks) {
        const Problem& p = layer.problem;
        const View<const float, 3> k = layer.k.host();
        const int64_t start = sequence_start(p, s), length = sequence_length(p, s);
        Tensor<float, 3> queries({blocks, p.query_heads, p.head_dim}),
            keys({blocks, p.kv_heads, p.head_dim});
        for (int64_t b = 0; b < blocks; ++b) {
            const Tensor<float, 2> mean = mean_query(layer, s, b);
            std::copy_n(mean.data(), mean.size(), &queries(b, 0, 0));
            for (int64_t r = 0; r < p.kv_heads; ++r)
                mean_of_keys(key_rows(k, r, start + b * p.block_size,
                                      std::min(p.block_size, length - b * p.block_size)),
                             keys.view()[b][r]);
        }
        Problem of_means = square_problem(blocks, p.query_heads, p.kv_heads, p.head_dim, 0, 1);
        of_means.softmax_scale_override = p.softmax_scale();
        const Mirror<3> q(layer.backend, std::move(queries)), means(layer.backend, std::move(keys));
        auto mass = layer.backend.make<float, 3>({blocks, p.kv_heads, blocks});
        layer.backend.block_mass(of_means, {q.floats(), means.floats(), {}}, {mass, {}});
        layer.backend.finish();
        return {layer.backend, std::move(mass)};
    }

    /// [Hkv][block]: mean attention of the last query block's queries.
    static Estimates last_block(const SelectorLayer& layer, int64_t s) {
        const Problem& p = layer.problem;
        const int64_t length = sequence_length(p, s);
        const int64_t begin = (length - 1) / p.block_size * p.block_size;
        const Mirror<3> of_queries =
            mass_at(layer, sequence_tokens(p, s, {begin, length}), p.block_size);
        const View<const float, 3> mass = of_queries.host();
        const auto blocks = static_cast<size_t>(ceil_div(length, p.block_size));
        Estimates means(static_cast<size_t>(p.kv_heads), std::vector<double>(blocks, 0.0));
        for (int64_t i = 0; i < mass.extent(0); ++i)
            for (size_t r = 0; r < means.size(); ++r)
                for (size_t b = 0; b < blocks; ++b)
                    means[r][b] +=
                        double{mass(i, static_cast<int64_t>(r), static_cast<int64_t>(b))} /
                        static_cast<double>(mass.extent(0));
        return means;
    }

    double tau_ = 0.1;
    std::optional<VerticalSlash> lines_;
    /// [S * Hkv], absent: vertical-slash
    PerRule<std::vector<std::optional<Estimates>>> maps_;
};

}  // namespace

std::unique_ptr<Selector> make_flexprefill_selector() {
    return std::make_unique<FlexPrefillSelector>();
}

}  // namespace msa
