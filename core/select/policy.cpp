// SPDX-License-Identifier: MIT
#include "core/select/policy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "core/error.h"

namespace msa {
namespace {

std::string number_of(double value) {
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.data(), digits.data() + 32, value).ptr};
}

std::string value_of(const PolicyOption& option) {
    const int64_t* const* whole = std::get_if<int64_t*>(&option.value);
    return whole ? std::to_string(**whole) : number_of(**std::get_if<double*>(&option.value));
}

/// False where `text` is no number of the kind and between the bounds of the option.
bool set_value(const PolicyOption& option, std::string_view text) {
    return std::visit(
        [&](auto* to) {
            auto read = *to;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read);
            const auto value = static_cast<double>(read);
            if (error != std::errc() || end != text.data() + text.size() ||
                !(value >= option.low && value <= option.high))
                return false;
            *to = read;
            return true;
        },
        option.value);
}

/// "rank=0, bits=4", or "none".
std::string known_options(Policy& policy) {
    const std::string known = options_text(policy);
    return known.empty() ? "none" : known;
}

}  // namespace

void Policy::configure(std::string_view options) {
    const std::vector<PolicyOption> mine = this->options();
    const std::string known = known_options(*this);
    std::vector<std::string> defaults;
    for (const PolicyOption& option : mine) defaults.push_back(value_of(option));
    std::vector<bool> set(mine.size(), false);
    while (true) {
        const std::string_view one = options.substr(0, options.find(':'));
        const size_t equals = std::min(one.find('='), one.size());
        const auto at = std::find_if(mine.begin(), mine.end(), [&](const PolicyOption& option) {
            return option.name == one.substr(0, equals);
        });
        require(at != mine.end(), name(), " has no option '", one.substr(0, equals),
                "'; its options and their defaults: ", known);
        const auto n = static_cast<size_t>(at - mine.begin());
        require(!set[n], name(), " has the option '", at->name, "' twice");
        set[n] = true;
        const std::string_view value =
            equals < one.size() ? one.substr(equals + 1) : std::string_view();
        require(set_value(*at, value), name(), " has ", at->name, "='", value, "', must be ",
                std::holds_alternative<int64_t*>(at->value) ? "an integer" : "a number", " from ",
                number_of(at->low), " to ", number_of(at->high), " (", at->help, ")");
        if (one.size() == options.size()) break;
        options.remove_prefix(one.size() + 1);
    }
    label_ = name();
    for (size_t n = 0; n < mine.size(); ++n)
        if (const std::string value = value_of(mine[n]); value != defaults[n])
            label_ += concat(":", mine[n].name, "=", value);
}

std::string Policy::rule_in_full() const {
    std::string full(rule());
    if (!label_.empty() && label_ != name()) full += "; with " + label_.substr(name().size() + 1);
    return full;
}

std::string options_text(Policy& policy) {
    std::string all;
    for (const PolicyOption& option : policy.options())
        all += concat(all.empty() ? "" : ", ", option.name, "=", value_of(option));
    return all;
}

std::string_view name_of_label(std::string_view label) { return label.substr(0, label.find(':')); }

}  // namespace msa
