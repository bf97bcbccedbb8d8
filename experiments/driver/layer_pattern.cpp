// SPDX-License-Identifier: MIT
#include "experiments/driver/layer_pattern.h"

#include <algorithm>

#include "core/error.h"
#include "experiments/driver/options.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

size_t place_of(std::span<const int64_t> numbers, int64_t number) {
    return static_cast<size_t>(std::lower_bound(numbers.begin(), numbers.end(), number) -
                               numbers.begin());
}

}  // namespace

std::vector<size_t> sources(const LayerPattern& pattern) {
    std::vector<size_t> of;
    for (size_t t = 0; t < pattern.size(); ++t) of.push_back(pattern[t] ? t : of.back());
    return of;
}

LayerPattern every(std::span<const int64_t> numbers, int64_t step) {
    LayerPattern pattern;
    int64_t last = 0;
    for (size_t t = 0; t < numbers.size(); ++t) {
        pattern.push_back(t == 0 || numbers[t] - last >= step);
        if (pattern.back()) last = numbers[t];
    }
    return pattern;
}

LayerGroup parse_group(const std::string& item) {
    const size_t dash = item.find('-');
    std::vector<int64_t> ends = integer_list("groups", item.substr(0, dash));
    if (dash != std::string::npos)
        for (int64_t end : integer_list("groups", item.substr(dash + 1))) ends.push_back(end);
    require(ends.size() == (dash == std::string::npos ? 1 : 2) && ends.front() <= ends.back(),
            "--groups has '", item, "', must be a layer or FIRST-LAST, ascending");
    return {ends.front(), ends.back()};
}

std::string group_text(const LayerGroup& group) {
    return group.first == group.last ? std::to_string(group.first)
                                     : concat(group.first, "-", group.last);
}

LayerPattern grouped(std::span<const int64_t> numbers, const std::vector<std::string>& items) {
    LayerPattern pattern(numbers.size(), true);
    std::vector<int64_t> owner(numbers.size(), -1);
    for (const std::string& item : items) {
        const LayerGroup group = parse_group(item);
        const size_t begin = place_of(numbers, group.first);
        require(begin < numbers.size() && numbers[begin] == group.first, "--groups has ",
                group_text(group),
                ", whose first layer is not among those chosen; there are: ", join(numbers));
        for (size_t t = begin; t < numbers.size() && numbers[t] <= group.last; ++t) {
            require(owner[t] < 0, "--groups has layer ", numbers[t], " in two groups, from ",
                    owner[t], " and from ", group.first);
            owner[t] = group.first;
            pattern[t] = t == begin;
        }
    }
    return pattern;
}

void add_groups(OptionTable& table, std::vector<std::string>& items, const std::string& help) {
    table.names(
        "groups", "A-B,...", items,
        [](const std::string& item) {
            parse_group(item);
            return item;
        },
        help);
}

void require_same_groups(const std::string& file, const io::LayerInfo& a, const io::LayerInfo& b) {
    require(a.kv_heads == b.kv_heads, file, ": layer ", a.layer, " has kv_heads ", a.kv_heads,
            ", layer ", b.layer, " has ", b.kv_heads,
            ": ids can be shared only where they agree; choose others with --layers");
}

}  // namespace msa::experiments
