// SPDX-License-Identifier: MIT
// Exchange between kernels of several GPUs within a decode step: each GPU has an inbox in its own
// memory, into which the others write.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/packed_batch.h"
#include "gpu/kernels/device_rule.h"

namespace msa::cuda {

constexpr int kMostRanks = 8;

/// Messages of one kind, with `words` words of 16 bytes each. A step is a round. Consecutive rounds
/// use separate buffers, because a rank may be one round ahead of another.
struct RankExchange {
    int rank = 0, ranks = 0;
    int messages = 0, words = 0;    // of one rank and round
    uint4* inbox[kMostRanks] = {};  // of each rank: [2, ranks, messages, words], zeros at first
    uint32_t* rounds = nullptr;     // [messages] of this rank, rounds so far

    static int64_t bytes(int ranks, int messages, int words) {
        return int64_t{2} * ranks * messages * words * int64_t{sizeof(uint4)};
    }
};

/// For index_select on divided keys: its lists go to all ranks, and each picks the best of all. A
/// message is a row's list, a word one entry of it.
struct CandidateExchange : RankExchange {
    int first_block = 0, blocks = 0;    // the rank's part of the sequence
    DeviceRule rule{SelectionRule{}};   // of the whole sequence; the call has the part's
    const KeyRange* visible = nullptr;  // [Nq] of the whole sequence
    int32_t* own_ids = nullptr;         // [Nq, Hkv, k] the picked blocks that lie in the part
};

}  // namespace msa::cuda
