// SPDX-License-Identifier: MIT
// Selectors: policies that rank the key blocks of every query and group. A selector gives scores;
// Backend::select_blocks turns them into ids, so that all selectors share budget, forced blocks and
// tie rule. Queries come in chunks (Problem::with_queries) against all keys of the layer, in order.
// Each policy's rule, source and differences from it: core/select/README.md.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
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
    SelectionRule rule = {};  // of the blocks to be kept, where needs() asks for it
    /// q [n, Hq, dh] of any packed tokens (ascending), on the host, where needs() asks for it.
    std::function<Tensor<float, 3>(std::span<const int64_t>)> read_q = {};
    /// Decode phase: tokens of each sequence that were there before its analysed queries, which are
    /// decoded one by one. 0: prefill phase.
    int64_t prompt = 0;
};

/// One chunk of its queries.
struct SelectorChunk {
    const Problem& problem;                   // Nq queries of the layer
    std::span<const int64_t> tokens;          // [Nq] packed token index of each query
    View<const float, 3> q;                   // [Nq, Hq, dh]
    In<3> index_q;                            // [Nq, Hkv, didx] in the backend's space
    View<const float, 3> mass, max_logit;     // [Nq, Hkv, B], where needs() asks for them
    View<const float, 3> previous_mass = {};  // the same of the layer before, likewise
};

class Selector {
public:
    /// What must be present in the layer and its chunks.
    struct Needs {
        bool index = false, mass = false, max_logit = false;
        bool queries = false;        // of other tokens: read_q, or the chunks before
        bool previous_mass = false;  // of another layer
        bool rule = false;           // the scores depend on the budget
        bool prefill = false;        // says nothing of the decode phase
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
    /// The selection rule that this policy makes of the one asked for; the budget k stays, but for
    /// policies that spend it unevenly over the queries (kUneven).
    virtual SelectionRule adjust(SelectionRule asked) const { return asked; }
};

/// top_k of a policy whose scores decide how many blocks a query keeps: all above -inf. The mean is
/// the budget.
inline constexpr int64_t kUneven = std::numeric_limits<int64_t>::max();

/// `asked`, with at least so many oldest and newest blocks forced as fit into its budget.
SelectionRule force(SelectionRule asked, int64_t first, int64_t local);

/// Throws InputError naming the known selectors. "moba" is another name of mean-key, "a-shape" of
/// window.
std::unique_ptr<Selector> make_selector(std::string_view name);
/// All names, in the order of the documentation.
std::vector<std::string> list_selectors();
/// Those that score a query from itself and its keys alone, so that any queries may be left out.
std::vector<std::string> list_pointwise_selectors();

std::unique_ptr<Selector> make_index_selector();
std::unique_ptr<Selector> make_oracle_selector();
std::unique_ptr<Selector> make_oracle_logit_selector();
std::unique_ptr<Selector> make_top_p_selector();
std::unique_ptr<Selector> make_mean_key_selector();
std::unique_ptr<Selector> make_quest_selector();
std::unique_ptr<Selector> make_nsa_selector();
std::unique_ptr<Selector> make_infllm_v2_selector();
std::unique_ptr<Selector> make_infllm_selector();
std::unique_ptr<Selector> make_dsa_selector();
std::unique_ptr<Selector> make_minference_selector();
std::unique_ptr<Selector> make_minference_vertical_slash_selector();
std::unique_ptr<Selector> make_minference_block_sparse_selector();
std::unique_ptr<Selector> make_flexprefill_selector();
std::unique_ptr<Selector> make_snapkv_selector();
std::unique_ptr<Selector> make_h2o_selector();
std::unique_ptr<Selector> make_h2o_oracle_selector();
std::unique_ptr<Selector> make_previous_layer_selector();
std::unique_ptr<Selector> make_random_selector();
std::unique_ptr<Selector> make_window_selector();

}  // namespace msa
