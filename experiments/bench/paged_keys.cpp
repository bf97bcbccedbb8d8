// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "core/random.h"
#include "experiments/bench/operands.h"

namespace msa::experiments::bench {
namespace {

/// Rows of packed keys to their pages.
template <int Rank>
void fill_pool(Backend& backend, const Case& c, const PagedKeys& pages,
               View<const int32_t, 2> table, const Stored<Rank>& from, const Stored<Rank>& to) {
    const std::vector<int64_t>& starts = c.problem.batch.cu_seqlens_k();
    for (int64_t s = 0; s < c.problem.sequences(); ++s) {
        const int64_t first = starts[static_cast<size_t>(s)],
                      tokens = starts[static_cast<size_t>(s) + 1] - first;
        for (int64_t j = 0; j < tokens; j += pages.page_size)
            backend.copy(
                to.data() + table(s, j / pages.page_size) * pages.page_size * to.row_bytes(),
                backend.space(), from.data() + (first + j) * from.row_bytes(), backend.space(),
                std::min(pages.page_size, tokens - j) * from.row_bytes());
    }
}

}  // namespace

int64_t pages_of(const Problem& p, int64_t page_size) {
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
    int64_t pages = 0;
    for (size_t s = 0; s + 1 < starts.size(); ++s)
        pages += ceil_div(starts[s + 1] - starts[s], page_size);
    return pages;
}

PagedKeys allocate_pages(Backend& backend, const Case& c, const BenchOptions& o, Parts parts,
                         int64_t page_size) {
    const Problem& p = c.problem;
    PagedKeys to;
    to.page_size = page_size;
    to.pages = pages_of(p, page_size);
    std::vector<int32_t> order(static_cast<size_t>(to.pages));
    std::iota(order.begin(), order.end(), 0);
    for (int64_t n = to.pages - 1; n > 0; --n)
        std::swap(order[static_cast<size_t>(n)],
                  order[mix(o.seed, 203, n) % static_cast<uint64_t>(n + 1)]);
    const std::optional<Problem> most = up_to_capacity(c, o);
    Tensor<int32_t, 2> table(
        {p.sequences(), ceil_div(most.value_or(p).batch.longest_keys(), page_size)});
    std::fill_n(table.data(), table.size(), -1);
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
    size_t next = 0;
    for (int64_t s = 0; s < p.sequences(); ++s)
        for (int64_t n = 0;
             n * page_size < starts[static_cast<size_t>(s) + 1] - starts[static_cast<size_t>(s)];
             ++n)
            table(s, n) = order[next++];
    to.table = backend.upload(table.view());
    if (most) {
        Tensor<int32_t, 1> lengths({p.sequences()});
        for (int64_t s = 0; s < p.sequences(); ++s)
            lengths(s) = static_cast<int32_t>(starts[static_cast<size_t>(s) + 1] -
                                              starts[static_cast<size_t>(s)]);
        to.lengths = backend.upload(lengths.view());
    }
    const int64_t rows = to.pages * page_size;
    if (parts.attention)
        for (Stored<3>* keys : {&to.k, &to.v})
            *keys = {backend, {rows, p.kv_heads, p.head_dim}, o.sizes.element};
    if (parts.index)
        for (Element element : o.index_elements)
            to.index.emplace_back(backend, Shape<2>{rows, p.index_dim}, element);
    return to;
}

void fill_pages(Backend& backend, const Case& c, Layer& layer, Parts parts) {
    for (const PagedKeys& pages : layer.paged) {
        const Tensor<int32_t, 2> table = backend.download(pages.table.view());
        if (parts.attention) {
            fill_pool(backend, c, pages, table, layer.k, pages.k);
            fill_pool(backend, c, pages, table, layer.v, pages.v);
        }
        for (size_t n = 0; parts.index && n < layer.index.size(); ++n)
            fill_pool(backend, c, pages, table, layer.index[n].k, pages.index[n]);
    }
}

}  // namespace msa::experiments::bench
