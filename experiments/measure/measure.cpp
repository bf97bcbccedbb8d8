// SPDX-License-Identifier: MIT
#include "experiments/measure/measure.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "core/select/selector.h"
#include "core/tolerance.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/measure/choice_errors.h"
#include "experiments/measure/stopwatch.h"

namespace msa::experiments::measure {
namespace {

constexpr int64_t kFullRows = 64;  // queries that are given all their blocks, as a check
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

/// Every group gets the mean of their scores: one choice for all.
Mirror<3> share_scores(Backend& backend, View<const float, 3> scores) {
    Tensor<float, 3> shared(scores.shape());
    for (int64_t i = 0; i < scores.extent(0); ++i)
        for (int64_t b = 0; b < scores.extent(2); ++b) {
            float sum = 0;
            for (int64_t r = 0; r < scores.extent(1); ++r) sum += scores(i, r, b);
            for (int64_t r = 0; r < scores.extent(1); ++r)
                shared(i, r, b) = sum / static_cast<float>(scores.extent(1));
        }
    return {backend, std::move(shared)};
}

/// A selector at work, and the choices of its name. Where the scores depend on the budget, each of
/// them has its own.
struct Picker {
    std::unique_ptr<Selector> selector;
    std::vector<size_t> choices = {};
    std::vector<SelectionRule> rules = {};  // asked for, distinct

    bool in_order() const { return selector->needs().in_order; }
};

/// One block size, with what picks blocks of it.
struct Size {
    Problem whole, queries;
    std::vector<size_t> choices = {};  // of the task
    std::vector<Picker> pickers = {};
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
            size.needs_logits = task.oracle_by_logit;
        }
        for (size_t n = 0; n < task.choices.size(); ++n)
            sizes_.at(task.choices[n].block_size).choices.push_back(n);
        most_ = task.chunk > 0 ? task.chunk
                               : chunk_queries(backend_, sizes_.begin()->second.whole,
                                               task.of_blocks, task.of_heads);
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
    SelectorLayer selector_layer(const LayerView& view, const Size& size,
                                 std::span<const SelectionRule> rules) const {
        SelectorLayer layer = view.selector_layer(size.whole, task_.seed);
        if (!rules.empty()) layer.rule = rules.front();
        layer.rules = rules;
        layer.prompt = task_.prompt;
        layer.counted = task_.counted;
        return layer;
    }
    Tally::Seconds& seconds(const Picker& picker) { return to_.seconds[picker.selector->label()]; }

    void begin(const LayerView& view);
    QueryRange queries_before() const;
    ChunkView look_at(const SelectorLayer&, const LayerView&, const Size&, QueryRange) const;
    void pass(const LayerView& view, QueryRange range);
    void add(const LayerView& view, QueryRange range);
    void check_full_budget(const MeasuredChunk& chunk);
    void pick_with(const Picker&, SelectorLayer, const MeasuredChunk*, const SelectorChunk&,
                   std::vector<Tensor<int32_t, 3>>& ids);
    void add_choices(const Size&, const MeasuredChunk&, const std::vector<Tensor<int32_t, 3>>& ids);
    void add_choice(size_t n, const MeasuredChunk&, const std::vector<Tensor<int32_t, 3>>& ids,
                    View<const double, 2> differences, View<const float, 2> lse,
                    const Attention* over);

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
        size.pickers.clear();
        for (size_t n : size.choices) {
            const Choice& choice = task_.choices[n];
            if (choice.selector.empty()) continue;
            auto same = std::ranges::find_if(size.pickers, [&](const Picker& picker) {
                return picker.selector->label() == choice.selector;
            });
            if (same == size.pickers.end())
                same = size.pickers.insert(same, {make_selector(choice.selector)});
            same->choices.push_back(n);
            if (std::ranges::find(same->rules, choice.rule) == same->rules.end())
                same->rules.push_back(choice.rule);
            size.needs_logits |= same->selector->needs().max_logit;
        }
        for (const Picker& picker : size.pickers) {
            const Stopwatch watch(seconds(picker).select);
            picker.selector->prepare(selector_layer(view, size, picker.rules));
        }
        observer_.begin(selector_layer(view, size, {}));
    }
}

/// Those before the part that some selector has to see: what it keeps is of one sequence.
QueryRange Loop::queries_before() const {
    const int64_t end = task_.part.begin;
    const bool in_order = std::ranges::any_of(sizes_, [](const auto& size) {
        return std::ranges::any_of(size.second.pickers, &Picker::in_order);
    });
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
                return task_.previous(tokens, size.whole.block_size, view.index);
            }};
}

