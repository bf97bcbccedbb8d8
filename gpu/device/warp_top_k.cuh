// SPDX-License-Identifier: MIT
// The best 32 of a stream of (score, block) candidates, held by one warp in registers.
#pragma once

#include <cstdint>

#include "gpu/device/ordered.cuh"
#include "gpu/device/warp.cuh"

namespace msa::cuda {

/// A candidate as one number: higher is better, and of equal scores the lower block is better. 0 is
/// no candidate; -inf and NaN give 0. -0 equals +0.
__device__ inline uint64_t candidate_key(float score, int32_t block) {
    if (!(score > -INFINITY)) return 0;
    return (uint64_t{ordered_key(score)} << 32) | static_cast<uint32_t>(~block);
}
__device__ inline int32_t block_of(uint64_t key) {
    return static_cast<int32_t>(~static_cast<uint32_t>(key));
}

/// Sorts one value per lane in descending order over the warp (bitonic network). Sorts each of
/// Count lists so; their shuffles do not wait for each other. With `Merge`, the values must already
/// be bitonic: first rising, then falling, or the reverse.
template <bool Merge = false, int Count, typename Key>
__device__ inline void sort_each_descending(Key (&mine)[Count]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int run = Merge ? kWarp : 2; run <= kWarp; run *= 2) {
#pragma unroll
        for (int step = run / 2; step > 0; step /= 2) {
            const bool keep_larger = ((lane & step) == 0) == ((lane & run) == 0 || run == kWarp);
            Key other[Count];
#pragma unroll
            for (int n = 0; n < Count; ++n) other[n] = __shfl_xor_sync(kAllLanes, mine[n], step);
#pragma unroll
            for (int n = 0; n < Count; ++n)
                mine[n] = (mine[n] > other[n]) == keep_larger ? mine[n] : other[n];
        }
    }
}
template <bool Merge = false, typename Key>
__device__ inline Key sort_descending(Key mine) {
    Key one[1]{mine};
    sort_each_descending<Merge>(one);
    return one[0];
}

/// Lane i holds the i-th best key so far.
struct WarpTopK {
    uint64_t key = 0;

    /// Key that a candidate must exceed to be among the best k.
    __device__ uint64_t threshold(int k) const { return __shfl_sync(kAllLanes, key, k - 1); }

    /// Offers one candidate per lane; `wanted` has the bits of the lanes that hold one.
    __device__ void offer(uint64_t candidate, uint32_t wanted) {
        WarpTopK one[1]{*this};
        offer_each(one, {candidate}, {wanted});
        *this = one[0];
    }

    /// The same for several lists, whose shuffles do not wait for each other.
    template <int Lists>
    static __device__ void offer_each(WarpTopK (&lists)[Lists], const uint64_t (&candidate)[Lists],
                                      const uint32_t (&wanted)[Lists]) {
        constexpr int kSortPays = 10;
        uint32_t rest[Lists], sorted[Lists], any = 0, any_sorted = 0;
#pragma unroll
        for (int n = 0; n < Lists; ++n) {
            const bool sorts = __popc(wanted[n]) > kSortPays;
            any |= rest[n] = sorts ? 0 : wanted[n];
            any_sorted |= sorted[n] = sorts ? wanted[n] : 0;
        }
        if (any_sorted != 0) merge_each(lists, candidate, sorted);
        while (any != 0) {
            any = 0;
#pragma unroll
            for (int n = 0; n < Lists; ++n) {
                const uint64_t next = __shfl_sync(kAllLanes, candidate[n], __ffs(rest[n]) - 1);
                lists[n].insert(rest[n] != 0 ? next : 0);
                any |= rest[n] &= rest[n] - 1;
            }
        }
    }

    /// Like insert() for many candidates: sorts them and merges the two lists.
    __device__ void merge(uint64_t candidate, uint32_t wanted) {
        WarpTopK one[1]{*this};
        merge_each(one, {candidate}, {wanted});
        *this = one[0];
    }

    /// The same for several lists, whose shuffles do not wait for each other. A list without wanted
    /// candidates stays as it is.
    template <int Lists>
    static __device__ void merge_each(WarpTopK (&lists)[Lists], const uint64_t (&candidate)[Lists],
                                      const uint32_t (&wanted)[Lists]) {
        const int lane = threadIdx.x % kWarp;
        uint64_t sorted[Lists];
        bool any = false;
#pragma unroll
        for (int n = 0; n < Lists; ++n) {
            sorted[n] = (wanted[n] >> lane) & 1 ? candidate[n] : 0;
            any |= lists[n].key != 0;
        }
        sort_each_descending(sorted);
        if (__ballot_sync(kAllLanes, any) != 0) {
#pragma unroll
            for (int n = 0; n < Lists; ++n) {
                const uint64_t reversed = __shfl_sync(kAllLanes, sorted[n], kWarp - 1 - lane);
                sorted[n] = lists[n].key > reversed ? lists[n].key : reversed;
            }
            sort_each_descending<true>(sorted);
        }
#pragma unroll
        for (int n = 0; n < Lists; ++n) lists[n].key = sorted[n];
    }

    __device__ void insert(uint64_t candidate) {
        const uint64_t above = __shfl_up_sync(kAllLanes, key, 1);
        if (key >= candidate) return;
        key = threadIdx.x % kWarp == 0 || above >= candidate ? candidate : above;
    }
};

/// The ids of one row, one per lane, not yet sorted: the best blocks of the list and the forced
/// ones, at most k <= 32; INT32_MAX in the other lanes.
__device__ inline int32_t unsorted_id(const WarpTopK& list, int k, int visible, int forced_first,
                                      int forced_local) {
    const int lane = threadIdx.x % kWarp;
    const int first = min(forced_first, visible);
    const int local = min(forced_local, visible - first);
    const int kept = min(k - first - local, __popc(__ballot_sync(kAllLanes, list.key != 0)));
    // Lanes: the list, then the oldest forced, then the newest.
    int32_t id = block_of(list.key);
    if (lane >= kept) id = lane - kept;
    if (lane >= kept + first) id = visible - local + (lane - kept - first);
    return lane >= kept + first + local ? INT32_MAX : id;
}

/// Writes the ids of some rows, ascending and padded with -1 to k. Skips rows whose `ids` is null.
template <int Rows>
__device__ inline void write_ids(const int32_t (&unsorted)[Rows], int k,
                                 int32_t* const (&ids)[Rows]) {
    const int lane = threadIdx.x % kWarp;
    int32_t id[Rows];
#pragma unroll
    for (int n = 0; n < Rows; ++n) id[n] = -unsorted[n];
    sort_each_descending(id);
#pragma unroll
    for (int n = 0; n < Rows; ++n)
        if (lane < k && ids[n] != nullptr) ids[n][lane] = id[n] == -INT32_MAX ? -1 : -id[n];
}
/// The same for one row's list.
__device__ inline void write_ids(const WarpTopK& list, int k, int visible, int forced_first,
                                 int forced_local, int32_t* ids) {
    write_ids<1>({unsorted_id(list, k, visible, forced_first, forced_local)}, k, {ids});
}

}  // namespace msa::cuda
