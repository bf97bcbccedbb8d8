// SPDX-License-Identifier: MIT
// What users may set of a policy: "sparq:rank=16" names it with an option.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace msa {

class Policy;

/// A number of a policy that users may set.
struct PolicyOption {
    std::string_view name, help;
    std::variant<int64_t*, double*> value;  // its default until it is set
    double low, high;                       // both allowed
};

/// "rank=0, bits=4": the options of a policy as they stand; empty where it has none.
std::string options_text(Policy&);
/// The name in front of the options of a label: "sparq" of "sparq:rank=16".
std::string_view name_of_label(std::string_view label);

}  // namespace msa
