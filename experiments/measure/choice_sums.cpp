// SPDX-License-Identifier: MIT
#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
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
        const Problem& p = of.problem;
        const std::span<const analysis::RowKind> kinds = of.of(chunk_.kinds);
        const View<const int32_t, 3> kept = of.of(ids_[n]);
        States states;
        const auto add_recall = [&](const std::string& name, View<const int32_t, 3> wanted) {
            analysis::Recall recall(p.kv_heads, {task_.oracle_without_local});
            recall.add(p, kinds, kept, wanted, of.of(chunk_.mass));
            states.emplace_back(concat(choice.key, "/", name), recall.state());
        };
        if (oracle != nullptr) {
            add_recall("recall", of.of(*oracle));
        } else {
            KeptMass sums(p.kv_heads);
            sums.add(kinds, kept, of.of(chunk_.mass));
            states.emplace_back(choice.key + "/mass", sums.state());
        }
        if (task_.beside) add_recall(task_.beside_name, of.of(ids_[*task_.beside]));
        if (off.over != nullptr) {
            analysis::OutputError error(p.query_heads);
            error.add(kinds, of.of(off.over->out), of.of(chunk_.dense.out));
            states.emplace_back(choice.key + "/output_error", error.state());
        } else {
            analysis::OutputError error(p.kv_heads);
            error.add(kinds, of.of(off.squared), of.of(chunk_.norm));
            states.emplace_back(choice.key + "/group_output_error", error.state());
        }
        analysis::SinkMass sink(p.query_heads, task_.sink_tokens);
        sink.add(p, of.of(chunk_.first_logits), of.of(off.lse), kept, kinds);
        states.emplace_back(choice.key + "/sink", sink.state());
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
