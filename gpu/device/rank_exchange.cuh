// SPDX-License-Identifier: MIT
// Words that GPUs write into each other's memory. A word has 8 bytes of data and, twice, the number
// of its round. The two numbers tell the reader that both halves have arrived, so no other flag is
// needed (the LL protocol of NCCL).
#pragma once

#include "gpu/kernels/rank_exchange.h"

namespace msa::cuda {

/// The index of a word in the inbox of the rank that receives it.
__device__ inline int64_t word_at(const RankExchange& x, uint32_t round, int from, int message,
                                  int word) {
    return ((int64_t{static_cast<int>(round % 2)} * x.ranks + from) * x.messages + message) *
               x.words +
           word;
}

__device__ inline void put_word(uint4* to, uint32_t low, uint32_t high, uint32_t round) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(low),
                 "r"(round), "r"(high), "r"(round)
                 : "memory");
}

/// Waits for the word. If it does not come, its sender has failed, and the kernel traps after some
/// seconds.
__device__ inline uint2 take_word(const uint4* from, uint32_t round) {
    constexpr int kMostPolls = 1 << 23;
    uint4 word{};
    for (int poll = 0; word.y != round || word.w != round; ++poll) {
        if (poll == kMostPolls) asm volatile("trap;");
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                     : "l"(from)
                     : "memory");
    }
    return {word.x, word.z};
}

}  // namespace msa::cuda
