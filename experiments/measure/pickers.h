// SPDX-License-Identifier: MIT
// The selectors that pick the ids of the choices at a block size.
#pragma once

#include <memory>
#include <vector>

#include "core/select/selector.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::measure {

/// The ids [Nq, Hkv, k] of a chunk, at the places of the task's choices.
using ChoiceIds = std::vector<Tensor<int32_t, 3>>;

class Pickers {
public:
    Pickers() = default;
    /// `choices`: numbers of the task's choices. Those that a selector picks get one.
    Pickers(const Task&, const std::vector<size_t>& choices);

    /// Whether a selector has to see every query of a sequence in order.
    bool in_order() const;
    /// Whether a selector needs dense logits.
    bool need_logits() const;
    /// Called before the first chunk of a view of the layer. Adds the seconds to the tally.
    void prepare(const SelectorLayer&, Tally&) const;
    /// Picks for a chunk of queries.
    void pick(const SelectorLayer&, const MeasuredChunk&, Observer&, Tally&, ChoiceIds& to) const;
    /// Shows the selectors that need every query in order a chunk that is not measured.
    void pass(const SelectorLayer&, const SelectorChunk&, Tally&) const;

private:
    /// A selector, and the choices of its name.
    struct Picker {
        std::unique_ptr<Selector> selector;
        std::vector<size_t> choices = {};
        std::vector<SelectionRule> rules = {};  // asked for, distinct

        double& seconds(Tally& to) const { return to.seconds[selector->label()].select; }
        SelectorLayer asked(SelectorLayer layer) const {
            layer.rule = rules.front();
            layer.rules = rules;
            return layer;
        }
    };
    void pick(const Picker&, SelectorLayer, const SelectorChunk&, const MeasuredChunk*, Observer*,
              ChoiceIds& to) const;

    const Task* task_ = nullptr;
    std::vector<Picker> pickers_ = {};
};

/// Attends over the ids of `choices`, which are some of the task's, checks them, and adds to the
/// tally what they keep of dense attention (measure() says which sums).
void add_choices(const Task&, const std::vector<size_t>& choices, const MeasuredChunk&,
                 const ChoiceIds& ids, Observer&, Tally& to);

}  // namespace msa::experiments::measure
