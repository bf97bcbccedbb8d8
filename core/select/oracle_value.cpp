// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "core/select/cost.h"
#include "core/select/rows_held.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class OracleValueSelector final : public Selector {
public:
    std::string_view name() const override { return "oracle-value"; }
    std::string_view rule() const override {
        return "Main Branch probability of a key times |v|, summed over the block, mean over the "
               "group's heads (cf. CriticalKV, arXiv 2502.03805)";
    }
    std::string_view note() const override {
        return "|v| stands for the source's |W_o v|, as a capture has no W_o";
    }
    Family family() const override { return Family::oracle; }
    Needs needs() const override { return {.values = true}; }
    PolicyCost do_cost(const Phase& phase) const override { return oracle_cost(phase.problem); }

    void prepare(const SelectorLayer& layer) override {
        const View<const float, 3> v = layer.v.host();
        norms_ = Tensor<float, 2>({layer.problem.kv_heads, layer.problem.keys()});
        for (int64_t r = 0; r < norms_.extent(0); ++r)
            for (int64_t j = 0; j < norms_.extent(1); ++j) {
                double squares = 0;
                for (int64_t d = 0; d < v.extent(2); ++d)
                    squares += double{v(j, r, d)} * double{v(j, r, d)};
                norms_(r, j) = static_cast<float>(std::sqrt(squares));
            }
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        const int64_t step = rows_held(p.kv_heads * p.batch.longest_keys());
        for (int64_t begin = 0; begin < p.queries(); begin += step) {
            const QueryRange range{begin, std::min(begin + step, p.queries())};
            const int64_t count = range.end - begin;
            score_part(layer, p.with_queries(range), chunk.q.floats().slice(begin, count),
                       scores.view().slice(begin, count));
        }
        return {layer.backend, std::move(scores)};
    }

private:
    void score_part(const SelectorLayer& layer, const Problem& p, View<const float, 3> q,
                    View<float, 3> scores) const {
        Problem tokens = p;
        tokens.block_size = 1;
        auto there = layer.backend.make<float, 3>({p.queries(), p.kv_heads, tokens.blocks()});
        layer.backend.block_mass(tokens, {q, layer.k.floats(), layer.sinks}, {there, {}});
        const Mirror<3> mass(layer.backend, std::move(there));
        const View<const float, 3> from = mass.host();
        const std::vector<KeyRange>& visible = visible_keys(p);
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const KeyRange seen = visible[static_cast<size_t>(i)];
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t j = 0; j < seen.count; ++j)
                    scores(i, r, j / p.block_size) += from(i, r, j) * norms_(r, seen.first + j);
        }
    }

    Tensor<float, 2> norms_;  // [Hkv, Nk] |v|
};

}  // namespace

std::unique_ptr<Selector> make_oracle_value_selector() {
    return std::make_unique<OracleValueSelector>();
}

}  // namespace msa
