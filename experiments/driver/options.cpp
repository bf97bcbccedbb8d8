// SPDX-License-Identifier: MIT
#include "experiments/driver/options.h"

#include <algorithm>
#include <iostream>
#include <sstream>

namespace msa::experiments {

std::optional<int64_t> count_of(std::string_view word) {
    int shift = 0;
    if (!word.empty()) {
        if (word.back() == 'K' || word.back() == 'k') shift = 10;
        if (word.back() == 'M') shift = 20;
        if (shift > 0) word.remove_suffix(1);
    }
    const auto value = number_of<int64_t>(word);
    if (!value || *value > (INT64_MAX >> shift) || *value < -(INT64_MAX >> shift))
        return std::nullopt;
    return *value * (int64_t{1} << shift);
}

std::optional<Range> range_of(const std::string& word) {
    const size_t colon = word.find(':');
    if (colon == std::string::npos) return std::nullopt;
    const std::string left = word.substr(0, colon), right = word.substr(colon + 1);
    const Range range{count_of(left), count_of(right)};
    if ((!left.empty() && !range.begin) || (!right.empty() && !range.end)) return std::nullopt;
    return range;
}

std::ostream& operator<<(std::ostream& out, const Range& range) {
    if (range.begin) out << *range.begin;
    out << ':';
    if (range.end) out << *range.end;
    return out;
}

std::vector<std::string> split_list(const std::string& option, const std::string& list) {
    std::vector<std::string> items;
    std::istringstream stream(list);
    for (std::string item; std::getline(stream, item, ',');) {
        require(!item.empty(), "--", option, " is '", list, "', it has an empty item");
        items.push_back(item);
    }
    require(!items.empty() && list.back() != ',', "--", option, " is '", list,
            "', it has an empty item");
    return items;
}

std::vector<int64_t> integer_list(const std::string& option, const std::string& list) {
    std::vector<int64_t> numbers;
    for (const std::string& item : split_list(option, list)) {
        const std::optional<int64_t> number = count_of(item);
        require(number.has_value(), "--", option, " is '", list, "', '", item, "' is no integer");
        numbers.push_back(*number);
    }
    return numbers;
}

std::string ranges_text(const std::vector<Range>& ranges) {
    std::string all;
    for (const Range& range : ranges) all += (all.empty() ? "" : ",") + concat(range);
    return all;
}

bool given(std::span<const std::string> args, const std::string& option) {
    return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
        return arg == "--" + option || arg.rfind("--" + option + "=", 0) == 0;
    });
}

std::string join(const std::vector<std::string>& words, const char* between) {
    std::string joined;
    for (const std::string& word : words) joined += (joined.empty() ? "" : between) + word;
    return joined;
}

size_t choice(const std::string& option, const std::string& value,
              const std::vector<std::string>& known) {
    const auto at = std::find(known.begin(), known.end(), value);
    require(at != known.end(), "--", option, " is '", value, "', must be one of: ", join(known));
    return static_cast<size_t>(at - known.begin());
}

std::optional<Element> element_option(const std::string& option, const std::string& value,
                                      const std::vector<Element>& known) {
    if (value.empty()) return std::nullopt;
    std::vector<std::string> names;
    for (Element element : known) names.emplace_back(to_string(element));
    return known[choice(option, value, names)];
}

void check_option(const std::string& option, int64_t value, int64_t low, int64_t high) {
    require(low <= value && value <= high, "--", option, " is ", value, ", must be from ", low,
            " to ", high);
}

void check_at_least(const std::string& option, int64_t value, int64_t low) {
    require(value >= low, "--", option, " is ", value, ", must be at least ", low);
}

void check_folder(const std::string& option, const std::filesystem::path& folder) {
    std::filesystem::path there = folder;
    while (!there.empty() && !std::filesystem::exists(there)) there = there.parent_path();
    require(there.empty() || std::filesystem::is_directory(there), "--", option, " is ",
            folder.string(), ", but ", there.string(), " is a file, not a folder");
}

}  // namespace msa::experiments
