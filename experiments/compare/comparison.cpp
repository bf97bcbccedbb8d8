// SPDX-License-Identifier: MIT
#include "experiments/compare/comparison.h"

#include <algorithm>

#include "experiments/compare/stopwatch.h"
#include "experiments/driver/program.h"

namespace msa::experiments::compare {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 28;
constexpr int64_t kFullRows = 64;  // queries that are given all their blocks, as a check

/// The rule that an arm is held to; its budget is no more than there are blocks.
SelectionRule used_rule(const Arm& arm, const Problem& p) {
    SelectionRule rule = make_selector(arm.selector)->adjust(arm.rule);
    if (rule.top_k == kUneven)
        rule.top_k = std::max(p.blocks(), rule.forced_local + rule.forced_first);
    return rule;
}

/// Every group gets the mean of their scores: one choice for all.
void share_scores(View<float, 3> scores) {
    for (int64_t i = 0; i < scores.extent(0); ++i)
        for (int64_t b = 0; b < scores.extent(2); ++b) {
            float sum = 0;
            for (int64_t r = 0; r < scores.extent(1); ++r) sum += scores(i, r, b);
            for (int64_t r = 0; r < scores.extent(1); ++r)
                scores(i, r, b) = sum / static_cast<float>(scores.extent(1));
        }
}

}  // namespace

/// A selector at work, and the arms that its scores serve: all of its name, or one, where the
/// scores depend on the budget.
struct LayerComparison::Scorer {
    std::unique_ptr<Selector> selector;
    SelectorLayer layer;
    std::vector<size_t> arms;
};

LayerComparison::LayerComparison(LayerTask& task, Plan plan)
    : task_(task),
      plan_(std::move(plan)),
      sizes_(task.data.problem(task.file, plan_.block_size)),
      all_(sizes_.with_query_rows(task.tokens)) {
    std::erase_if(plan_.arms, [&](const Arm& arm) {
        const bool of_tokens = find_token_selector(arm.selector) != nullptr;
        if (of_tokens) token_arms_.emplace_back(arm, sizes_);
        return of_tokens;
    });
    for (const Arm& arm : plan_.arms) {
        tallies_.emplace_back(arm, sizes_);
        needs_logits_ |= make_selector(arm.selector)->needs().max_logit;
        if (std::find(rules_.begin(), rules_.end(), arm.rule) == rules_.end())
            rules_.push_back(arm.rule);
    }
    create_ids();
}

int64_t LayerComparison::chunk_queries() const {
    const int64_t per_block = 4 * sizes_.kv_heads * sizes_.blocks() * 8;
    const int64_t per_head = 4 * sizes_.query_heads * sizes_.head_dim * 6;
    return std::clamp<int64_t>(kChunkBytes / (per_block + per_head), 1, 2048);
}

const Tensor<int32_t, 3>& LayerComparison::oracle(const SelectionRule& rule) const {
    const auto at = std::find(rules_.begin(), rules_.end(), rule);
    return oracles_[static_cast<size_t>(at - rules_.begin())];
}

void LayerComparison::create_ids() {
    if (task_.options.sharing == Sharing::head) return;  // several choices for a row
    for (const Arm& arm : plan_.arms)
        task_.to.create<int32_t, 3>(
            "/select/" + arm.key() + "/" + task_.name() + "/ids",
            {std::ssize(task_.stored), sizes_.kv_heads, used_rule(arm, sizes_).top_k},
            {"query,group,slot", "block of the sequence",
             std::string(make_selector(arm.selector)->rule())});
}

void LayerComparison::store_ids(const Arm& arm, QueryRange range, View<const int32_t, 3> ids) {
    if (task_.options.sharing == Sharing::head) return;
    const auto begin = std::lower_bound(task_.stored.begin(), task_.stored.end(), range.begin);
    const auto end = std::lower_bound(begin, task_.stored.end(), range.end);
    if (begin == end) return;
    Tensor<int32_t, 3> rows({end - begin, ids.extent(1), ids.extent(2)});
    for (auto row = begin; row != end; ++row)
        std::copy_n(ids[*row - range.begin].data(), ids.extent(1) * ids.extent(2),
                    rows.view()[row - begin].data());
    task_.to.write_rows<int32_t, 3>("/select/" + arm.key() + "/" + task_.name() + "/ids",
                                    begin - task_.stored.begin(), rows);
}

