// SPDX-License-Identifier: MIT
#include "core/keys.h"

#include <vector>

#include "core/error.h"

namespace msa {

template <int Rank>
void check_pages(const Problem& p, const Keys<Rank>& keys, const std::string& name) {
    const int64_t size = keys.page_size(), block = p.block_size;
    const View<const int32_t, 2> table = keys.page_table();
    require(size % block == 0 || block % size == 0, name, " has pages of ", size,
            " tokens, but blocks have ", block, "; one must be a multiple of the other");
    require(p.sequences() == 0 || static_cast<bool>(table), "page_table of ", name, " is absent");
    require(table.extent(0) == p.sequences(), "page_table of ", name, " has ", table.extent(0),
            " rows, must have one for each sequence = ", p.sequences());
    require(!table || table.space() == keys.space(), "page_table of ", name, " is in ",
            to_string(table.space()), " memory, the pages are in ", to_string(keys.space()),
            " memory");
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
    const bool readable = table.space() == Space::host;
    std::vector<char> taken(readable ? static_cast<size_t>(keys.pages()) : 0);  // by the sequence
    for (int64_t s = 0; s < p.sequences(); ++s) {
        const auto at = static_cast<size_t>(s);
        const int64_t tokens = starts[at + 1] - starts[at];
        require(tokens <= table.extent(1) * size, "seqused_k of sequence ", s, " is ", tokens,
                ", but its row of ", name, "'s page_table has ", table.extent(1), " pages of ",
                size, " tokens");
        if (!readable) continue;
        const View<const int32_t, 1> row = table[s].slice(0, ceil_div(tokens, size));
        for (int64_t n = 0; n < row.size(); ++n) {
            const int64_t page = row(n);
            require(0 <= page && page < keys.pages(), "page_table[", s, ", ", n, "] of ", name,
                    " is ", page, ", must be a page of the pool's ", keys.pages());
            require(!taken[static_cast<size_t>(page)], "page_table[", s, ", ", n, "] of ", name,
                    " is ", page, ", which sequence ", s, " has already; its pages must differ");
            taken[static_cast<size_t>(page)] = true;
        }
        for (int64_t n = 0; n < row.size(); ++n) taken[static_cast<size_t>(row(n))] = false;
    }
}
template void check_pages(const Problem&, const Keys<2>&, const std::string&);
template void check_pages(const Problem&, const Keys<3>&, const std::string&);

}  // namespace msa
