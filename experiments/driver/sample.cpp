// SPDX-License-Identifier: MIT
#include "experiments/driver/sample.h"

#include <algorithm>

#include "core/random.h"

namespace msa::experiments {

std::vector<int64_t> stratified_sample(int64_t available, int64_t wanted, uint64_t seed) {
    wanted = wanted == 0 ? available : std::min(wanted, available);
    std::vector<int64_t> chosen;
    for (int64_t n = 0; n < wanted; ++n) {
        const int64_t low = available * n / wanted;
        const int64_t high = available * (n + 1) / wanted;
        chosen.push_back(low +
                         static_cast<int64_t>(mix(seed, n) % static_cast<uint64_t>(high - low)));
    }
    return chosen;
}

}  // namespace msa::experiments