std::vector<LayerComparison::Scorer> LayerComparison::make_scorers(const LayerView& view) {
    std::vector<Scorer> scorers;
    const Problem queries = view.whole.with_query_rows(task_.tokens);
    const auto read_q = [q = view.host_q](std::span<const int64_t> tokens) {
        return gather_rows(q, tokens);
    };
    for (size_t n = 0; n < plan_.arms.size(); ++n) {
        const Arm& arm = plan_.arms[n];
        tallies_[n].add_cost(analysis::selector_cost(arm.selector, queries, task_.options.prompt));
        std::unique_ptr<Selector> selector = make_selector(arm.selector);
        const auto same = std::find_if(scorers.begin(), scorers.end(), [&](const Scorer& scorer) {
            return scorer.selector->name() == arm.selector && !selector->needs().rule;
        });
        if (same != scorers.end()) {
            same->arms.push_back(n);
            continue;
        }
        const Stopwatch watch(task_.timing[arm.selector].select);
        scorers.push_back({std::move(selector),
                           {view.whole, task_.data.k, task_.backend, view.index_k,
                            task_.options.seed, arm.rule, read_q, task_.options.prompt},
                           {n}});
        scorers.back().selector->prepare(scorers.back().layer);
    }
    for (TokenArm& arm : token_arms_) {
        const std::string& name = arm.arm().selector;
        const Stopwatch watch(task_.timing[name].select);
        arm.prepare({view.whole, task_.data.k, task_.backend, view.index_k},
                    analysis::selector_cost(name, queries, task_.options.prompt));
    }
    return scorers;
}

void LayerComparison::run(Progress& progress) {
    for (size_t index = 0; index < task_.data.q.size(); ++index) {
        const LayerView view(task_.backend, task_.data, sizes_, index);
        std::vector<Scorer> scorers = make_scorers(view);
        const int64_t step = chunk_queries();
        for (int64_t begin = 0; begin < all_.queries(); begin += step) {
            if (stop_requested())
                throw Interrupted("stopped; the finished layers are kept, --resume continues");
            const QueryRange range{begin, std::min(begin + step, all_.queries())};
            add(view, scorers, range);
            progress.advance(range.end - range.begin);
        }
    }
}

Tensor<float, 3> LayerComparison::mass_before(size_t view, QueryRange range) const {
    if (task_.previous == nullptr) return {};
    const LayerData& data = *task_.previous;
    const Problem p = data.problem(task_.file, plan_.block_size)
                          .with_query_rows(task_.tokens)
                          .with_queries(range);
    const Tensor<float, 3> q =
        gather_rows(data.q[view], std::span(task_.tokens)
                                      .subspan(static_cast<size_t>(range.begin),
                                               static_cast<size_t>(range.end - range.begin)));
    const Operand<3> there(task_.backend, host_view(q), data.elements.main.computed),
        k(task_.backend, host_view(data.k), data.elements.main.computed);
    return fetch(task_.backend, Mass(task_.backend, p, there, k, false).mass);
}

void LayerComparison::add(const LayerView& view, std::vector<Scorer>& scorers, QueryRange range) {
    const Problem p = all_.with_queries(range);
    const std::span<const int64_t> tokens(task_.tokens.data() + range.begin,
                                          task_.tokens.data() + range.end);
    Backend& backend = task_.backend;
    const Tensor<float, 3> host_q = gather_rows(view.host_q, tokens);
    const Operand<3> q(backend, host_view(host_q), task_.data.elements.main.computed);
    const Attention dense = attend(backend, p, {q, view.k, view.v}, {});
    const Mass there(backend, p, q, view.k, needs_logits_);
    const OnHost<3> mass(backend, there.mass), max_logit(backend, there.max_logit);
    const Tensor<float, 3> previous = mass_before(view.index, range);
    Tensor<float, 3> index_q;
    if (task_.data.index_q.data() != nullptr) index_q = gather_rows(task_.data.index_q, tokens);
    const Operand<3> index_q_there(backend, host_view(index_q),
                                   task_.data.elements.index.computed);

    const std::vector<analysis::RowKind> kinds =
        analysis::rows_beyond(p, largest_budget(task_.options, sizes_));
    MeasuredChunk measured{p, kinds, mass.view(), {}, host_view(dense.out)};
    task_.checks.begin(measured);
    if (range.begin == 0) check_full_budget(view, host_q, measured);
    const SelectorChunk chunk{p,           tokens,           host_q.view(),      index_q_there,
                              mass.view(), max_logit.view(), host_view(previous)};
    oracles_.clear();
    for (const SelectionRule& rule : rules_) oracles_.push_back(pick(backend, p, rule, there.mass));
    for (Scorer& scorer : scorers) add_scorer(view, scorer, chunk, measured, range);
    add_tokens(chunk, measured, dense.lse);
}

