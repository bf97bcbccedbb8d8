// SPDX-License-Identifier: MIT
// Keys or values of all sequences as plain kernels read them, by packed token.
#pragma once

#include "core/backend.h"
#include "gpu/key_pages.h"
#include "gpu/layout.h"

namespace msa::cuda {

template <typename T>
class KeyRows {
public:
    KeyRows() = default;
    /// `layout`, that of the whole problem, may be null where keys are packed.
    template <int Rank>
    KeyRows(const Keys<Rank>& keys, const Layout* layout)
        : data_(static_cast<const T*>(keys.data())), pages_(keys) {
        const Shape<Rank>& shape = keys.shape();
        token_ = Rank == 3 ? shape[1] * shape[Rank - 1] : shape[Rank - 1];
        head_ = Rank == 3 ? shape[Rank - 1] : 0;
        if (!keys.paged()) return;
        MSA_CHECK(layout != nullptr);
        const Tensor<int64_t, 1>& starts = layout->key_starts();
        starts_ = starts.data();
        sequences_ = starts.size() - 1;
        page_ = keys.strides()[0];
        token_ = keys.strides()[1];
        if (Rank == 3) head_ = keys.strides()[Rank - 1];
    }

    __host__ __device__ bool absent() const { return data_ == nullptr; }
    __device__ bool paged() const { return pages_.paged(); }
    /// The page that holds a token; below 0: the table names none of the pool.
    __device__ int64_t page_of(int64_t token) const { return pages_.page_of(place_of(token)); }
    /// Null where page_of() is below 0.
    __device__ const T* at(int64_t token, int64_t head) const {
        const T* const of_head = data_ + head * head_;
        if (!paged()) return of_head + token * token_;
        const int64_t place = place_of(token), page = pages_.page_of(place);
        return page < 0 ? nullptr : of_head + page * page_ + place % pages_.page_size * token_;
    }

private:
    __device__ int64_t place_of(int64_t token) const {
        int64_t first = 0, last = sequences_ - 1;  // the last sequence that begins at or before it
        while (first < last) {
            const int64_t middle = (first + last + 1) / 2;
            if (starts_[middle] <= token)
                first = middle;
            else
                last = middle - 1;
        }
        return pages_.first_place(first) + token - starts_[first];
    }

    const T* data_ = nullptr;
    int64_t page_ = 0, token_ = 0, head_ = 0;  // elements from one to the next
    KeyPages<int64_t> pages_;
    const int64_t* starts_ = nullptr;  // cu_seqlens_k, of pages
    int64_t sequences_ = 0;
};

}  // namespace msa::cuda
