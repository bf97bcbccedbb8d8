// SPDX-License-Identifier: MIT
#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "experiments/measure/accumulators.h"
#include "experiments/measure/choice_errors.h"
#include "experiments/measure/pickers.h"
#include "experiments/measure/tally.h"

namespace msa::experiments::measure {
namespace {

/// How far attention over a choice is from dense attention.
struct Off {
    View<const double, 2> squared;  // [Nq, Hkv], over the group's heads
    View<const float, 2> lse;       // [Nq, Hq] of attention over the choice
    const Attention* over;          // by head; absent where errors are by group
};

class ChoiceSums {
public:
    ChoiceSums(const Task& task, const MeasuredChunk& chunk, const ChoiceIds& ids)
        : task_(task), chunk_(chunk), ids_(ids) {}

    /// Of a block of the chunk's queries.
    States measure(size_t n, const Off& off, const Tensor<int32_t, 3>* oracle,
                   const BlockRows& of) const {
        const Choice& choice = task_.choices[n];
        const ChosenRows chosen{
            task_,
            chunk_,
            of,
            of.of(ids_[n]),
            oracle != nullptr ? of.of(*oracle) : View<const int32_t, 3>(),
            of.of(off.squared),
            of.of(off.lse),
            off.over != nullptr ? of.of(host_view(off.over->out)) : View<const float, 3>()};
        States states;
        for (const Accumulator& one : list_accumulators())
            if (one.add != nullptr)
                if (std::optional<analysis::State> state = one.add(chosen))
                    states.emplace_back(one.sums_of(choice.key), std::move(*state));
        if (task_.compared_with) {
            analysis::Recall recall(of.problem.kv_heads, {task_.oracle_without_local});
            recall.add(of.problem, of.of(chunk_.kinds), chosen.ids,
                       of.of(ids_[*task_.compared_with]), of.of(chunk_.mass));
            states.emplace_back(concat(choice.key, "/", task_.compared_name), recall.state());
        }
        return states;
    }
    void add(size_t n, const Off& off, Observer& observer, Tally& to) const {
        const Choice& choice = task_.choices[n];
        const bool is_named = choice.selector.empty() || choice.key.starts_with(choice.selector);
        to.checks.check(is_named ? choice.key : concat(choice.selector, ", setting ", choice.key),
                        ids_[n], off.squared);
        const Tensor<int32_t, 3>* oracle =
            task_.with_oracle ? &chunk_.oracle(choice.rule) : nullptr;
        to.sums.add(chunk_.blocks,
                    [&](const BlockRows& of) { return measure(n, off, oracle, of); });
        observer.chosen(chunk_, n, ids_[n], off.over);
    }

private:
    const Task& task_;
    const MeasuredChunk& chunk_;
    const ChoiceIds& ids_;
};

}  // namespace

void add_choices(const Task& task, const std::vector<size_t>& choices, const MeasuredChunk& chunk,
                 const ChoiceIds& ids, Observer& observer, Tally& to) {
    if (task.only_ids) {
        for (size_t n : choices) observer.chosen(chunk, n, ids[n].view(), nullptr);
        return;
    }
    const ChoiceSums sums(task, chunk, ids);
    const Problem& p = chunk.problem;
    if (task.error_of == ErrorOf::head) {
        for (size_t n : choices) {
            const Attention over =
                attend_selected(task.backend, p, chunk.queries.input(), ids[n].view());
            const Tensor<double, 2> squared =
                analysis::squared_differences(over.out, chunk.dense.out, p.kv_heads);
            sums.add(n, {squared, over.lse, &over}, observer, to);
        }
        return;
    }
    std::vector<View<const int32_t, 3>> some;
    for (size_t n : choices) some.push_back(ids[n].view());
    double together = 0;  // seconds of all of them, where they share their work
    std::vector<ChoiceError> errors;
    {
        const Stopwatch watch(together);
        errors = squared_errors(task.backend, p, chunk.queries.input(), chunk.dense, some);
    }
    for (size_t at = 0; at < errors.size(); ++at) {
        double& evaluate = to.seconds[task.choices[choices[at]].selector].evaluate;
        evaluate += together / static_cast<double>(errors.size());
        const Stopwatch watch(evaluate);
        sums.add(choices[at], {errors[at].squared, errors[at].lse, nullptr}, observer, to);
    }
}

}  // namespace msa::experiments::measure
