// SPDX-License-Identifier: MIT
#include "core/reference/check_saved.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/number/convert.h"
#include "core/reference/reference_backend.h"
#include "core/selection.h"
#include "core/tolerance.h"

namespace msa::reference {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
/// Terms of one float sum: longer sums go in parts.
constexpr double kMostTerms = 1 << 20;

/// An operand in float: in place, or its values.
struct Floats {
    explicit Floats(const In<3>& stored) {
        if (stored.element() == Element::f32) {
            view = stored.as<const float>();
            return;
        }
        values = Tensor<float, 3>(stored.shape(), Fill::nothing);
        decode(stored.data(), stored.element(),
               {values.data(), static_cast<size_t>(values.size())});
        view = values.view();
    }
    Tensor<float, 3> values;
    View<const float, 3> view;
};

struct Rows {
    const Problem& p;
    View<const float, 3> q, k, v;
    View<const float, 1> sinks;
    View<const int32_t, 3> ids;
    View<const float, 3> out;
    View<const float, 2> lse;
    Element operands, stored;  // of q, k, v and of out
    bool partial;
};

double norm(View<const float, 1> row) { return std::sqrt(dot(row, row)); }

void require_empty(const Rows& rows, int64_t i, int64_t h) {
    const float want = rows.sinks ? rows.sinks(h) : kNothing;
    const float lse = rows.lse(i, h);
    require(lse == want || (std::isnan(lse) && std::isnan(want)), "saved lse[", i, ", ", h, "] is ",
            lse, ", must be ", want, ": the row sees no key");
    for (int64_t d = 0; d < rows.p.head_dim; ++d)
        require(rows.out(i, h, d) == 0 || std::isnan(want), "saved out[", i, ", ", h, ", ", d,
                "] is ", rows.out(i, h, d), ", must be 0: the row sees no key");
}

void require_plausible(const Rows& rows, int64_t i, int64_t h) {
    const float lse = rows.lse(i, h);
    require(lse != kNothing, "saved lse[", i, ", ", h, "] is -inf, but the row sees a key");
    if (!std::isnan(lse)) return;
    for (int64_t d = 0; d < rows.p.head_dim; ++d)
        require(std::isnan(rows.out(i, h, d)), "saved out[", i, ", ", h, ", ", d, "] is ",
                rows.out(i, h, d), ", must be NaN like the row's lse");
}

/// Compares the row with what the equations give.
void require_right(const Rows& rows, int64_t i, int64_t h, const std::vector<int64_t>& tokens) {
    const Problem& p = rows.p;
    const int64_t group = h / p.group_size();
    double k_norm = 0, v_max = 0;
    std::vector<double> weights;
    for (int64_t j : tokens) {
        weights.push_back(p.softmax_scale() * dot(rows.q[i][h], rows.k[j][group]));
        k_norm = std::max(k_norm, norm(rows.k[j][group]));
        for (int64_t d = 0; d < p.head_dim; ++d)
            v_max = std::max(v_max, std::fabs(double{rows.v(j, group, d)}));
    }
    if (rows.sinks) weights.push_back(double{rows.sinks(h)});
    const double lse = softmax(weights);
    const auto keys = std::min(static_cast<double>(weights.size()), kMostTerms);
    const double logit = logit_bound(p.softmax_scale(), norm(rows.q[i][h]), k_norm, p.head_dim);
    const double of_lse = lse_bound(logit, keys, std::fabs(lse));
    if (rows.partial) {
        const auto got = double{rows.lse(i, h)};
        require(!(got < lse - of_lse), "saved lse[", i, ", ", h, "] is ", got,
                ", must be at least ", lse, " within ", of_lse, ": it is of fewer keys");
        return;
    }
    const auto compare = [&](const std::string& name, double got, double want, double bound) {
        require(!std::isfinite(want) || !std::isfinite(bound) || std::fabs(got - want) <= bound,
                name, " is ", got, ", must be ", want, " within ", bound,
                ": it is not of this input");
    };
    compare(concat("saved lse[", i, ", ", h, "]"), double{rows.lse(i, h)}, lse, of_lse);
    const double bound = attention_bound(logit, keys, v_max, rows.operands, rows.stored);
    for (int64_t d = 0; d < p.head_dim; ++d) {
        double sum = 0;
        for (size_t t = 0; t < tokens.size(); ++t) sum += weights[t] * rows.v(tokens[t], group, d);
        compare(concat("saved out[", i, ", ", h, ", ", d, "]"), double{rows.out(i, h, d)}, sum,
                bound);
    }
}

}  // namespace

void check_saved(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                 const AttentionSaved& saved) {
    const Floats q(in.q), k(in.k), v(in.v), out(saved.out);
    const Rows rows{p,
                    q.view,
                    k.view,
                    v.view,
                    in.sinks,
                    ids,
                    out.view,
                    saved.lse,
                    in.q.element(),
                    saved.out.element(),
                    saved.partial};
    const std::vector<KeyRange>& visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const bool sees =
                visible[static_cast<size_t>(i)].count > 0 && (!ids || !selected(ids, i, r).empty());
            for (int64_t h = r * p.group_size(); h < (r + 1) * p.group_size(); ++h)
                if (sees)
                    require_plausible(rows, i, h);
                else if (!saved.partial)
                    require_empty(rows, i, h);
        }
    const int64_t last = p.queries() * p.query_heads - 1;
    for (int64_t n = 0; n < kCheckedRows && last >= 0; ++n) {
        const int64_t row = n * last / (kCheckedRows - 1);
        const int64_t i = row / p.query_heads, h = row % p.query_heads;
        const KeyRange seen = visible[static_cast<size_t>(i)];
        const std::vector<int64_t> tokens =
            ids ? support_tokens(seen, p.block_size, selected(ids, i, h / p.group_size()))
                : all_tokens(seen);
        if (!tokens.empty()) require_right(rows, i, h, tokens);
    }
}

}  // namespace msa::reference