void Loop::pass(const LayerView& view, QueryRange range) {
    for (const auto& [block_size, size] : sizes_) {
        const SelectorLayer layer = selector_layer(view, size, {});
        const ChunkView queries = look_at(layer, view, size, range);
        std::vector<Tensor<int32_t, 3>> ids(task_.choices.size());
        for (const Picker& picker : size.pickers)
            if (picker.in_order())
                pick_with(picker, selector_layer(view, size, picker.rules), nullptr, queries.chunk,
                          ids);
    }
}

void Loop::add(const LayerView& view, QueryRange range) {
    std::optional<Attention> dense;
    std::map<int64_t, Mirror<3>> masses;  // P_b by block size
    for (const auto& [block_size, size] : sizes_) {
        const SelectorLayer layer = selector_layer(view, size, {});
        const ChunkView queries = look_at(layer, view, size, range);
        const bool first = !dense;
        if (first) dense = queries.dense();
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
                sink.add(of.problem, of.of(queries.host_q), task_.data.k, of.of(dense->lse), {});
                return States{{"dense/sink", sink.state()}};
            });
        observer_.dense(chunk);
        std::vector<Tensor<int32_t, 3>> ids(task_.choices.size());
        for (const Picker& picker : size.pickers)
            pick_with(picker, selector_layer(view, size, picker.rules), &chunk, queries.chunk, ids);
        for (size_t n : size.choices)
            if (task_.choices[n].ids) ids[n] = task_.choices[n].ids(queries, range);
        add_choices(size, chunk, ids);
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

/// `measured`: the chunk, where it is measured.
void Loop::pick_with(const Picker& picker, SelectorLayer layer, const MeasuredChunk* measured,
                     const SelectorChunk& chunk, std::vector<Tensor<int32_t, 3>>& ids) {
    const Stopwatch watch(seconds(picker).select);
    const bool by_rule = picker.selector->needs().uses_rule(task_.prompt);
    const bool direct =  // nobody else wants the scores
        (picker.choices.size() == 1 || by_rule) && !task_.one_choice && !task_.with_scores &&
        picker.selector->label() != kOracle;
    Mirror<3> scores;
    if (!direct) {
        // The oracle's scores are P_b, which is there already.
        scores = measured != nullptr && picker.selector->label() == kOracle
                     ? measured->masses
                     : picker.selector->score(layer, chunk);
        if (task_.one_choice) scores = share_scores(backend_, scores.host());
    }
    for (size_t n : picker.choices) {
        const Choice& choice = task_.choices[n];
        const size_t first = *std::ranges::find_if(picker.choices, [&](size_t other) {
            return task_.choices[other].rule == choice.rule &&
                   task_.choices[other].used == choice.used;
        });
        if (first != n) {  // another budget of as many blocks
            ids[n] = copy_of(std::as_const(ids[first]).view());
            continue;
        }
        layer.rule = choice.rule;
        ids[n] = direct ? fetch(backend_, picker.selector->select(layer, chunk, choice.used))
                        : pick(backend_, chunk.problem, choice.used, scores.floats());
        if (task_.with_scores && measured != nullptr) observer_.scored(*measured, n, scores);
    }
}

void Loop::add_choices(const Size& size, const MeasuredChunk& chunk,
                       const std::vector<Tensor<int32_t, 3>>& ids) {
    const Problem& p = chunk.problem;
    if (!task_.joined) {
        for (size_t n : size.choices) {
            const Attention over =
                attend_selected(backend_, p, chunk.queries.input(), ids[n].view());
            add_choice(n, chunk, ids,
                       analysis::squared_differences(over.out, chunk.dense.out, p.kv_heads),
                       over.lse, &over);
        }
        return;
    }
    std::vector<View<const int32_t, 3>> choices;
    for (size_t n : size.choices) choices.push_back(ids[n].view());
    double together = 0;  // seconds of all of them, where they share their work
    std::vector<ChoiceError> errors;
    {
        const Stopwatch watch(together);
        errors = squared_errors(backend_, p, chunk.queries.input(), chunk.dense, choices);
    }
    for (size_t at = 0; at < errors.size(); ++at) {
        const size_t n = size.choices[at];
        double& evaluate = to_.seconds[task_.choices[n].selector].evaluate;
        evaluate += together / static_cast<double>(errors.size());
        const Stopwatch watch(evaluate);
        add_choice(n, chunk, ids, errors[at].squared, errors[at].lse, nullptr);
    }
}

