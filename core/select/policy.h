// SPDX-License-Identifier: MIT
// The base of all policies, which keep blocks (selector.h) or single tokens (token_selector.h):
// name, rule with its source, needed inputs, and cost.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/mirror.h"
#include "core/rope.h"
#include "core/select/learned_operands.h"
#include "core/select/needs.h"
#include "core/select/policy_option.h"
#include "core/selection.h"

namespace msa {

/// FLOPs of a policy's scores (a multiply-add is 2), and bytes of keys or their summaries that it
/// reads, in 2-byte elements.
struct PolicyCost {
    double flops = 0, bytes = 0;
};

/// The queries that a policy decides for, sampled or not.
struct Phase {
    const Problem& problem;
    int64_t prompt = 0;  // as in SelectorLayer
    LearnedSizes learned = {};
};

/// One layer, shared by all its chunks of queries.
struct SelectorLayer {
    const Problem& problem;  // of the whole layer
    Backend& backend;
    Mirror<3> k;             // [Nk, Hkv, dh]
    Mirror<2> index_k = {};  // [Nk, didx]; absent without an Index Branch
    Mirror<3> v = {};        // [Nk, Hkv, dh], where needs().values
    uint64_t seed = 0;
    int64_t number = 0;                         // of the layer in the model
    SelectionRule rule = {};                    // to score for, if needs().uses_rule
    std::span<const SelectionRule> rules = {};  // all of the run, likewise; empty: `rule` alone
    /// q [n, Hq, dh] of any packed tokens (ascending), if needs().queries.
    std::function<Mirror<3>(std::span<const int64_t>)> read_q = {};
    LearnedSizes learned = {};
    ReadLearned read_learned = {};  // where `learned` has sizes
    /// Decode phase: tokens of each sequence before its queries. 0: prefill phase.
    int64_t prompt = 0;
    /// Packed tokens (ascending) of the queries that averages count. A policy that spends its
    /// budget unevenly keeps it on these. Empty: all queries of the phase.
    std::span<const int64_t> counted = {};
    RopePairs rope = {};  // of q and k, where needs().rope
    /// [Hq] of AttentionInput, in the backend's space; absent: none.
    View<const float, 1> sinks = {};

    std::span<const SelectionRule> all_rules() const {
        return rules.empty() ? std::span<const SelectionRule>(&rule, 1) : rules;
    }
};

/// One chunk of the layer's queries. Values are computed for the first policy that asks and kept
/// for the others.
class SelectorChunk {
public:
    /// `with_logits`: computes max_logit together with mass. `previous`: mass of the previous
    /// layer, if a policy needs it.
    SelectorChunk(const SelectorLayer& layer, const Problem& problem,
                  std::span<const int64_t> tokens, Mirror<3> q, Mirror<3> index_q = {},
                  bool with_logits = false, std::function<Mirror<3>()> previous = {});

    const Problem& problem;           // Nq queries of the layer
    std::span<const int64_t> tokens;  // [Nq] packed token of each query
    Mirror<3> q;                      // [Nq, Hq, dh]
    Mirror<3> index_q;                // [Nq, Hkv, didx]; absent without an Index Branch

    const Mirror<3>& mass() const;           // [Nq, Hkv, B] P_b of Backend::block_mass
    const Mirror<3>& max_logit() const;      // [Nq, Hkv, B]
    const Mirror<3>& previous_mass() const;  // [Nq, Hkv, B] P_b of the layer before

private:
    void compute(bool logits) const;

    Backend& backend_;
    Mirror<3> k_;
    View<const float, 1> sinks_;
    bool with_logits_;
    std::function<Mirror<3>()> make_previous_;
    mutable Mirror<3> mass_, max_logit_, previous_;
};

class Policy {
public:
    using Needs = PolicyNeeds;

    Policy() = default;
    Policy(const Policy&) = delete;
    Policy& operator=(const Policy&) = delete;
    virtual ~Policy() = default;

    /// The name that users type, and its aliases.
    virtual std::string_view name() const = 0;
    virtual std::vector<std::string_view> other_names() const { return {}; }
    /// The policy's options. They must be set before any other call.
    virtual std::vector<PolicyOption> options() { return {}; }
    /// Sets the options from "rank=16:bits=4". InputError naming the existing options if one is
    /// unknown.
    void configure(std::string_view options);
    /// "sparq:rank=16": the name, and the options that differ from their defaults.
    std::string label() const { return label_.empty() ? std::string(name()) : label_; }
    /// The rule in one sentence, with its source. Numbers in it are the defaults of options.
    virtual std::string_view rule() const = 0;
    /// The same, with the options that differ from their defaults.
    std::string rule_in_full() const;
    /// How this form or its cost differs from the source's: one sentence without a full stop.
    virtual std::string_view note() const { return ""; }
    virtual Family family() const = 0;
    virtual Needs needs() const { return {}; }
    /// The cost of deciding for all queries of the phase. Each query is charged as if it came alone
    /// (decode); a decision made once for several queries is charged once. Not counted: sums over
    /// blocks, top-k, and what is kept from one query to the next. Nothing where an indexer's ids
    /// are those of another layer.
    PolicyCost cost(const Phase& phase) const {
        return takes_ids(phase.learned) ? PolicyCost{} : do_cost(phase);
    }
    /// Whether in a layer with these operands the policy's ids are those of another layer.
    bool takes_ids(const LearnedSizes& learned) const {
        return family() == Family::index_branch && learned.source;
    }
    /// Called once per layer, before its chunks. Computes what all rules have in common.
    virtual void prepare(const SelectorLayer&) {}

private:
    virtual PolicyCost do_cost(const Phase&) const = 0;

    std::string label_;  // empty: the name
};

}  // namespace msa
