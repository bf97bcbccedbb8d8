// SPDX-License-Identifier: MIT
#include "experiments/measure/pickers.h"

#include <algorithm>
#include <utility>

#include "experiments/measure/tally.h"

namespace msa::experiments::measure {
namespace {

const char* const kOracle = "oracle";

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

}  // namespace

Pickers::Pickers(const Task& task, const std::vector<size_t>& choices) : task_(&task) {
    for (size_t n : choices) {
        const Choice& choice = task.choices[n];
        if (choice.selector.empty()) continue;
        auto same = std::ranges::find_if(pickers_, [&](const Picker& picker) {
            return picker.selector->label() == choice.selector;
        });
        if (same == pickers_.end()) same = pickers_.insert(same, {make_selector(choice.selector)});
        same->choices.push_back(n);
        if (std::ranges::find(same->rules, choice.rule) == same->rules.end())
            same->rules.push_back(choice.rule);
    }
}

bool Pickers::in_order() const {
    return std::ranges::any_of(
        pickers_, [](const Picker& picker) { return picker.selector->needs().in_order; });
}

bool Pickers::need_logits() const {
    return std::ranges::any_of(
        pickers_, [](const Picker& picker) { return picker.selector->needs().max_logit; });
}

void Pickers::prepare(const SelectorLayer& layer, Tally& tally) const {
    for (const Picker& picker : pickers_) {
        const Stopwatch watch(picker.seconds(tally));
        picker.selector->prepare(picker.asked(layer));
    }
}

void Pickers::pick(const SelectorLayer& layer, const MeasuredChunk& chunk, Observer& observer,
                   Tally& tally, ChoiceIds& to) const {
    for (const Picker& picker : pickers_) {
        const Stopwatch watch(picker.seconds(tally));
        pick(picker, picker.asked(layer), chunk.queries.chunk, &chunk, &observer, to);
    }
}

void Pickers::pass(const SelectorLayer& layer, const SelectorChunk& chunk, Tally& tally) const {
    ChoiceIds unused(task_->choices.size());
    for (const Picker& picker : pickers_) {
        if (!picker.selector->needs().in_order) continue;
        const Stopwatch watch(picker.seconds(tally));
        pick(picker, picker.asked(layer), chunk, nullptr, nullptr, unused);
    }
}

/// `measured`, `observer`: where the chunk is measured.
void Pickers::pick(const Picker& picker, SelectorLayer layer, const SelectorChunk& chunk,
                   const MeasuredChunk* measured, Observer* observer, ChoiceIds& to) const {
    Backend& backend = task_->backend;
    const bool by_rule = picker.selector->needs().uses_rule(task_->prompt);
    const bool direct =  // nobody else wants the scores
        (picker.choices.size() == 1 || by_rule) && !task_->mean_scores && !task_->with_scores &&
        picker.selector->label() != kOracle;
    Mirror<3> scores;
    const auto make_scores = [&] {
        // The oracle's scores are P_b, which is there already.
        scores = measured != nullptr && picker.selector->label() == kOracle
                     ? measured->masses
                     : picker.selector->score(layer, chunk);
        if (task_->mean_scores) scores = share_scores(backend, scores.host());
    };
    if (!direct && !by_rule) make_scores();
    for (size_t n : picker.choices) {
        const Choice& choice = task_->choices[n];
        const size_t first = *std::ranges::find_if(picker.choices, [&](size_t other) {
            return task_->choices[other].rule == choice.rule &&
                   task_->choices[other].used == choice.used;
        });
        if (first != n) {  // another budget of as many blocks
            to[n] = copy_of(std::as_const(to[first]).view());
            continue;
        }
        layer.rule = choice.rule;
        if (!direct && by_rule) make_scores();
        to[n] = direct ? fetch(backend, picker.selector->select(layer, chunk, choice.used))
                       : experiments::pick(backend, chunk.problem, choice.used, scores.floats());
        if (task_->with_scores && observer != nullptr) observer->scored(*measured, n, scores);
    }
}

}  // namespace msa::experiments::measure
