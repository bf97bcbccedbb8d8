// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

namespace msa::experiments {

/// A stratified sample of `wanted` numbers from 0 to available - 1, ascending: one draw in each of
/// as many equal parts. All numbers if wanted is 0 or larger than available.
std::vector<int64_t> stratified_sample(int64_t available, int64_t wanted, uint64_t seed);

}  // namespace msa::experiments
