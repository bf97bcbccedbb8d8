// SPDX-License-Identifier: MIT
#include "core/reference/check_index_lse.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/number/convert.h"
#include "core/reference/check_saved.h"
#include "core/reference/reference_backend.h"
#include "core/selection.h"
#include "core/tolerance.h"

namespace msa::reference {
namespace {

/// A row of an operand in float.
template <int Rank>
std::vector<float> floats(const In<Rank>& operand, int64_t row, int64_t width) {
    std::vector<float> values(static_cast<size_t>(width));
    const auto* bytes = static_cast<const char*>(operand.data());
    decode(bytes + row * width * element_bytes(operand.element()), operand.element(), values);
    return values;
}

double norm(const std::vector<float>& row) {
    double sum = 0;
    for (float x : row) sum += double{x} * double{x};
    return std::sqrt(sum);
}

/// What a row's lse must be, and how far a float may be off it.
struct Expected {
    double lse, bound;
};

/// One branch of the input, and its lse.
struct Given {
    const char* name;
    View<const float, 2> lse;  // [Nq, heads]
    const Problem& p;
    const IndexKlInput& in;
    bool main;

    int64_t group_of(int64_t h) const { return main ? h / p.group_size() : h; }
    double sink(int64_t h) const { return main && in.sinks ? double{in.sinks(h)} : kNoSink; }
    std::vector<int64_t> tokens(int64_t i, int64_t h) const {
        const KeyRange seen = visible_keys(p)[static_cast<size_t>(i)];
        std::vector<int64_t> all =
            in.ids ? support_tokens(seen, p.block_size, selected(in.ids, i, group_of(h)))
                   : all_tokens(seen);
        return main ? in_window(p, seen, std::move(all)) : all;
    }
    /// Whether the row sees a key, without a list of them.
    bool sees(int64_t i, int64_t h) const {
        const int64_t count = visible_keys(p)[static_cast<size_t>(i)].count;
        if (!in.ids) return count > 0;
        const std::span<const int32_t> row = selected(in.ids, i, group_of(h));
        if (row.empty()) return false;
        return !main ||
               std::min((row.back() + int64_t{1}) * p.block_size, count) > p.window_start(count);
    }
    Expected expected(int64_t i, int64_t h) const;
};

Expected Given::expected(int64_t i, int64_t h) const {
    const int64_t width = main ? p.head_dim : p.index_dim;
    const std::vector<float> q = main ? floats(in.q, i * p.query_heads + h, width)
                                      : floats(in.index.index_q, i * p.kv_heads + h, width);
    const double scale = main ? p.softmax_scale() : p.index_scale();
    double k_norm = 0;
    std::vector<double> logits;
    for (int64_t j : tokens(i, h)) {
        const std::vector<float> k = main ? floats(in.k, j * p.kv_heads + group_of(h), width)
                                          : floats(in.index.index_k, j, width);
        double product = 0;
        for (size_t d = 0; d < k.size(); ++d) product += double{q[d]} * double{k[d]};
        logits.push_back(main ? p.logit(product) : scale * product);
        k_norm = std::max(k_norm, norm(k));
    }
    const auto keys = static_cast<double>(logits.size());
    const double sum = softmax(logits, sink(h));
    double logit = logit_bound(scale, norm(q), k_norm, width);
    if (main) logit = main_logit_bound(p, norm(q), k_norm);
    return {sum, lse_bound(logit, std::min(keys, double{1 << 20}), std::fabs(sum)) +
                     (main && in.sinks ? sink_lse_bound() : 0)};
}

void require_right(const Given& given, int64_t i, int64_t h) {
    const Expected want = given.expected(i, h);
    const double got = double{given.lse(i, h)};
    if (std::isfinite(want.lse) ? std::fabs(got - want.lse) <= want.bound || std::isnan(want.bound)
                                : !std::isfinite(got))
        return;
    throw InputError(concat(given.name, "[", i, ", ", h, "] is ", got, ", must be ", want.lse,
                            " within ", want.bound, ": it is not of this input"));
}

void check(const Given& given) {
    const int64_t heads = given.lse.extent(1);
    int64_t odd = 0;
    for (int64_t i = 0; i < given.p.queries(); ++i)
        for (int64_t h = 0; h < heads; ++h) {
            const double lse = double{given.lse(i, h)};
            const double empty = given.sink(h);
            if (!given.sees(i, h))
                require(lse == empty || (std::isnan(lse) && std::isnan(empty)), given.name, "[", i,
                        ", ", h, "] is ", lse, ", must be ", empty, ": the row sees no key");
            else if (!std::isfinite(lse) && odd++ < kCheckedRows)
                require_right(given, i, h);
        }
    const int64_t last = given.p.queries() * heads - 1;
    for (int64_t n = 0; n < kCheckedRows && last >= 0; ++n) {
        const int64_t row = n * last / (kCheckedRows - 1);
        if (given.sees(row / heads, row % heads)) require_right(given, row / heads, row % heads);
    }
}

}  // namespace

void check_index_lse(const Problem& p, const IndexKlInput& in) {
    if (in.main_lse) check({"main_lse", in.main_lse, p, in, true});
    if (in.index_lse) check({"index_lse", in.index_lse, p, in, false});
}

}  // namespace msa::reference
