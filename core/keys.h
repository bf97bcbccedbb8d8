// SPDX-License-Identifier: MIT
// Keys, values and index keys: packed on the token axis, or in the pages of a cache. Shape letters:
// core/problem.h.
//
// Of the operations of core/backend.h, dense_attention, index_scores, index_select,
// sparse_attention and block_mass take pages, and give what they give for the same keys packed, bit
// for bit. Gradients and index_kl take packed keys alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "core/element.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// Keys or values [Nk, Hkv, dh], or index keys [Nk, didx], of all sequences. Packed they are a
/// tensor like any other. In pages they lie as an engine's cache holds them, with FlashAttention's
/// names and meaning: token j of sequence s is row j % page_size of page
/// page_table(s, j / page_size) of a pool [pages, page_size, Hkv, dh]. How many tokens a sequence
/// has is what the batch's cu_seqlens_k counts. Blocks are those of the sequence. Rows of a page
/// behind the sequence's last token have no influence, nor have entries of the table behind its
/// last page. Sequences may share pages.
///
/// Lengths may also be on the device (seqused_k). The batch then says the most that each sequence
/// may have: the shape of a CUDA graph that is right for all lengths up to it. The last query sits
/// on the last key. A length outside of that range counts as the nearest one in it.
template <int Rank>
class Keys : public In<Rank> {
public:
    Keys() = default;
    template <typename Packed>
    requires(std::is_convertible_v<Packed, In<Rank>> &&
             !std::is_base_of_v<Keys, std::remove_cvref_t<Packed>>) Keys(Packed&& keys)
        : In<Rank>(std::forward<Packed>(keys)) {}
    /// page_table [S, max_pages]
    Keys(const In<Rank + 1>& pool, View<const int32_t, 2> page_table)
        : Keys(pool, page_table, contiguous(pool.shape())) {}
    /// A pool that is a part of a larger tensor: elements from a page, a token and a head (of index
    /// keys: a page and a token) to the next. With K and V in one tensor [pages, 2, page_size, Hkv,
    /// dh], a page's stride is twice what it holds.
    Keys(const In<Rank + 1>& pool, View<const int32_t, 2> page_table, const Shape<Rank>& strides)
        : In<Rank>(pool.data(), rows_of(pool.shape()), pool.element(), pool.space()),
          table_(page_table),
          page_size_(pool.shape()[1]),
          strides_(strides) {
        require(page_size_ > 0, "page_size is ", page_size_, ", must be at least 1");
    }

    /// The same keys with lengths [S] on the device, which hold when the call runs.
    Keys with_lengths(View<const int32_t, 1> seqused_k) const {
        Keys keys = *this;
        keys.lengths_ = seqused_k;
        return keys;
    }

    bool paged() const { return page_size_ > 0; }
    View<const int32_t, 1> seqused_k() const { return lengths_; }  // absent: the batch's lengths
    View<const int32_t, 2> page_table() const { return table_; }
    int64_t page_size() const { return page_size_; }  // 0: packed
    int64_t pages() const { return this->shape()[0] / page_size_; }
    const Shape<Rank>& strides() const { return strides_; }  // of pages

    /// Packed keys as a tensor.
    template <typename T>
    View<T, Rank> as() const {
        MSA_CHECK(!paged());
        return In<Rank>::template as<T>();
    }

private:
    /// [pages * page_size, ...]
    static Shape<Rank> rows_of(const Shape<Rank + 1>& pool) {
        Shape<Rank> rows;
        std::copy(pool.begin() + 1, pool.end(), rows.begin());
        rows[0] *= pool[0];
        return rows;
    }
    static Shape<Rank> contiguous(const Shape<Rank + 1>& pool) {
        Shape<Rank> strides;
        int64_t elements = pool[Rank];
        for (size_t axis = Rank; axis > 0; elements *= pool[--axis]) strides[axis - 1] = elements;
        return strides;
    }

    View<const int32_t, 2> table_;
    View<const int32_t, 1> lengths_;
    int64_t page_size_ = 0;
    Shape<Rank> strides_{};
};

/// Throws InputError, naming operand, sequence, page and rule, unless a table on the host has pages
/// for so many tokens of each sequence, each in the pool and none twice in a sequence.
void check_table(View<const int32_t, 2> table, std::span<const int64_t> tokens, int64_t page_size,
                 int64_t pages, const std::string& name);

/// Throws InputError, naming operand, sequence, page and rule, if keys in pages do not fit the
/// problem: one of page_size and Bk must divide the other; the table has a row for each sequence,
/// with pages for all of its tokens, each in the pool and none twice. Entries are looked at if they
/// are on the host. Lengths are [S], on a device, and of a batch without query positions.
template <int Rank>
void check_pages(const Problem&, const Keys<Rank>&, const std::string& name);
extern template void check_pages(const Problem&, const Keys<2>&, const std::string&);
extern template void check_pages(const Problem&, const Keys<3>&, const std::string&);

}  // namespace msa
