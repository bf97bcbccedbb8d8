// SPDX-License-Identifier: MIT
// Where keys in pages (core/keys.h) lie, for kernels.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <cstdint>

#include "core/keys.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

/// A page table on the device. A token has a place: sequences are counted as if each filled its row
/// of the table, so token j of sequence s is at place s * max_pages * page_size + j. Int: int64_t,
/// or int32_t, which divides faster, where places are below 2^31.
template <typename Int>
struct KeyPages {
    const int32_t* table = nullptr;  // [S, max_pages]; null: keys are packed
    Int entries = 0;                 // S * max_pages
    Int max_pages = 0, page_size = 0;
    Int pages = 0;  // of the pool

    KeyPages() = default;
    template <int Rank>
    explicit KeyPages(const Keys<Rank>& keys) {
        if (!keys.paged()) return;
        table = keys.page_table().data();
        entries = static_cast<Int>(keys.page_table().size());
        max_pages = static_cast<Int>(keys.page_table().extent(1));
        page_size = static_cast<Int>(keys.page_size());
        pages = static_cast<Int>(keys.pages());
    }
    __host__ __device__ bool paged() const { return table != nullptr; }
    __host__ __device__ Int first_place(Int sequence) const {
        return sequence * max_pages * page_size;
    }
    /// The page of a place; below 0 where the table or the pool has none, as behind a sequence's
    /// last page.
    __device__ Int page_of(Int place) const {
        const Int entry = place / page_size;
        if (place < 0 || entry >= entries) return -1;
        const Int page = table[entry];
        return page < pages ? page : -1;
    }
};

/// A length on the device, clamped to [0, most].
__host__ __device__ inline int length_now(int length, int most) {
    return length < 0 ? 0 : length < most ? length : most;
}

/// How many keys in pages each sequence has.
struct KeyLengths {
    const int64_t* starts = nullptr;   // cu_seqlens_k
    const int32_t* lengths = nullptr;  // Keys::seqused_k; null: those of `starts`

    /// The most keys that the sequence may have, by cu_seqlens_k.
    __device__ int most(int sequence) const {
        return static_cast<int>(starts[sequence + 1] - starts[sequence]);
    }
};

/// The keys of a tile as rows of a tensor map. Of packed keys, a place is the row itself.
struct KeyMap : KeyPages<int32_t>, KeyLengths {
    int32_t page_rows = 0;  // rows of the map from a page to the next
    int32_t head = 0;       // columns from a head to the next
    bool halved = false;    // a tile of 128 is two boxes: pages are of 64

    /// Rows of a box where a tile has `keys`.
    int64_t box_rows(int64_t keys) const { return halved ? kHalfTile : keys; }
    static constexpr int kHalfTile = 64;
    /// A row that no map has: reads there give 0.
    static constexpr int kNowhere = -128;

    KeyMap() = default;
    /// For tiles of `tile_keys`.
    template <int Rank>
    KeyMap(const Keys<Rank>& keys, int64_t tile_keys, const int64_t* key_starts)
        : KeyPages(keys), KeyLengths{key_starts, keys.seqused_k().data()} {
        if (Rank == 3) head = static_cast<int32_t>(keys.shape()[Rank - 1]);
        if (!keys.paged()) return;
        if (Rank == 3) head = static_cast<int32_t>(keys.strides()[Rank - 1]);
        page_rows = static_cast<int32_t>(keys.strides()[0] / keys.strides()[1]);
        halved = keys.page_size() % tile_keys != 0;
    }
    __device__ int first(const QueryTile& tile) const {
        return paged() ? first_place(tile.sequence) : static_cast<int>(tile.key);
    }
    /// Of keys that one box holds.
    __device__ int row(int place) const {
        if (!paged()) return place;
        const int page = page_of(place);
        return page < 0 ? kNowhere : page * page_rows + place % page_size;
    }
    // The number of keys of a sequence in pages, all of them or those from a place on. Packed keys
    // go on in those of the next sequence or in zeros: more than any tile has.
    __device__ int keys_of(int sequence) const {
        if (!paged()) return INT_MAX;
        return lengths == nullptr ? most(sequence) : length_now(lengths[sequence], most(sequence));
    }
    __device__ int keys_from(int place) const {
        if (!paged()) return INT_MAX;
        const int row = max_pages * page_size;
        return keys_of(place / row) - place % row;
    }
};

/// The rows of a tile's boxes.
struct TileRowsAt {
    int row, second;  // of the second half, where the tile is halved

    TileRowsAt() = default;
    __device__ TileRowsAt(const KeyMap& keys, int place)
        : row(keys.row(place)), second(keys.halved ? keys.row(place + KeyMap::kHalfTile) : 0) {}
};

}  // namespace msa::cuda
