// SPDX-License-Identifier: MIT
// A policy's family, and the inputs that it needs.
#pragma once

#include <cstdint>

namespace msa {

/// What a policy bases its choice on.
enum class Family : uint8_t {
    oracle,        // the Main Branch's own probabilities
    index_branch,  // index_q and index_k
    keys,          // the query and a summary of the keys
    queries,       // what other queries looked at
    position,      // positions, or chance
};
const char* to_string(Family);  // "oracle", "index branch", "keys", "queries", "position"

/// Prefill: every token is a query. Decode: the tokens after a prompt come one by one.
enum class Phases : uint8_t { both, prefill, decode };

/// The inputs that a policy needs.
struct PolicyNeeds {
    bool index = false;           // index_q and index_k
    bool lightning = false;       // dsa_q, dsa_k and dsa_w, or index_q and index_k instead
    bool qsa = false;             // qsa_q and qsa_k, or index_q and index_k instead
    bool gate = false;            // gate_q and gate_k, for blocks of the problem's size
    bool max_logit = false;       // SelectorChunk::max_logit
    bool queries = false;         // other tokens' queries: read_q, or the chunks before
    bool in_order = false;        // all chunks of a sequence, the first one first
    bool values = false;          // SelectorLayer::v
    bool rope = false;            // SelectorLayer::rope
    bool previous_layer = false;  // SelectorChunk::previous_mass
    bool rule = false;            // the scores depend on the budget
    bool decode_rule = false;     // they do so in the decode phase
    Phases phases = Phases::both;

    /// prompt: as in SelectorLayer.
    bool uses_rule(int64_t prompt) const { return rule || (decode_rule && prompt > 0); }
};

}  // namespace msa
