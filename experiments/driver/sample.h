// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

namespace msa::experiments {

/// `wanted` of the numbers from 0 to available - 1, ascending: a stratified sample, one draw in
/// each of as many equal parts. All of them when wanted is 0 or more than there are.
std::vector<int64_t> stratified_sample(int64_t available, int64_t wanted, uint64_t seed);

}  // namespace msa::experiments
