// SPDX-License-Identifier: MIT
// The landmarks' softmax is the backend's block_mass with the blocks' mean keys as keys, one for
// each query head.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr int64_t kChosen = 256;  // chunks of the source, beside the outliers
constexpr float kOutlier = 2;     // above any probability

/// The least cosine of a key and the mean `m` of them all; 1 where one is 0.
float least_cosine(const KeyRows& keys, View<const float, 1> m) {
    float least = 1;
    for (int64_t j = 0; j < keys.count; ++j) {
        float dot = 0, key = 0, mean = 0;
        for (int64_t d = 0; d < m.size(); ++d) {
            dot += keys[j][d] * m(d);
            key += keys[j][d] * keys[j][d];
            mean += m(d) * m(d);
        }
        if (key > 0 && mean > 0) least = std::min(least, dot / std::sqrt(key * mean));
    }
    return least;
}

class ShadowKvSelector final : public Selector {
public:
    std::string_view name() const override { return "shadowkv"; }
    std::string_view rule() const override {
        return "softmax over the blocks of q . mean(k), largest of the group's heads; beside them "
               "the blocks of which one key is least like the mean, by cosine, 48 for every 256 "
               "chosen ones (ShadowKV, arXiv 2410.21465)";
    }
    std::string_view note() const override {
        return "outliers come inside the budget, in the source on top; its chunks are 8 tokens";
    }
    std::vector<PolicyOption> options() override {
        return {
            {"outliers", "blocks kept as outliers beside 256 chosen ones", &outliers_, 0, 1024}};
    }
    Family family() const override { return Family::keys; }
    Needs needs() const override { return {.rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        return per_head(phase.problem, blocks_seen(phase.problem));
    }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        starts_ = block_starts(p);
        Tensor<float, 3> means({starts_.back(), p.query_heads, p.head_dim});
        cosines_ = Tensor<float, 2>({p.kv_heads, starts_.back()});
        for (size_t s = 0; s + 1 < starts_.size(); ++s)
            for (int64_t b = starts_[s]; b < starts_[s + 1]; ++b) {
                const int64_t first = p.batch.cu_seqlens_k()[s] + (b - starts_[s]) * p.block_size;
                const int64_t count = std::min(p.block_size, p.batch.cu_seqlens_k()[s + 1] - first);
                for (int64_t h = 0; h < p.query_heads; ++h) {
                    const int64_t r = h / p.group_size();
                    const KeyRows keys = key_rows(layer.k.host(), r, first, count);
                    mean_of_keys(keys, means.view()[b][h]);
                    cosines_(r, b) = least_cosine(keys, std::as_const(means).view()[b][h]);
                }
            }
        if (starts_.back() > 0) means_ = {layer.backend, std::move(means)};
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        if (!means_) return {layer.backend, std::move(scores)};
        const Mirror<3> mass = of_landmarks(layer.backend, chunk);
        const View<const float, 3> from = mass.host();
        const std::vector<int64_t> sequence = query_sequences(p);
        const std::vector<KeyRange>& visible = visible_keys(p);
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const int64_t blocks = visible_blocks(visible[row].count, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                for (int64_t h = r * p.group_size(); h < (r + 1) * p.group_size(); ++h)
                    for (int64_t b = 0; b < blocks - 1; ++b)
                        scores(i, r, b) = std::max(scores(i, r, b), from(i, h, b));
                raise_outliers(starts_[static_cast<size_t>(sequence[row])], blocks - 1,
                               outliers_of(layer.rule.top_k), cosines_.view()[r],
                               scores.view()[i][r]);
            }
        }
        return {layer.backend, std::move(scores)};
    }

private:
    /// Blocks of a budget of k that are kept as outliers.
    int64_t outliers_of(int64_t top_k) const {
        const int64_t all = outliers_ + kChosen;
        return (2 * top_k * outliers_ + all) / (2 * all);
    }

    /// [Nq, Hq, B] softmax of each head over the blocks that lie before the query's own.
    Mirror<3> of_landmarks(Backend& backend, const SelectorChunk& chunk) const {
        const Problem& p = chunk.problem;
        std::vector<int64_t> newest;
        for (const KeyRange& seen : visible_keys(p))
            newest.push_back(visible_blocks(seen.count, p.block_size) - 2);
        Problem landmarks = p;
        landmarks.batch = PackedBatch(p.batch.cu_seqlens_q(), starts_, newest);
        landmarks.kv_heads = p.query_heads;
        landmarks.block_size = 1;
        landmarks.window.reset();  // counts tokens
        landmarks.softmax_scale_override = p.softmax_scale();
        auto mass = backend.make<float, 3>({p.queries(), p.query_heads, landmarks.blocks()});
        backend.block_mass(landmarks, {chunk.q.floats(), means_.floats()}, {mass, {}});
        return {backend, std::move(mass)};
    }

    /// Of the first `whole` blocks of a sequence, `count` of the least cosine; of equal ones the
    /// lower.
    static void raise_outliers(int64_t start, int64_t whole, int64_t count,
                               View<const float, 1> cosines, View<float, 1> scores) {
        count = std::min(count, std::max<int64_t>(0, whole));
        std::vector<int64_t> order(static_cast<size_t>(std::max<int64_t>(0, whole)));
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + count, order.end(),
                          [&](int64_t a, int64_t b) {
                              const float at_a = cosines(start + a), at_b = cosines(start + b);
                              return at_a != at_b ? at_a < at_b : a < b;
                          });
        for (int64_t n = 0; n < count; ++n) scores(order[static_cast<size_t>(n)]) += kOutlier;
    }

    int64_t outliers_ = 48;
    std::vector<int64_t> starts_;  // [S+1] first block of each sequence
    Mirror<3> means_;              // [blocks, Hq, dh]
    Tensor<float, 2> cosines_;     // [Hkv, blocks]
};

}  // namespace

std::unique_ptr<Selector> make_shadowkv_selector() { return std::make_unique<ShadowKvSelector>(); }

}  // namespace msa
