// SPDX-License-Identifier: MIT
#include "experiments/bench/check_rows.h"

#include <algorithm>

#include "core/selection.h"

namespace msa::experiments::bench {
namespace {

constexpr int64_t kPiece = int64_t{1} << 24;  // bytes, which malloc keeps
constexpr int64_t kGap = 16;                  // rows that are copied on the way to the next

}  // namespace

Tensor<float, 3> fetch_head(Backend& backend, const Stored<3>& from, int64_t first, int64_t count,
                            int64_t head) {
    const int64_t width = from.shape()[2];
    const int64_t piece = std::max<int64_t>(1, kPiece / from.row_bytes());
    Tensor<float, 3> values({count, 1, width});
    for (int64_t begin = 0; begin < count; begin += piece) {
        const int64_t rows = std::min(piece, count - begin);
        const Tensor<float, 3> all = fetch(backend, from, first + begin, rows);
        for (int64_t n = 0; n < rows; ++n)
            std::copy_n(all.view()[n][head].data(), width, values.view()[begin + n].data());
    }
    return values;
}

Stored<3> gather(Backend& backend, const Stored<3>& from, const std::vector<int64_t>& rows) {
    Stored<3> to(backend, {std::ssize(rows), from.shape()[1], from.shape()[2]}, from.element());
    for (size_t n = 0; n < rows.size(); ++n)
        backend.copy(to.data() + static_cast<int64_t>(n) * to.row_bytes(), backend.space(),
                     from.data() + rows[n] * from.row_bytes(), backend.space(), to.row_bytes());
    return to;
}

Tensor<float, 3> fetch_rows(Backend& backend, const Stored<3>& from,
                            const std::vector<int64_t>& rows, int64_t first_head, int64_t heads) {
    const int64_t width = from.shape()[2], most = std::max<int64_t>(1, kPiece / from.row_bytes());
    Tensor<float, 3> values({std::ssize(rows), heads, width}, Fill::nothing);
    const std::shared_ptr<void> stored = allocate_host(most * from.row_bytes(), Fill::nothing);
    const int64_t first_byte = first_head * width * element_bytes(from.element());
    for (size_t at = 0; at < rows.size();) {
        const int64_t first = rows[at];
        size_t end = at + 1;
        while (end < rows.size() && rows[end] - rows[end - 1] <= kGap && rows[end] - first < most)
            ++end;
        const int64_t count = rows[end - 1] - first + 1;
        backend.copy(stored.get(), Space::host, from.data() + first * from.row_bytes(),
                     backend.space(), count * from.row_bytes());
#pragma omp parallel for
        for (size_t n = at; n < end; ++n)
            decode(static_cast<const char*>(stored.get()) + (rows[n] - first) * from.row_bytes() +
                       first_byte,
                   from.element(),
                   {&values(static_cast<int64_t>(n), 0, 0), static_cast<size_t>(heads * width)});
        at = end;
    }
    return values;
}

SeenKeys::SeenKeys(const Problem& p, const std::vector<int64_t>& tokens, View<const int32_t, 3> ids,
                   int64_t group) {
    const std::vector<KeyRange>& visible = visible_keys(p);
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < p.queries(); ++i) {
        const KeyRange range = visible[static_cast<size_t>(i)];
        seen.clear();
        for (int64_t n = 0; n < std::ssize(tokens); ++n) {
            const int64_t at = tokens[static_cast<size_t>(n)] - range.first;
            bool in = at >= 0 && at < range.count;
            if (in && ids.data() != nullptr) {
                const std::span<const int32_t> blocks = selected(ids, i, group);
                in = std::binary_search(blocks.begin(), blocks.end(), at / p.block_size);
            }
            if (in) seen.push_back(n);
        }
        if (seen.empty()) continue;
        queries.push_back(i);
        keys.push_back(seen);
    }
}

double product(const float* a, const float* b, int64_t width) {
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += double{a[c]} * double{b[c]};
    return sum;
}

}  // namespace msa::experiments::bench
