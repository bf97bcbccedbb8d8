// SPDX-License-Identifier: MIT
#include "experiments/reuse/pattern.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "experiments/driver/options.h"
#include "experiments/report/text.h"

namespace msa::experiments::reuse {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

int64_t computing(const LayerPattern& pattern) {
    return std::count(pattern.begin(), pattern.end(), true);
}

std::string missing_layers(std::span<const int64_t> numbers) {
    std::string missing;
    for (size_t t = 1; t < numbers.size(); ++t)
        if (numbers[t] - numbers[t - 1] > 1)
            add_item(missing, ", ", group_text({numbers[t - 1] + 1, numbers[t] - 1}));
    return missing;
}

std::vector<std::optional<LayerPattern>> least_loss(View<const double, 2> loss) {
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
    std::vector<std::optional<LayerPattern>> best;
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
