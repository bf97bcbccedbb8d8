// SPDX-License-Identifier: MIT
#include "experiments/fit/architecture.h"

#include <iterator>

namespace msa::experiments::fit {
namespace {

/// In the order of kArchitectures.
constexpr const FitArchitecture* kFitted[] = {&kMsa, &kDsa, &kSeerAttention, &kQsa};
static_assert(std::size(kFitted) == std::size(kArchitectures));

}  // namespace

const FitArchitecture& fitted(Architecture architecture) {
    return *kFitted[static_cast<size_t>(architecture)];
}

}  // namespace msa::experiments::fit