void LayerComparison::add_tokens(const SelectorChunk& chunk, const MeasuredChunk& measured,
                                 View<const float, 2> lse) {
    Tensor<float, 3> index_q;  // token policies work on the host
    SelectorChunk here = chunk;
    if (task_.data.index_q.data() != nullptr) {
        index_q = gather_rows(task_.data.index_q, chunk.tokens);
        here.index_q = index_q.view();
    }
    for (TokenArm& arm : token_arms_) {
        const Stopwatch watch(task_.timing[arm.arm().selector].evaluate);
        arm.add(here, measured, task_.data.k, task_.data.v, lse, task_.checks);
    }
}

void LayerComparison::add_scorer(const LayerView& view, Scorer& scorer, const SelectorChunk& chunk,
                                 MeasuredChunk measured, QueryRange range) {
    const Problem& p = chunk.problem;
    Timing& time = task_.timing[std::string(scorer.selector->name())];
    const Operand<3> q(task_.backend, chunk.q, task_.data.elements.main.computed);
    Tensor<float, 3> scores(chunk.mass.shape());
    {
        const Stopwatch watch(time.select);
        scorer.selector->score(scorer.layer, chunk, scores);
        if (task_.options.sharing == Sharing::layer) share_scores(scores);
    }
    const Operand<3> there(task_.backend, host_view(scores));
    for (size_t n : scorer.arms) {
        const Arm& arm = plan_.arms[n];
        measured.oracle_ids = oracle(arm.rule).view();
        Tensor<int32_t, 3> ids;
        {
            const Stopwatch watch(time.select);
            ids = pick(task_.backend, p, used_rule(arm, sizes_), there);
        }
        const Stopwatch watch(time.evaluate);
        add_arm(tallies_[n], view, measured, q, range, ids);
    }
}

void LayerComparison::add_arm(Tally& tally, const LayerView& view, const MeasuredChunk& chunk,
                              In<3> q, QueryRange range, View<const int32_t, 3> ids) {
    const Tensor<float, 3> sparse =
        attend_selected(task_.backend, chunk.problem, {q, view.k, view.v}, ids).out;
    tally.add(chunk, ids, sparse);
    task_.checks.check(tally.arm().key(), chunk, ids, sparse);
    store_ids(tally.arm(), range, ids);
}

void LayerComparison::check_full_budget(const LayerView& view, View<const float, 3> q,
                                        const MeasuredChunk& chunk) {
    const int64_t n = chunk.problem.queries(), rows = std::min(kFullRows, n), first = n - rows;
    const Problem p = chunk.problem.with_queries({first, n});
    const Tensor<int32_t, 3> ids = all_visible_blocks(p);
    const Operand<3> last(task_.backend, q.slice(first, rows),
                          task_.data.elements.main.computed);
    const Tensor<float, 3> sparse =
        attend_selected(task_.backend, p, {last, view.k, view.v}, ids).out;
    const MeasuredChunk part{
        p, chunk.kinds, chunk.mass.slice(first, rows), {}, chunk.dense.slice(first, rows)};
    task_.checks.begin(part);
    task_.checks.check("the full budget", part, ids, sparse);
    task_.checks.begin(chunk);
}

void LayerComparison::write() const {
    for (const Tally& tally : tallies_)
        tally.write(task_.to, task_.name(), sizes_, used_rule(tally.arm(), sizes_));
    for (const TokenArm& arm : token_arms_) arm.write(task_.to, task_.name(), sizes_);
}

}  // namespace msa::experiments::compare
