// SPDX-License-Identifier: MIT
// The one list of cases that every operation runs on every backend.
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
/// These on cuda, and as sm80_... on cuda-sm80: both families of tuned kernels.
std::vector<HalfCase> of_both_families(const std::vector<Case>&);

/// Small enough for the reference in a sanitizer build; every edge that the contract names.
const std::vector<Case>& cases();
/// For the operations of the Main Branch: windows, soft caps and sinks.
const std::vector<Case>& own_attention_cases();

}  // namespace msa::test
