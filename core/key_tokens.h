// SPDX-License-Identifier: MIT
// Where the tokens of keys lie, packed or in pages: what code on the host reads them by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>

#include "core/keys.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// Where the tokens of the packed key axis lie, on the host. Valid while the problem and the keys
/// live.
template <typename T>
class KeyTokens {
public:
    KeyTokens() = default;
    KeyTokens(const T* rows, int64_t token_stride, int64_t head_stride, int64_t width)
        : data_(rows), token_stride_(token_stride), head_stride_(head_stride), width_(width) {}
    KeyTokens(View<const T, 3> packed)
        : KeyTokens(packed.data(), packed.extent(1) * packed.extent(2), packed.extent(2),
                    packed.extent(2)) {}
    KeyTokens(View<const T, 2> packed)
        : KeyTokens(packed.data(), packed.extent(1), 0, packed.extent(1)) {}
    template <int Rank>
    KeyTokens(const Problem& p, const Keys<Rank>& keys) {
        if (!keys.paged()) {
            *this = keys.template as<const T>();
            return;
        }
        MSA_CHECK(keys.element() == ElementOf<T>::value);
        const Shape<Rank>& strides = keys.strides();
        *this = {static_cast<const T*>(keys.data()), strides[1], Rank == 3 ? strides[2] : 0,
                 keys.shape()[Rank - 1]};
        page_stride_ = strides[0];
        page_size_ = keys.page_size();
        table_ = keys.page_table();
        starts_ = p.batch.cu_seqlens_k();
    }

    int64_t width() const { return width_; }
    int64_t token_stride() const { return token_stride_; }
    const T* at(int64_t token, int64_t head) const {
        const T* const rows = data_ + head * head_stride_;
        if (page_size_ == 0) return rows + token * token_stride_;
        const auto [s, j] = place(token);
        return rows + table_(s, j / page_size_) * page_stride_ + j % page_size_ * token_stride_;
    }
    View<const T, 1> row(int64_t token, int64_t head = 0) const {
        return {at(token, head), {width_}};
    }
    /// Tokens from this one on, of its sequence, that lie token_stride() apart.
    int64_t run(int64_t token) const {
        if (page_size_ == 0) return std::numeric_limits<int64_t>::max();
        return page_size_ - place(token).token % page_size_;
    }

private:
    struct Place {
        int64_t sequence, token;
    };
    Place place(int64_t token) const {
        const auto next = std::upper_bound(starts_.begin(), starts_.end(), token);
        return {next - starts_.begin() - 1, token - *(next - 1)};
    }

    const T* data_ = nullptr;
    int64_t page_stride_ = 0, token_stride_ = 0, head_stride_ = 0, width_ = 0;
    int64_t page_size_ = 0;  // 0: packed
    View<const int32_t, 2> table_;
    std::span<const int64_t> starts_;  // cu_seqlens_k
};

/// The same keys, packed.
template <typename T, int Rank>
Tensor<T, Rank> packed(const Problem& p, const Keys<Rank>& keys) {
    Shape<Rank> shape = keys.shape();
    shape[0] = p.keys();
    Tensor<T, Rank> made(shape, Fill::nothing);
    const KeyTokens<T> rows(p, keys);
    const int64_t heads = Rank == 3 ? shape[1] : 1;
    for (int64_t t = 0; t < p.keys(); ++t)
        for (int64_t h = 0; h < heads; ++h)
            std::copy_n(rows.at(t, h), rows.width(), made.data() + (t * heads + h) * rows.width());
    return made;
}

}  // namespace msa
