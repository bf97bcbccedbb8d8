// SPDX-License-Identifier: MIT
#include "experiments/reuse/pattern.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "experiments/driver/estimate.h"
#include "experiments/driver/options.h"

namespace msa::experiments::reuse {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

size_t place_of(std::span<const int64_t> numbers, int64_t number) {
    return static_cast<size_t>(std::lower_bound(numbers.begin(), numbers.end(), number) -
                               numbers.begin());
}

}  // namespace

std::vector<size_t> sources(const Pattern& pattern) {
    std::vector<size_t> of;
    for (size_t t = 0; t < pattern.size(); ++t) of.push_back(pattern[t] ? t : of.back());
    return of;
}

int64_t computing(const Pattern& pattern) {
    return std::count(pattern.begin(), pattern.end(), true);
}

Pattern every(std::span<const int64_t> numbers, int64_t step) {
    Pattern pattern;
    int64_t last = 0;
    for (size_t t = 0; t < numbers.size(); ++t) {
        pattern.push_back(t == 0 || numbers[t] - last >= step);
        if (pattern.back()) last = numbers[t];
    }
    return pattern;
}

Group parse_group(const std::string& item) {
    const size_t dash = item.find('-');
    std::vector<int64_t> ends = integer_list("groups", item.substr(0, dash));
    if (dash != std::string::npos)
        for (int64_t end : integer_list("groups", item.substr(dash + 1))) ends.push_back(end);
    require(ends.size() == (dash == std::string::npos ? 1 : 2) && ends.front() <= ends.back(),
            "--groups has '", item, "', must be a layer or FIRST-LAST, ascending");
    return {ends.front(), ends.back()};
}

std::string group_text(const Group& group) {
    return group.first == group.last ? std::to_string(group.first)
                                     : concat(group.first, "-", group.last);
}

Pattern grouped(std::span<const int64_t> numbers, const std::vector<Group>& groups) {
    Pattern pattern(numbers.size(), true);
    std::vector<int64_t> owner(numbers.size(), -1);
    for (const Group& group : groups) {
        const size_t begin = place_of(numbers, group.first);
        require(begin < numbers.size() && numbers[begin] == group.first, "--groups has ",
                group_text(group), ", whose first layer is not measured; there are: ",
                list_text({numbers.begin(), numbers.end()}));
        for (size_t t = begin; t < numbers.size() && numbers[t] <= group.last; ++t) {
            require(owner[t] < 0, "--groups has layer ", numbers[t], " in two groups, from ",
                    owner[t], " and from ", group.first);
            owner[t] = group.first;
            pattern[t] = t == begin;
        }
    }
    return pattern;
}

std::string missing_layers(std::span<const int64_t> numbers) {
    std::string missing;
    for (size_t t = 1; t < numbers.size(); ++t)
        if (numbers[t] - numbers[t - 1] > 1)
            missing +=
                (missing.empty() ? "" : ", ") + group_text({numbers[t - 1] + 1, numbers[t] - 1});
    return missing;
}

std::vector<std::optional<Pattern>> least_loss(View<const double, 2> loss) {
    const int64_t layers = loss.extent(0);
    // Of the layers before `end` with c + 1 computing ones, the last of which is last(c, end).
    Tensor<double, 2> least({layers, layers + 1});
    Tensor<int64_t, 2> last({layers, layers + 1});
    std::fill_n(least.data(), least.size(), kNever);
    for (int64_t s = 0; s < layers; ++s) {
        double of_segment = 0;
        for (int64_t end = s + 1; end <= layers; ++end) {
            of_segment += loss(s, end - 1);
            if (!(of_segment < kNever)) break;
            for (int64_t c = 0; c <= s; ++c) {
                if ((c == 0) != (s == 0)) continue;
                const double all = of_segment + (c == 0 ? 0 : least(c - 1, s));
                if (!(all < least(c, end))) continue;
                least(c, end) = all;
                last(c, end) = s;
            }
        }
    }
    std::vector<std::optional<Pattern>> best;
    for (int64_t c = 0; c < layers; ++c) {
        best.emplace_back();
        if (least(c, layers) == kNever) continue;
        best.back().emplace(static_cast<size_t>(layers), false);
        for (int64_t of = c, end = layers; end > 0; end = last(of--, end))
            best.back()->at(static_cast<size_t>(last(of, end))) = true;
    }
    return best;
}

}  // namespace msa::experiments::reuse
