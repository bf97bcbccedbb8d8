// SPDX-License-Identifier: MIT
#include "experiments/driver/estimate.h"

#include "experiments/driver/run.h"
#include "experiments/driver/table.h"

namespace msa::experiments {
namespace {

constexpr int kDecimals = 4;

}  // namespace

std::string text_of(const analysis::Estimate& estimate) {
    return fixed_text(estimate.value, kDecimals) + " [" + fixed_text(estimate.low, kDecimals) +
           ", " + fixed_text(estimate.high, kDecimals) + "]";
}

std::string time_text(double seconds) {
    return seconds < kMilli ? number_text(seconds / kMicro) + " us"
                            : number_text(seconds / kMilli) + " ms";
}

std::string list_text(const std::vector<int64_t>& numbers) {
    std::string all;
    for (int64_t number : numbers) all += concat(all.empty() ? "" : ", ", number);
    return all;
}

std::string layers_text(const std::vector<int64_t>& layers) {
    return concat(layers.size() == 1 ? "layer " : "layers ", list_text(layers));
}

}  // namespace msa::experiments
