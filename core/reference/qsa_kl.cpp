// SPDX-License-Identifier: MIT
// The equations of core/indexer/qsa_kl.h. With s_ihn = index_q_ih . m_n and g_in = dL/dI_in,
//   dL/ds_ihn = scale g_in where s_ihn > 0, else 0.
#include "core/indexer/qsa_kl.h"

#include <algorithm>
#include <cmath>

#include "core/reference/reference_backend.h"
#include "core/selection.h"

namespace msa::reference {
namespace {

using Values = std::vector<double>;

/// Whether a piece reaches into a block that query i selects.
bool supports(const Problem& p, const QsaKlInput& in, int64_t i, int64_t piece) {
    if (!in.ids) return true;
    for (const int32_t b : selected(in.ids, i, 0))
        for (int64_t j = piece * in.compress; j < (piece + 1) * in.compress; ++j)
            if (j / p.block_size == b) return true;
    return false;
}
}  // namespace

void qsa_kl(const Problem& p, const QsaKlInput& in, const QsaKlOutput& to) {
    const std::vector<int64_t> starts = piece_starts(p.batch.cu_seqlens_k(), in.compress),
                               sequence = query_sequences(p);
    const int64_t heads = in.index_q.extent(1), width = in.index_q.extent(2);
    const auto rows = static_cast<double>(p.queries() * p.kv_heads);
    Values d_k(static_cast<size_t>(in.index_k.size()), 0.0);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const int64_t first = starts[static_cast<size_t>(sequence[static_cast<size_t>(i)])];
        const int64_t seen = visible_keys(p)[static_cast<size_t>(i)].count;
        std::vector<int64_t> pieces;
        for (int64_t n = 0; n < seen / in.compress; ++n)
            if (supports(p, in, i, n)) pieces.push_back(n);
        const auto product = [&](int64_t h, int64_t n) {
            return dot(in.index_q[i][h], in.index_k[first + n]);
        };
        Values scores;
        for (const int64_t n : pieces) {
            double sum = 0;
            for (int64_t h = 0; h < heads; ++h) sum += std::max(0.0, product(h, n));
            scores.push_back(in.scale() * sum);
        }
        Values index = scores;
        const double lse = softmax(index);
        if (to.entropy) to.entropy(i) = entropy_of(index);

        Values d_score(pieces.size(), 0.0);
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            Values target;
            double total = 0, kl = 0;
            for (const int64_t n : pieces) {
                target.push_back(double{in.target(i, r, n)});
                total += target.back();
            }
            for (size_t n = 0; n < pieces.size() && total > 0; ++n) {
                target[n] /= total;
                if (target[n] > 0) kl += target[n] * (std::log(target[n]) - scores[n] + lse);
                d_score[n] += (index[n] - target[n]) / rows;
            }
            if (to.kl) to.kl(i, r) = kl;
            if (to.target_entropy) to.target_entropy(i, r) = total > 0 ? entropy_of(target) : 0;
        }
        for (int64_t h = 0; h < heads && to.d_index_q; ++h)
            for (int64_t c = 0; c < width; ++c) {
                double d_query = 0;
                for (size_t n = 0; n < pieces.size(); ++n) {
                    if (product(h, pieces[n]) <= 0) continue;
                    const double d = in.scale() * d_score[n];
                    d_query += d * double{in.index_k(first + pieces[n], c)};
                    d_k[static_cast<size_t>((first + pieces[n]) * width + c)] +=
                        d * double{in.index_q(i, h, c)};
                }
                to.d_index_q(i, h, c) = static_cast<float>(d_query);
            }
    }
    if (to.d_index_k)
        std::transform(d_k.begin(), d_k.end(), to.d_index_k.data(),
                       [](double d) { return static_cast<float>(d); });
}

}  // namespace msa::reference
