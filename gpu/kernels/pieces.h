// SPDX-License-Identifier: MIT
// Cuts the queries into pieces, for operations whose scratch memory grows with them.
#pragma once

#include <algorithm>

#include "gpu/runtime.h"

namespace msa::cuda {

inline constexpr int64_t kPieceBytes = int64_t{1} << 28;  // scratch memory of one piece

/// Calls body(Call of the piece, its QueryRange in the whole) in order.
template <typename Body>
void for_each_piece(const Call& call, int64_t bytes_per_query, Body body) {
    const int64_t queries = call.problem.queries();
    const int64_t piece = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, bytes_per_query));
    for (int64_t begin = 0; begin < queries; begin += piece) {
        const QueryRange range{begin, std::min(begin + piece, queries)};
        const Problem part = call.problem.with_queries(range);
        body(call.with_queries(part, begin), range);
    }
}

/// The rows of a piece.
template <typename Void, int Rank>
AnyView<Void, Rank> slice(const AnyView<Void, Rank>& whole, QueryRange range) {
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    Shape<Rank> shape = whole.shape();
    shape[0] = 1;
    const int64_t row = element_count(shape) * element_bytes(whole.element());
    shape[0] = range.end - range.begin;
    return {static_cast<Byte*>(whole.data()) + range.begin * row, shape, whole.element(),
            whole.space()};
}

}  // namespace msa::cuda
