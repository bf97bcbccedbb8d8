// SPDX-License-Identifier: MIT
// Keys in the pages of a pool that is NaN, or another value, wherever there is no token.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/support/uploaded.h"

namespace msa::test {

/// How K and V lie in a pool.
enum class Pool : uint8_t {
    apart,
    by_page,  // [pages, 2, page_size, Hkv, dh]
    by_row,   // [pages, page_size, Hkv, 2 dh]
};

/// [S, max_pages] pages of the sequences, in no order, with pages between that nobody has.
/// Sequences share the pages of the first `shared` tokens. Behind its last page a row names no page
/// at all. `pages`: of the pool, no multiple of 7.
inline constexpr int64_t kPages = 211;
inline Tensor<int32_t, 2> make_table(const Problem& p, int64_t page_size, int64_t shared = 0,
                                     int64_t pages = kPages) {
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
    Tensor<int32_t, 2> table({p.sequences(), ceil_div(p.batch.longest_keys(), page_size) + 1});
    std::fill_n(table.data(), table.size(), -1);
    int64_t made = 0;
    for (int64_t s = 0; s < p.sequences(); ++s) {
        const auto at = static_cast<size_t>(s);
        for (int64_t n = 0; n < ceil_div(starts[at + 1] - starts[at], page_size); ++n)
            table(s, n) = s > 0 && (n + 1) * page_size <= shared
                              ? table(0, n)
                              : static_cast<int32_t>((made++ * 7 + 3) % pages);
    }
    MSA_CHECK(made <= pages);
    return table;
}

/// Keys [Nk, heads, width] in a pool that is `unused` everywhere else. `here`: the table in the
/// backend's space.
template <int Rank>
class InPages {
public:
    InPages(Backend& backend, Element element, const Problem& p, View<const float, Rank> keys,
            View<const int32_t, 2> table, View<const int32_t, 2> here, int64_t page_size,
            Pool how = Pool::apart, int64_t half = 0, int64_t pages = kPages,
            float unused = std::numeric_limits<float>::quiet_NaN())
        : shape_{}, table_(here) {
        const int64_t heads = Rank == 3 ? keys.extent(1) : 1, width = keys.extent(Rank - 1);
        const int64_t token = heads * width * (how == Pool::by_row ? 2 : 1);
        const int64_t page = page_size * heads * width * (how == Pool::apart ? 1 : 2);
        const int64_t head = width * (how == Pool::by_row ? 2 : 1);
        const int64_t first = how == Pool::apart     ? 0
                              : how == Pool::by_page ? half * page / 2
                                                     : half * width;
        Tensor<float, 1> host({pages * page});
        std::fill_n(host.data(), host.size(), unused);
        const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
        for (int64_t s = 0; s < p.sequences(); ++s)
            for (int64_t j = 0, t = starts[static_cast<size_t>(s)];
                 t < starts[static_cast<size_t>(s) + 1]; ++j, ++t)
                for (int64_t h = 0; h < heads; ++h)
                    std::copy_n(keys.data() + (t * heads + h) * width, width,
                                host.data() + first + table(s, j / page_size) * page +
                                    j % page_size * token + h * head);
        pool_ = Uploaded<1>(backend, element, host.view());
        shape_ = {pages, page_size, width};
        if constexpr (Rank == 3) shape_ = {pages, page_size, heads, width};
        strides_ = {page, token};
        if constexpr (Rank == 3) strides_ = {page, token, head};
        data_ = static_cast<char*>(pool_.data()) + first * element_bytes(element);
        element_ = element;
        space_ = backend.space();
    }
    Keys<Rank> keys() const {
        return {In<Rank + 1>{data_, shape_, element_, space_}, table_, strides_};
    }

private:
    Uploaded<1> pool_;
    void* data_ = nullptr;
    Shape<Rank + 1> shape_;
    Shape<Rank> strides_{};
    Element element_ = Element::f32;
    Space space_ = Space::host;
    View<const int32_t, 2> table_;
};

}  // namespace msa::test
