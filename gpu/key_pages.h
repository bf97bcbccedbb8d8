// SPDX-License-Identifier: MIT
// Where keys in pages (core/keys.h) lie, for kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "core/keys.h"

namespace msa::cuda {

/// A page table on the device. A token has a place: sequences are counted as if each filled its row
/// of the table, so token j of sequence s is at place s * max_pages * page_size + j.
struct KeyPages {
    const int32_t* table = nullptr;  // [S, max_pages]; null: keys are packed
    int64_t entries = 0;             // S * max_pages
    int64_t max_pages = 0, page_size = 0;
    int64_t pages = 0;  // of the pool

    KeyPages() = default;
    template <int Rank>
    explicit KeyPages(const Keys<Rank>& keys) {
        if (!keys.paged()) return;
        table = keys.page_table().data();
        entries = keys.page_table().size();
        max_pages = keys.page_table().extent(1);
        page_size = keys.page_size();
        pages = keys.pages();
    }
    __host__ __device__ int64_t first_place(int64_t sequence) const {
        return sequence * max_pages * page_size;
    }
    /// The page of a place; -1 where the table or the pool has none, as behind a sequence's last
    /// page.
    __device__ int64_t page_of(int64_t place) const {
        const int64_t entry = place / page_size;
        if (entry >= entries) return -1;
        const int64_t page = __ldcg(table + entry);
        return page < pages ? page : -1;
    }
};

}  // namespace msa::cuda
