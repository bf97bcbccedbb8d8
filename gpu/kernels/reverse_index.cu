// SPDX-License-Identifier: MIT
#include <cub/device/device_radix_sort.cuh>

#include "core/selection.h"
#include "gpu/kernels/reverse_index.h"
#include "gpu/layout.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); }

/// A thread block per tile of queries: the list of each (query, group, slot), and of it query *
/// kept + slot % kept, where `kept` is k, or 1 without slots. The list is that behind the last
/// where the slot is empty.
__global__ void __launch_bounds__(kThreads)
    list_uses(const QueryTile* tiles, const int32_t* ids, int groups, int top_k, int all_blocks,
              int kept, int32_t* lists, int32_t* uses) {
    const QueryTile tile = tiles[blockIdx.x];
    const int64_t row = int64_t{groups} * top_k, first = tile.query * row;
    for (int64_t i = threadIdx.x; i < tile.queries * row; i += kThreads) {
        const int32_t id = ids[first + i];
        const auto group = static_cast<int>(i % row / top_k);
        lists[first + i] =
            id == kNoBlock ? groups * all_blocks : group * all_blocks + tile.first_block + id;
        uses[first + i] =
            static_cast<int32_t>((tile.query + i / row) * kept + (kept > 1 ? i % top_k : 0));
    }
}

/// Splits sorted uses into their queries (in place) and their slots.
__global__ void __launch_bounds__(kThreads)
    split_uses(int32_t* queries, int32_t* slots, int64_t count, int top_k) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= count) return;
    const int32_t use = queries[i];
    queries[i] = use / top_k;
    slots[i] = use % top_k;
}

/// starts[list]: the first of the sorted `lists` that is not below it.
__global__ void __launch_bounds__(kThreads)
    find_starts(const int32_t* lists, int64_t count, int64_t* starts, int64_t list_count) {
    const int64_t list = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (list > list_count) return;
    int64_t begin = 0, end = count;
    while (begin < end) {
        const int64_t middle = (begin + end) / 2;
        if (lists[middle] < list)
            begin = middle + 1;
        else
            end = middle;
    }
    starts[list] = begin;
}

}  // namespace

/// The sort keeps the order of equal lists: ascending by query.
SortedUses::SortedUses(const Call& call, View<const int32_t, 3> ids)
    : queries(call.scratch<int32_t, 1>({ids.size()})),
      starts(call.scratch<int64_t, 1>(
          {call.problem.kv_heads * call.layout->key_blocks().size() + 1})) {
    constexpr int64_t kTileQueries = 64;
    const int64_t count = ids.size(), lists = starts.size() - 1;
    const auto& tiles = call.layout->tiles(kTileQueries, TileOrder::by_query).device;
    auto list = call.scratch<int32_t, 1>({count}), sorted = call.scratch<int32_t, 1>({count});
    auto use = call.scratch<int32_t, 1>({count});
    const bool with_slots = has_slots(call.problem.queries(), ids.extent(2));
    const auto top_k = static_cast<int>(ids.extent(2));
    list_uses<<<static_cast<unsigned>(tiles.size()), kThreads, 0, call.stream()>>>(
        tiles.data(), ids.data(), static_cast<int>(call.problem.kv_heads), top_k,
        static_cast<int>(call.layout->key_blocks().size()), with_slots ? top_k : 1, list.data(),
        use.data());
    check_launch("reverse index, lists");
    int bits = 1;
    while ((lists >> bits) != 0) ++bits;
    size_t bytes = 0;
    const auto sort = [&](void* memory) {
        check(cub::DeviceRadixSort::SortPairs(memory, bytes, list.data(), sorted.data(), use.data(),
                                              queries.data(), count, 0, bits, call.stream()),
              "reverse index, sort");
    };
    sort(nullptr);
    auto memory = call.scratch<char, 1>({static_cast<int64_t>(bytes)});
    sort(memory.data());
    if (with_slots) {
        slots = call.scratch<int32_t, 1>({count});
        split_uses<<<blocks_for(count), kThreads, 0, call.stream()>>>(queries.data(), slots.data(),
                                                                      count, top_k);
        check_launch("reverse index, slots");
    }
    find_starts<<<blocks_for(lists + 1), kThreads, 0, call.stream()>>>(sorted.data(), count,
                                                                       starts.data(), lists);
    check_launch("reverse index, starts");
}

}  // namespace msa::cuda
