// SPDX-License-Identifier: MIT
#include "experiments/measure/measure.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "analysis/sink.h"
#include "core/tolerance.h"
#include "experiments/driver/program.h"
#include "experiments/measure/pickers.h"

namespace msa::experiments::measure {
namespace {

constexpr int64_t kFullRows = 64;  // queries that are given all their blocks, as a check

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

/// One block size, with what picks blocks of it.
struct Size {
    Problem whole, queries;
    std::vector<size_t> choices = {};  // of the task
    Pickers pickers = {};
    bool needs_logits = false;
};

class Loop {
public:
    Loop(const Task& task, Tally& to, Observer& observer)
        : task_(task),
          to_(to),
          observer_(observer),
          backend_(task.backend),
          k_norm_(largest_norm(host_view(task.data.k))) {
        for (int64_t block_size : task.block_sizes) {
            Size& size = sizes_[block_size];
            size.whole = task.data.problem(block_size);
            size.queries = size.whole.with_query_rows(task.queries.tokens);
        }
        for (size_t n = 0; n < task.choices.size(); ++n)
            sizes_.at(task.choices[n].block_size).choices.push_back(n);
        const Problem& p = sizes_.begin()->second.whole;
        const int64_t of_logits =  // DenseChunk::first_logits, in doubles
            ceil_div(2 * task.sink_tokens, p.head_dim);
        most_ = task.chunk > 0
                    ? task.chunk
                    : chunk_queries(backend_, p, task.of_blocks, task.of_heads + of_logits);
    }

    void run(Progress& progress) {
        const analysis::QueryBlocks& blocks = task_.queries.blocks;
        for (size_t index = 0; index < static_cast<size_t>(task_.data.views); ++index) {
            const LayerView view(backend_, task_.data, index);
            begin(view);
            for (const QueryRange range : chunks(blocks, queries_before(), most_)) {
                stop_if_asked();
                pass(view, range);
            }
            for (const QueryRange range : chunks(blocks, task_.part, most_)) {
                stop_if_asked();
                add(view, range);
                progress.advance(range.end - range.begin);
            }
        }
    }

private:
    SelectorLayer selector_layer(const LayerView& view, const Size& size) const {
        SelectorLayer layer = view.selector_layer(size.whole, task_.seed);
        layer.prompt = task_.prompt;
        layer.counted = task_.counted;
        return layer;
    }

    void begin(const LayerView& view);
    QueryRange queries_before() const;
    ChunkView look_at(const SelectorLayer&, const LayerView&, const Size&, QueryRange) const;
    void pass(const LayerView& view, QueryRange range);
    void add(const LayerView& view, QueryRange range);
    void check_full_budget(const MeasuredChunk& chunk);

    const Task& task_;
    Tally& to_;
    Observer& observer_;
    Backend& backend_;
    double k_norm_;                  // longest key
    std::map<int64_t, Size> sizes_;  // by block size
    int64_t most_ = 0;               // queries of a chunk
};

void Loop::begin(const LayerView& view) {
    for (auto& [block_size, size] : sizes_) {
        size.pickers = Pickers(task_, size.choices);
        size.needs_logits = task_.oracle_by_logit || size.pickers.need_logits();
        const SelectorLayer layer = selector_layer(view, size);
        size.pickers.prepare(layer, to_);
        observer_.begin(layer);
    }
}

/// Those before the part that some selector has to see: what it keeps is of one sequence.
QueryRange Loop::queries_before() const {
    const int64_t end = task_.part.begin;
    const bool in_order = std::ranges::any_of(
        sizes_, [](const auto& size) { return size.second.pickers.in_order(); });
    if (!in_order) return {end, end};
    const std::vector<int64_t> sequence = query_sequences(sizes_.begin()->second.queries);
    return {
        std::ranges::lower_bound(sequence, sequence[static_cast<size_t>(end)]) - sequence.begin(),
        end};
}

ChunkView Loop::look_at(const SelectorLayer& layer, const LayerView& view, const Size& size,
                        QueryRange range) const {
    const std::span<const int64_t> tokens = task_.queries.tokens_of(range);
    return {layer,
            view,
            size.queries.with_queries(range),
            tokens,
            size.needs_logits,
            [this, tokens, &view, &size] {
                return task_.previous->mass(backend_, tokens, size.whole.block_size, view.index);
            }};
}

void Loop::pass(const LayerView& view, QueryRange range) {
    for (const auto& [block_size, size] : sizes_) {
        const SelectorLayer layer = selector_layer(view, size);
        size.pickers.pass(layer, look_at(layer, view, size, range).chunk, to_);
    }
}

void Loop::add(const LayerView& view, QueryRange range) {
    std::optional<DenseChunk> dense;
    std::map<int64_t, Mirror<3>> masses;  // P_b by block size
    for (const auto& [block_size, size] : sizes_) {
        const SelectorLayer layer = selector_layer(view, size);
        const ChunkView queries = look_at(layer, view, size, range);
        const bool first = !dense;
        if (first) dense.emplace(queries, task_.sink_tokens);
        const auto finer =
            std::find_if(masses.rbegin(), masses.rend(),
                         [of = block_size](const auto& known) { return of % known.first == 0; });
        const Mirror<3> mass =
            finer == masses.rend() || size.needs_logits
                ? queries.chunk.mass()
                : sum_blocks(backend_, finer->second.host(), block_size / finer->first,
                             queries.problem.blocks());
        masses[block_size] = mass;
        const MeasuredChunk chunk(queries, layer, task_.queries, range, k_norm_, *dense, mass,
                                  task_.oracle_by_logit);
        to_.checks.begin(chunk.rows(), queries.tokens);
        check_full_budget(chunk);
        if (first)
            to_.sums.add(chunk.blocks, [&](const BlockRows& of) {
                analysis::SinkMass sink(of.problem.query_heads, task_.sink_tokens);
                sink.add(of.problem, of.of(chunk.first_logits), of.of(chunk.dense.lse), {},
                         of.of(chunk.kinds));
                return States{{"dense/sink", sink.state()}};
            });
        observer_.dense(chunk);
        ChoiceIds ids(task_.choices.size());
        size.pickers.pick(layer, chunk, observer_, to_, ids);
        for (size_t n : size.choices)
            if (task_.choices[n].ids) ids[n] = task_.choices[n].ids(queries, range);
        add_choices(task_, size.choices, chunk, ids, observer_, to_);
        observer_.done(chunk);
    }
}

void Loop::check_full_budget(const MeasuredChunk& chunk) {
    // The last queries of the layer's first chunk, however the layer is cut.
    const analysis::QueryBlocks& blocks = task_.queries.blocks;
    const QueryRange range = chunk.range;
    const int64_t end = chunks(blocks, {0, std::ssize(task_.queries.tokens)}, most_).front().end;
    const int64_t first = std::max<int64_t>(0, end - kFullRows - range.begin);
    const int64_t rows = std::min(end, range.end) - range.begin - first;
    if (rows > 0) to_.checks.check_all_blocks(chunk, first, rows);
}

}  // namespace

void measure(const Task& task, Tally& to, Observer& observer, Progress& progress) {
    Loop(task, to, observer).run(progress);
}

}  // namespace msa::experiments::measure