void Loop::add_choice(size_t n, const MeasuredChunk& chunk,
                      const std::vector<Tensor<int32_t, 3>>& ids, View<const double, 2> differences,
                      View<const float, 2> lse, const Attention* over) {
    const Choice& choice = task_.choices[n];
    const Tensor<int32_t, 3>& of_choice = ids[n];
    const bool is_named = choice.selector.empty() || choice.key.starts_with(choice.selector);
    to_.checks.check(is_named ? choice.key : concat(choice.selector, ", setting ", choice.key),
                     of_choice, differences);
    const Tensor<int32_t, 3>* oracle = task_.with_oracle ? &chunk.oracle(choice.rule) : nullptr;
    to_.sums.add(chunk.blocks, [&](const BlockRows& of) {
        const Problem& p = of.problem;
        const std::span<const analysis::RowKind> kinds = of.of(chunk.kinds);
        const View<const int32_t, 3> kept = of.of(of_choice);
        const View<const float, 3> mass = of.of(chunk.mass);
        States states;
        const auto add_recall = [&](const std::string& name, View<const int32_t, 3> wanted) {
            analysis::Recall recall(p.kv_heads, {task_.oracle_without_local});
            recall.add(p, kinds, kept, wanted, mass);
            states.emplace_back(concat(choice.key, "/", name), recall.state());
        };
        if (oracle != nullptr) {
            add_recall("recall", of.of(*oracle));
        } else {
            KeptMass sums(p.kv_heads);
            sums.add(kinds, kept, mass);
            states.emplace_back(choice.key + "/mass", sums.state());
        }
        if (task_.beside) add_recall(task_.beside_name, of.of(ids[*task_.beside]));
        if (over != nullptr) {
            analysis::OutputError error(p.query_heads);
            error.add(kinds, of.of(over->out), of.of(chunk.dense.out));
            states.emplace_back(choice.key + "/output_error", error.state());
        } else {
            analysis::OutputError error(p.kv_heads);
            error.add(kinds, of.of(differences), of.of(chunk.norm));
            states.emplace_back(choice.key + "/group_output_error", error.state());
        }
        analysis::SinkMass sink(p.query_heads, task_.sink_tokens);
        sink.add(p, of.of(chunk.queries.host_q), task_.data.k, of.of(lse), kept);
        states.emplace_back(choice.key + "/sink", sink.state());
        return states;
    });
    observer_.chosen(chunk, n, of_choice, over);
}

}  // namespace

void measure(const Task& task, Tally& to, Observer& observer, Progress& progress) {
    Loop(task, to, observer).run(progress);
}

void write_layer_of(const Task& task, io::UnitWriter& to) {
    const Problem p = task.data.problem(task.block_sizes.front());
    write_layer(to, task.data.info, p,
                {{"block_size", p.block_size},
                 {"tokens", p.keys()},
                 {"longest_sequence", p.batch.longest_keys()},
                 {"queries", std::ssize(task.queries.tokens)}});
    write_tokens(to, concat("/queries/", task.data.info.layer), task.queries.tokens);
}

Tensor<int32_t, 3> pick_all(const Task& task, const Choice& choice) {
    const LayerView view(task.backend, task.data);
    const Problem whole = task.data.problem(choice.block_size),
                  all = whole.with_query_rows(task.queries.tokens);
    const SelectorLayer layer = view.selector_layer(whole, task.seed);
    const std::unique_ptr<Selector> selector = make_selector(choice.selector);
    selector->prepare(layer);
    Tensor<int32_t, 3> ids({all.queries(), whole.kv_heads, choice.used.top_k});
    const int64_t most = chunk_queries(task.backend, whole, task.of_blocks, task.of_heads);
    for (const QueryRange range : chunks(task.queries.blocks, {0, all.queries()}, most)) {
        stop_if_asked();
        const ChunkView queries(layer, view, all.with_queries(range),
                                task.queries.tokens_of(range));
        const Tensor<int32_t, 3> picked =
            fetch(task.backend, selector->select(layer, queries.chunk, choice.used));
        std::copy_n(picked.data(), picked.size(), ids.view()[range.begin].data());
    }
    return ids;
}

}  // namespace msa::experiments::measure
