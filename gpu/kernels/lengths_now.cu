// SPDX-License-Identifier: MIT
// What lengths on the device (Keys::seqused_k) say of the queries, and where their tokens go.
#include "gpu/device/seen_keys.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/layout.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void see_keys(KeyLengths lengths, const QueryTile* of_query, const KeyRange* visible,
                         int64_t queries, KeyRange* now) {
    const int64_t query = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (query >= queries) return;
    const KeyRange all = visible[query];
    const int fewer = fewer_keys(lengths, of_query, query);
    now[query] = {all.first, max(int64_t{0}, all.count - fewer)};
}

/// Bytes of a pool from one to the next.
struct PoolBytes {
    int64_t page, token, head;
    int heads, width;
};

/// A thread block per query. T: what is copied at a time.
template <typename T>
__global__ void append(KeyPages<int64_t> pages, KeyLengths lengths, const QueryTile* of_query,
                       const KeyRange* visible, const char* rows, char* pool, PoolBytes bytes) {
    const int64_t query = blockIdx.x;
    const int sequence = of_query[query].sequence;
    const int64_t token = visible[query].count - fewer_keys(lengths, sequence) - 1;
    if (token < 0) return;
    const int64_t page = pages.page_of(pages.first_place(sequence) + token);
    if (page < 0) return;
    char* const to = pool + page * bytes.page + token % pages.page_size * bytes.token;
    const char* const from = rows + query * bytes.heads * bytes.width;
    constexpr int kEach = sizeof(T);
    for (int i = static_cast<int>(threadIdx.x) * kEach; i < bytes.heads * bytes.width;
         i += kThreads * kEach)
        *reinterpret_cast<T*>(to + i / bytes.width * bytes.head + i % bytes.width) =
            *reinterpret_cast<const T*>(from + i);
}

}  // namespace

CallNow::CallNow(const Call& of, const View<const int32_t, 1>& lengths) : call_(of) {
    const int64_t queries = of.problem.queries();
    if (!lengths || queries == 0) return;
    visible_ = of.scratch<KeyRange, 1>({queries});
    const auto grid = static_cast<unsigned>(ceil_div(queries, kThreads));
    see_keys<<<grid, kThreads, 0, of.stream()>>>(
        {of.layout->key_starts().data(), lengths.data()},
        of.layout->tiles(1, TileOrder::by_query).device.data(), of.visible, queries,
        visible_.data());
    check_launch("lengths of keys");
    call_.visible = visible_.data();
}

std::string append_rows(const Call& call, const In<3>& rows, const Keys<3>& to) {
    const std::string name = "append_rows";
    if (rows.shape()[0] == 0) return name;
    const int64_t each = element_bytes(to.element());
    const auto [page, token, head] = to.strides();
    const PoolBytes bytes{page * each, token * each, head * each, static_cast<int>(to.shape()[1]),
                          static_cast<int>(to.shape()[2] * each)};
    auto* const pool = static_cast<char*>(const_cast<void*>(to.data()));
    const auto run = [&](auto kernel) {
        kernel<<<static_cast<unsigned>(rows.shape()[0]), kThreads, 0, call.stream()>>>(
            KeyPages<int64_t>(to), {call.layout->key_starts().data(), to.seqused_k().data()},
            call.layout->tiles(1, TileOrder::by_query).device.data(), call.visible,
            static_cast<const char*>(rows.data()), pool, bytes);
        check_launch(name);
    };
    const auto whole = [](auto... all) { return ((all % 16 == 0) && ...); };
    if (whole(bytes.page, bytes.token, bytes.head, bytes.width, reinterpret_cast<uintptr_t>(pool),
              reinterpret_cast<uintptr_t>(rows.data())))
        run(append<uint4>);
    else
        run(append<char>);
    return name;
}

}  // namespace msa::cuda
