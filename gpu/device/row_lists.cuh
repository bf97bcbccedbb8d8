// SPDX-License-Identifier: MIT
// The lists of best candidates of many rows, in shared memory. One warp works on a row. There are
// two kinds of lists, with the same results. Which one is faster depends on how many other warps
// can run while one waits for its shuffles.
//
//   SortedLists    insert candidates at once: several rows together, with few shuffles
//   WaitingLists   buffer candidates until the buffer is full, then sort them together: with fewer
//                  instructions, one row after the other
//
// Both have:
//   clear(threads)             called by so many threads, all of the thread block
//   keep(row, kept)            called by one thread; the list shall keep the `kept` best candidates
//   offer(row, score, block)   called by the warp; one candidate per lane for each of some rows.
//                              Scores of -inf and NaN are no candidates. Blocks ascend from lane to
//                              lane and from call to call.
//   takes_negative(row)        called by one thread, once the warp has met after its offers:
//                              whether a negative score may still be among the best
//   whole(row, list)           called by the warp; reads the lists of some rows
#pragma once

#include "gpu/device/warp_top_k.cuh"

namespace msa::cuda {

/// Neighbouring threads write neighbouring bytes: a thread that clears a row of its own would meet
/// the banks of the others.
template <int Rows, int Kept>
__device__ void clear_keys(uint64_t (&best)[Rows][Kept], int threads) {
    for (int i = static_cast<int>(threadIdx.x); i < Rows * Kept / 2; i += threads)
        reinterpret_cast<ulonglong2*>(best)[i] = {0, 0};
}

/// Lists of `Kept` keys, 16 or 32.
template <int Rows, int Kept>
struct SortedLists {
    alignas(16) uint64_t best[Rows][Kept];  // best first; 0: none
    int kept[Rows];

    __device__ void clear(int threads) { clear_keys(best, threads); }
    __device__ void keep(int row, int wanted) { kept[row] = wanted; }
    __device__ bool takes_negative(int row) const {
        if (kept[row] == 0) return false;
        const uint64_t worst = best[row][kept[row] - 1];
        return worst == 0 || score_of_key(static_cast<uint32_t>(worst >> 32)) < 0;
    }
    template <int Places>
    __device__ void whole(int row, WarpTopK (&list)[Places]) const {
        const int lane = threadIdx.x % kWarp;
#pragma unroll
        for (int n = 0; n < Places; ++n) list[n].key = lane < Kept ? best[row + n][lane] : 0;
    }
    template <int Places>
    __device__ void offer(int row, const float (&score)[Places], int block) {
        WarpTopK list[Places];
        whole(row, list);
        uint64_t key[Places];
        uint32_t wanted[Places], any = 0;
#pragma unroll
        for (int n = 0; n < Places; ++n) {
            key[n] = candidate_key(score[n], block);
            const bool better = kept[row + n] > 0 && key[n] > list[n].threshold(kept[row + n]);
            any |= wanted[n] = __ballot_sync(kAllLanes, better);
        }
        if (any == 0) return;
        WarpTopK::offer_each(list, key, wanted);
#pragma unroll
        for (int n = 0; n < Places; ++n)
            if (static_cast<int>(threadIdx.x % kWarp) < Kept)
                best[row + n][threadIdx.x % kWarp] = list[n].key;
    }
};

/// A candidate waits if it is better than the worst of the list when that was last sorted. A row
/// that has seen n blocks lets about k of the next n wait. Since blocks ascend, a candidate with an
/// equal score is never better, so the score alone decides.
template <int Rows, int Kept>
struct WaitingLists {
    static constexpr int kMostWaiting = kWarp / 2;
    alignas(16) uint64_t best[Rows][Kept];  // best first; 0: none
    uint64_t waiting[Rows][kMostWaiting];
    float least[Rows];    // a candidate's score must be above it
    uint8_t kept[Rows];   // 1 if none is wanted; `least` then excludes all
    uint8_t count[Rows];  // of waiting candidates

    __device__ void clear(int threads) { clear_keys(best, threads); }
    __device__ void keep(int row, int wanted) {
        least[row] = wanted > 0 ? -INFINITY : INFINITY;
        kept[row] = static_cast<uint8_t>(max(wanted, 1));
        count[row] = 0;
    }
    __device__ bool takes_negative(int row) const { return least[row] < 0; }
    template <int Places>
    __device__ void whole(int row, WarpTopK (&list)[Places]) const {
        const int lane = threadIdx.x % kWarp;
        const int at = lane - (kWarp - kMostWaiting);  // the last lanes take the waiting candidates
        uint64_t key[Places];
        int any = 0;
#pragma unroll
        for (int n = 0; n < Places; ++n) {
            const int waits = count[row + n];
            any |= waits;
            list[n].key = lane < Kept ? best[row + n][lane] : 0;
            key[n] = at >= 0 && at < waits ? waiting[row + n][at] : 0;
        }
        if (any == 0) return;
        if constexpr (Kept < kWarp) {
#pragma unroll
            for (int n = 0; n < Places; ++n)
                if (at < 0) key[n] = list[n].key;
            sort_each_descending(key);
#pragma unroll
            for (int n = 0; n < Places; ++n) list[n].key = key[n];
        } else {
#pragma unroll
            for (int n = 0; n < Places; ++n)
                list[n].merge(key[n], __ballot_sync(kAllLanes, key[n] != 0));
        }
    }
    template <int Places>
    __device__ void offer(int row, const float (&score)[Places], int block) {
        const int lane = threadIdx.x % kWarp;
        uint32_t wanted[Places], any = 0;
#pragma unroll
        for (int n = 0; n < Places; ++n)
            any |= wanted[n] = __ballot_sync(kAllLanes, score[n] > least[row + n]);
        if (any == 0) return;
        uint64_t key[Places];
        int waits[Places];
#pragma unroll
        for (int n = 0; n < Places; ++n) {
            key[n] = candidate_key(score[n], block);
            waits[n] = count[row + n];
        }
#pragma unroll
        for (int n = 0; n < Places; ++n)
            if (waits[n] + __popc(wanted[n]) > kMostWaiting) {
                sort(row + n, key[n], wanted[n]);
                waits[n] = 0;
            }
        __syncwarp();  // all lanes have read the waiting candidates
#pragma unroll
        for (int n = 0; n < Places; ++n) {
            if ((wanted[n] >> lane) & 1)
                waiting[row + n][waits[n] + __popc(wanted[n] & ((1U << lane) - 1))] = key[n];
            if (lane == 0) count[row + n] = static_cast<uint8_t>(waits[n] + __popc(wanted[n]));
        }
    }

private:
    /// Sorts the row's list and its waiting candidates, and the lanes' candidates too if they are
    /// too many to wait. `wanted` becomes the set of lanes whose candidates are to wait.
    __device__ void sort(int row, uint64_t key, uint32_t& wanted) {
        WarpTopK one[1];
        whole(row, one);
        WarpTopK& list = one[0];
        const int worst = kept[row] - 1;
        wanted = __ballot_sync(kAllLanes, key > list.threshold(worst + 1));
        if (__popc(wanted) > kMostWaiting) {
            list.merge(key, wanted);
            wanted = 0;
        }
        const int lane = threadIdx.x % kWarp;
        if (lane < Kept) best[row][lane] = list.key;
        if (lane == worst) least[row] = score_of_key(static_cast<uint32_t>(list.key >> 32));
    }
};

}  // namespace msa::cuda
