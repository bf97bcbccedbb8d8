// SPDX-License-Identifier: MIT
// The one list of cases of the operations. Tags say which tests a case is for.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "core/problem.h"
#include "core/selection.h"

namespace msa::test {

/// What the operands hold.
enum class Values : uint8_t {
    normal,   // q, k, v, index_q, index_k standard normal
    equal,    // all queries and keys alike: every score ties
    extreme,  // normal, queries times 1e4: softmax is one-hot, exponents would overflow
    rising,   // every logit is 3 nats above that of the key before it
    ternary,  // -1, 0 and 1: products are exact, and many of them tie
};

struct Case {
    std::string name;
    Problem problem;
    SelectionRule rule;
    Values values = Values::normal;
    bool sinks = false;  // standard normal
};
std::ostream& operator<<(std::ostream&, const Case&);

/// A case in one of the types of 16 bits that tuned kernels take.
struct HalfCase : Case {
    Element element = Element::bf16;
    std::string backend = "cuda";
};
/// Every case in bf16 by its own name, and in f16 as f16_name.
std::vector<HalfCase> in_half_types(const std::vector<Case>&);
/// These on cuda, and as sm80_... and sm86_... on the backends of these names.
std::vector<HalfCase> of_all_families(const std::vector<Case>&);

struct Sizes {
    int64_t query_heads, kv_heads, head_dim, index_dim, block_size;
};
/// For a test that has a case of its own.
Case make_case(std::string name, const Sizes&, std::vector<int64_t> cu_seqlens_q,
               std::vector<int64_t> cu_seqlens_k, const SelectionRule&);

/// A set of tags.
using Tags = uint16_t;
inline constexpr Tags kTruth = 1,  // every operation on every backend
    kOwnAttention = 2,             // the Main Branch's operations: windows, soft caps and sinks
    kTuned = 4,                    // kernels tuned for one GPU generation answer
    kGradient = 8,                 // sparse_attention_grad of such kernels
    kKl = 16,                      // index_kl of such kernels
    kE4m3 = 32,                    // such kernels for operands in e4m3
    kGroupSizes = 64,              // such kernels for groups of 1 to 71 heads
    kManyTiles = 128,              // more tiles than a GPU has at work at once
    kUnions = 256;                 // unions of 1 to 9 blocks

/// Those with any of the tags, in the list's order. A tag has a name once.
std::vector<Case> cases(Tags any = kTruth);

}  // namespace msa::test
