// SPDX-License-Identifier: MIT
// Keys stay as they are: what counts are products with queries of which few channels are left.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

/// The channels with the largest sum of |q| over the heads [first, first + heads); of equal ones
/// the lower.
std::vector<int64_t> largest_channels(View<const float, 2> q, int64_t first, int64_t heads,
                                      int64_t count) {
    std::vector<float> sum(static_cast<size_t>(q.extent(1)), 0.0F);
    for (int64_t h = first; h < first + heads; ++h)
        for (size_t d = 0; d < sum.size(); ++d) sum[d] += std::fabs(q(h, static_cast<int64_t>(d)));
    std::vector<int64_t> order(sum.size());
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int64_t a, int64_t b) {
        const float at_a = sum[static_cast<size_t>(a)];
        const float at_b = sum[static_cast<size_t>(b)];
        return at_a != at_b ? at_a > at_b : a < b;
    });
    order.resize(static_cast<size_t>(count));
    return order;
}

/// One head's query with those channels alone, over the root of their share of |q|_1: logits of
/// few channels spread less.
void keep_channels(View<const float, 1> q, const std::vector<int64_t>& channels,
                   View<float, 1> kept) {
    float all = 0, some = 0;
    for (int64_t d = 0; d < q.size(); ++d) all += std::fabs(q(d));
    for (int64_t d : channels) some += std::fabs(q(d));
    for (int64_t d : channels) kept(d) = some > 0 ? q(d) * std::sqrt(all / some) : 0;
}

class SparqSelector final : public Selector {
public:
    std::string_view name() const override { return "sparq"; }
    std::string_view rule() const override {
        return "attention by the eighth of the channels that is largest in the sum of |q| over the "
               "group's heads, softmax at the source's temperature, summed over the block, mean "
               "over the group's heads (SparQ, arXiv 2312.04985)";
    }
    std::string_view note() const override {
        return "the source keeps tokens, and adds the mean value for what it leaves out";
    }
    std::vector<PolicyOption> options() override {
        return {{"rank", "channels looked at; 0: one of 8", &rank_, 0, kMaxHeadDim}};
    }
    Family family() const override { return Family::keys; }
    PolicyCost do_cost(const Phase& phase) const override {
        const double share = static_cast<double>(channels_read(phase.problem)) /
                             static_cast<double>(phase.problem.head_dim);
        return per_head(phase.problem, share * keys_seen(phase.problem));
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const View<const float, 3> q = chunk.q.host();
        Tensor<float, 3> kept(q.shape());
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                const int64_t first = r * p.group_size();
                const std::vector<int64_t> channels =
                    largest_channels(q[i], first, p.group_size(), channels_read(p));
                for (int64_t h = first; h < first + p.group_size(); ++h)
                    keep_channels(q[i][h], channels, kept.view()[i][h]);
            }
        const Mirror<3> queries(layer.backend, std::move(kept));
        auto mass = layer.backend.make<float, 3>({p.queries(), p.kv_heads, p.blocks()});
        layer.backend.block_mass(p, {queries.floats(), layer.k.floats(), layer.sinks}, {mass, {}});
        layer.backend.finish();
        return {layer.backend, std::move(mass)};
    }

private:
    int64_t channels_read(const Problem& p) const {
        return std::clamp<int64_t>(rank_ == 0 ? p.head_dim / 8 : rank_, 1, p.head_dim);
    }

    int64_t rank_ = 0;
};

}  // namespace

std::unique_ptr<Selector> make_sparq_selector() { return std::make_unique<SparqSelector>(); }

}  // namespace msa
