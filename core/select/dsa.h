// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "core/select/selector.h"

namespace msa {

/// The lightning indexer's token scores, with the heads of index_q weighted alike.
class LightningKeys {
public:
    explicit LightningKeys(const SelectorLayer&);
    /// I [count] = sum over heads of max(0, index_q . index_k), for index_q [Hkv, didx] of one
    /// query that sees `count` keys.
    std::vector<float> scores(View<const float, 2> index_q, int64_t sequence, int64_t count) const;

private:
    int64_t dims_;
    std::vector<Tensor<float, 1>> panels_;  // [S] packed for cpu::multiply
};

}  // namespace msa
