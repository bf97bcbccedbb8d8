// SPDX-License-Identifier: MIT
// The equations of core/indexer/gate_kl.h. With g = dL / d(logit of b),
//   dL/d gate_q_ir = scale sum_b g_b gate_k_br      dL/d gate_k_br = scale sum_i g_b gate_q_ir.
#include "core/indexer/gate_kl.h"

#include <algorithm>
#include <cmath>

#include "core/reference/reference_backend.h"
#include "core/selection.h"

namespace msa::reference {
namespace {

using Values = std::vector<double>;

/// Blocks of the support before the own one of query i.
std::vector<int64_t> judged(const Problem& p, const GateKlInput& in, int64_t i, int64_t r) {
    const int64_t own = own_block(visible_keys(p)[static_cast<size_t>(i)].count, p.block_size);
    std::vector<int64_t> blocks;
    if (in.ids) {
        for (int32_t b : selected(in.ids, i, r))
            if (b < own) blocks.push_back(b);
    } else {
        for (int64_t b = 0; b < own; ++b) blocks.push_back(b);
    }
    return blocks;
}
}  // namespace

void gate_teacher(const Problem& p, const GateTeacherInput& in, View<float, 3> to) {
    const MainBranch main{in.q, in.k, {}, in.sinks};
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const KeyRange seen = visible[static_cast<size_t>(i)];
        const std::vector<int64_t> tokens = in_window(p, seen, all_tokens(seen));
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            Values pooled(static_cast<size_t>(p.blocks()), 0.0);
            for (int64_t h = r * p.group_size(); h < (r + 1) * p.group_size(); ++h) {
                Values head;
                for (int64_t j : tokens) head.push_back(p.logit(dot(in.q[i][h], in.k[j][r])));
                softmax(head, sink_of(main, h));
                for (size_t t = 0; t < tokens.size(); ++t) {
                    const int64_t b = (tokens[t] - seen.first) / p.block_size;
                    if (b >= own_block(seen.count, p.block_size)) continue;
                    double& of_block = pooled[static_cast<size_t>(b)];
                    if (in.teacher == Teacher::mean)
                        of_block += head[t] / static_cast<double>(p.group_size());
                    else
                        of_block = std::max(of_block, head[t]);
                }
            }
            for (int64_t b = 0; b < p.blocks(); ++b)
                to(i, r, b) = static_cast<float>(pooled[static_cast<size_t>(b)]);
        }
    }
}

void gate_kl(const Problem& p, const GateKlInput& in, const GateKlOutput& to) {
    const std::vector<int64_t> starts = block_starts(p), sequence = query_sequences(p);
    const int64_t width = in.gate_q.extent(2);
    const auto rows = static_cast<double>(p.queries() * p.kv_heads);
    Values d_k(static_cast<size_t>(in.gate_k.size()), 0.0);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t first = starts[static_cast<size_t>(sequence[static_cast<size_t>(i)])];
            const std::vector<int64_t> blocks = judged(p, in, i, r);
            Values logits, target;
            double total = 0;
            for (int64_t b : blocks) {
                logits.push_back(in.scale() * dot(in.gate_q[i][r], in.gate_k[first + b][r]));
                target.push_back(double{in.target(i, r, b)});
                total += target.back();
            }
            Values gate = logits;
            const double lse = softmax(gate);
            const bool learns = total > 0;
            double kl = 0;
            Values d_query(static_cast<size_t>(width), 0.0);
            for (size_t n = 0; n < blocks.size() && learns; ++n) {
                target[n] /= total;
                if (target[n] > 0) kl += target[n] * (std::log(target[n]) - logits[n] + lse);
                const double d = in.scale() * (gate[n] - target[n]) / rows;
                for (int64_t c = 0; c < width; ++c) {
                    d_query[static_cast<size_t>(c)] +=
                        d * double{in.gate_k(first + blocks[n], r, c)};
                    d_k[static_cast<size_t>(((first + blocks[n]) * p.kv_heads + r) * width + c)] +=
                        d * double{in.gate_q(i, r, c)};
                }
            }
            if (to.kl) to.kl(i, r) = kl;
            if (to.entropy) to.entropy(i, r) = entropy_of(gate);
            if (to.target_entropy) to.target_entropy(i, r) = learns ? entropy_of(target) : 0;
            for (int64_t c = 0; c < width && to.d_gate_q; ++c)
                to.d_gate_q(i, r, c) = static_cast<float>(d_query[static_cast<size_t>(c)]);
        }
    if (to.d_gate_k)
        std::transform(d_k.begin(), d_k.end(), to.d_gate_k.data(),
                       [](double d) { return static_cast<float>(d); });
}

}  // namespace msa::reference
