// SPDX-License-Identifier: MIT
// Selectors: policies that rank the key blocks of every query and group. A selector gives scores;
// Backend::select_blocks turns them into ids, so that all selectors share budget, forced blocks and
// tie rule. Queries come in chunks (Problem::with_queries) against all keys of the layer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend.h"

namespace msa {

/// One layer's keys, the same for all its chunks. Host memory unless said otherwise.
struct SelectorLayer {
    const Problem& problem;  // of the whole layer
    View<const float, 3> k;  // [Nk, Hkv, dh]
    Backend& backend;
    In<2> index_k;  // [Nk, didx] in the backend's space; absent without an Index Branch
    uint64_t seed = 0;
};

/// One chunk of its queries.
struct SelectorChunk {
    const Problem& problem;                // Nq queries of the layer
    std::span<const int64_t> tokens;       // [Nq] packed token index of each query
    View<const float, 3> q;                // [Nq, Hq, dh]
    In<3> index_q;                         // [Nq, Hkv, didx] in the backend's space
    View<const float, 3> mass, max_logit;  // [Nq, Hkv, B], where needs() asks for them
};

class Selector {
public:
    /// What must be present in the layer and its chunks.
    struct Needs {
        bool index = false, mass = false, max_logit = false;
    };

    virtual ~Selector() = default;
    virtual std::string_view name() const = 0;
    /// The rule in one sentence, with its source.
    virtual std::string_view rule() const = 0;
    virtual Needs needs() const { return {}; }
    /// Called once per layer, before its chunks: what depends on the keys alone goes here.
    virtual void prepare(const SelectorLayer&) {}
    /// scores [Nq, Hkv, B] on the host: higher is kept first, -inf is no candidate. Only blocks
    /// that a query sees are read.
    virtual void score(const SelectorLayer&, const SelectorChunk&, View<float, 3> scores) = 0;
    /// The selection rule that this policy makes of the one asked for; the budget k stays.
    virtual SelectionRule adjust(SelectionRule asked) const { return asked; }
};

/// Throws InputError naming the known selectors.
std::unique_ptr<Selector> make_selector(std::string_view name);
/// All names, in the order of the documentation.
std::vector<std::string> list_selectors();

std::unique_ptr<Selector> make_index_selector();
std::unique_ptr<Selector> make_oracle_selector();
std::unique_ptr<Selector> make_oracle_logit_selector();
std::unique_ptr<Selector> make_mean_key_selector();
std::unique_ptr<Selector> make_random_selector();
std::unique_ptr<Selector> make_window_selector();

}  // namespace msa
