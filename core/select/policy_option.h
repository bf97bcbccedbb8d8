// SPDX-License-Identifier: MIT
// Options of a policy: "sparq:rank=16" is a policy with an option.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace msa {

class Policy;

/// A numeric option of a policy.
struct PolicyOption {
    std::string_view name, help;
    std::variant<int64_t*, double*> value;  // holds the default until it is set
    double low, high;                       // bounds, both allowed
};

/// "rank=0, bits=4": the current options of a policy; empty if it has none.
std::string options_text(Policy&);
/// The name in a label: "sparq" of "sparq:rank=16".
std::string_view name_of_label(std::string_view label);

}  // namespace msa
