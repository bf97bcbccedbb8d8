// SPDX-License-Identifier: MIT
#include "core/keys.h"

#include <span>
#include <vector>

#include "core/error.h"

namespace msa {
namespace {

void check_room(View<const int32_t, 2> table, int64_t sequence, int64_t tokens, int64_t page_size,
                const std::string& name) {
    require(tokens <= table.extent(1) * page_size, "seqused_k of sequence ", sequence, " is ",
            tokens, ", but its row of ", name, "'s page_table has ", table.extent(1), " pages of ",
            page_size, " tokens");
}

}  // namespace

void check_table(View<const int32_t, 2> table, std::span<const int64_t> tokens, int64_t page_size,
                 int64_t pages, const std::string& name) {
    std::vector<char> taken(static_cast<size_t>(pages));  // by the sequence
    for (int64_t s = 0; s < std::ssize(tokens); ++s) {
        const int64_t here = tokens[static_cast<size_t>(s)];
        check_room(table, s, here, page_size, name);
        const View<const int32_t, 1> row = table[s].slice(0, ceil_div(here, page_size));
        for (int64_t n = 0; n < row.size(); ++n) {
            const int64_t page = row(n);
            require(0 <= page && page < pages, "page_table[", s, ", ", n, "] of ", name, " is ",
                    page, ", must be a page of the pool's ", pages);
            require(!taken[static_cast<size_t>(page)], "page_table[", s, ", ", n, "] of ", name,
                    " is ", page, ", which sequence ", s, " has already; its pages must differ");
            taken[static_cast<size_t>(page)] = true;
        }
        for (int64_t n = 0; n < row.size(); ++n) taken[static_cast<size_t>(row(n))] = false;
    }
}

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
    if (const View<const int32_t, 1> lengths = keys.seqused_k()) {
        require(lengths.space() == Space::device && table.space() == Space::device, "seqused_k of ",
                name, " is in host memory, where cu_seqlens_k says the lengths");
        require(lengths.extent(0) == p.sequences(), "seqused_k of ", name, " has ",
                lengths.extent(0), " entries, must have one for each sequence = ", p.sequences());
        require(p.batch.query_positions().empty(), "seqused_k of ", name,
                " excludes query positions");
    }
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
    const bool readable = table.space() == Space::host;
    std::vector<int64_t> tokens;
    for (size_t s = 0; s + 1 < starts.size(); ++s) {
        const int64_t here = starts[s + 1] - starts[s];
        if (readable)
            tokens.push_back(here);
        else
            check_room(table, static_cast<int64_t>(s), here, size, name);
    }
    if (readable) check_table(table, tokens, size, keys.pages(), name);
}
template void check_pages(const Problem&, const Keys<2>&, const std::string&);
template void check_pages(const Problem&, const Keys<3>&, const std::string&);

}  // namespace msa
