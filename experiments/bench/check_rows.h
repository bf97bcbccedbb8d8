// SPDX-License-Identifier: MIT
// Helpers of the checks: fetching rows to the host and comparing them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/number/convert.h"
#include "core/problem.h"
#include "core/tensor.h"
#include "experiments/bench/meter.h"
#include "experiments/bench/operands.h"

namespace msa::experiments::bench {

constexpr int64_t kRows = 32;  // most rows of a result that are checked

/// Rows [first, first + count) of an operand, as floats on the host.
template <int Rank>
Tensor<float, Rank> fetch(Backend& backend, const Stored<Rank>& from, int64_t first,
                          int64_t count) {
    stop_case_if_asked();
    const In<Rank> part = from.slice(first, count);
    Tensor<float, Rank> values(part.shape(), Fill::nothing);
    const int64_t bytes = values.size() * element_bytes(part.element());
    const std::shared_ptr<void> stored = allocate_host(bytes, Fill::nothing);
    backend.copy(stored.get(), Space::host, part.data(), part.space(), bytes);
    decode(stored.get(), part.element(), {values.data(), static_cast<size_t>(values.size())});
    return values;
}

/// One head of the rows [first, first + count) of an operand.
Tensor<float, 3> fetch_head(Backend& backend, const Stored<3>& from, int64_t first, int64_t count,
                            int64_t head);

/// Heads [first_head, first_head + heads) of the rows `rows`, ascending: [rows, heads, channels].
Tensor<float, 3> fetch_rows(Backend& backend, const Stored<3>& from,
                            const std::vector<int64_t>& rows, int64_t first_head, int64_t heads);

/// The rows `rows` of an operand, one after another.
Stored<3> gather(Backend&, const Stored<3>& from, const std::vector<int64_t>& rows);

/// The first element of `got` that differs from `want` by more than bound(index); nothing if there
/// is none.
template <typename Bound>
std::string difference(const char* what, const float* got, const float* want, int64_t size,
                       Bound bound) {
    for (int64_t i = 0; i < size; ++i)
        if (!(std::fabs(double{got[i]} - double{want[i]}) <= bound(i)))  // NaN is wrong
            return concat(what, " ", i, " is ", got[i], ", must be ", want[i], " within ",
                          bound(i));
    return "";
}

/// Largest magnitude.
template <int Rank>
double largest(const Tensor<float, Rank>& values) {
    double most = 0;
    for (int64_t i = 0; i < values.size(); ++i)
        most = std::max(most, std::fabs(double{values.data()[i]}));
    return most;
}

// The queries that attend to some keys, for checks of these keys' gradients.

/// The queries that attend to any of the keys `tokens` in a group, ascending, and the indices in
/// `tokens` of those keys. ids [Nq, Hkv, k] on the host; absent: dense.
struct SeenKeys {
    std::vector<int64_t> queries;
    std::vector<std::vector<int64_t>> keys;  // for each query

    SeenKeys(const Problem&, const std::vector<int64_t>& tokens, View<const int32_t, 3> ids,
             int64_t group);
};

/// <a, b> in double.
double product(const float* a, const float* b, int64_t width);

}  // namespace msa::experiments::bench
