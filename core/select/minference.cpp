// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>

#include "core/select/attention_rows.h"
#include "core/select/received_mass.h"

namespace msa {
namespace {

constexpr int64_t kSample = 64;  // queries of the first sequence that decide on the patterns

using Pattern = std::unique_ptr<Selector> (*)();
constexpr std::array<Pattern, 3> kPatterns{make_minference_vertical_slash_selector,
                                           make_window_selector,
                                           make_minference_block_sparse_selector};

class MInferenceSelector final : public Selector {
public:
    std::string_view name() const override { return "minference"; }
    std::string_view rule() const override {
        return "for each group the pattern that keeps most mass at the budget on 64 queries of the "
               "layer: vertical-slash, A-shape (the window) or block-sparse; first and local block "
               "forced (MInference with its pattern search, arXiv 2407.02490)";
    }
    Needs needs() const override { return {.queries = true, .rule = true}; }

    void prepare(const SelectorLayer& layer) override {
        for (size_t n = 0; n < kPatterns.size(); ++n) {
            patterns_[n] = kPatterns[n]();
            patterns_[n]->prepare(layer);
        }
        search(layer);
    }
    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        Tensor<float, 3> all(scores.shape());
        for (size_t n = 0; n < kPatterns.size(); ++n) {
            if (std::find(best_.begin(), best_.end(), n) == best_.end()) continue;
            patterns_[n]->score(layer, chunk, all);
            for (int64_t i = 0; i < scores.extent(0); ++i)
                for (int64_t r = 0; r < scores.extent(1); ++r)
                    if (best_[static_cast<size_t>(r)] == n)
                        std::copy_n(all.view()[i][r].data(), scores.extent(2), scores[i][r].data());
        }
    }
    SelectionRule adjust(SelectionRule asked) const override { return force(asked, 1, 1); }

private:
    /// Sets best_ from the mass that each pattern keeps on the sample.
    void search(const SelectorLayer& layer) {
        const Problem& p = layer.problem;
        best_.assign(static_cast<size_t>(p.kv_heads), 0);
        const int64_t length = prompt_length(layer, 0), n = std::min(kSample, length / 2);
        if (n == 0) return;
        std::vector<int64_t> positions;  // in the later half, where patterns matter
        for (int64_t i = 0; i < n; ++i)
            positions.push_back(length - 1 - (n - 1 - i) * length / (2 * n));
        const Tensor<float, 3> mass = mass_at(layer, 0, positions);
        const Tensor<float, 3> q = layer.read_q(positions);
        Problem some = p;
        std::vector<int64_t> cu_seqlens_q(p.batch.cu_seqlens_k().size(), n);
        cu_seqlens_q.front() = 0;
        some.batch = PackedBatch(std::move(cu_seqlens_q), p.batch.cu_seqlens_k(), positions);
        const SelectorChunk chunk{some, positions, q, {}, mass, {}};
        std::vector<double> most(best_.size(), -1);
        for (size_t at = 0; at < kPatterns.size(); ++at) {
            const std::vector<double> kept = mass_kept(layer, chunk, *patterns_[at]);
            for (size_t r = 0; r < best_.size(); ++r)
                if (kept[r] > most[r]) {
                    most[r] = kept[r];
                    best_[r] = at;
                }
        }
    }

    /// [Hkv]: mass that a pattern keeps on the sample.
    std::vector<double> mass_kept(const SelectorLayer& layer, const SelectorChunk& chunk,
                                  Selector& pattern) const {
        const SelectionRule rule = adjust(layer.rule);
        Tensor<float, 3> scores(chunk.mass.shape());
        pattern.score(layer, chunk, scores);
        const Tensor<int32_t, 3> ids = select_on_host(layer, chunk.problem, rule, scores);
        std::vector<double> kept(best_.size(), 0.0);
        for (int64_t i = 0; i < ids.extent(0); ++i)
            for (int64_t r = 0; r < ids.extent(1); ++r)
                for (int32_t b : selected(ids, i, r))
                    kept[static_cast<size_t>(r)] += double{chunk.mass(i, r, b)};
        return kept;
    }

    static Tensor<int32_t, 3> select_on_host(const SelectorLayer& layer, const Problem& p,
                                             const SelectionRule& rule,
                                             View<const float, 3> scores) {
        Backend& backend = layer.backend;
        auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, rule.top_k});
        if (backend.space() == Space::host) {
            backend.select_blocks(p, rule, scores, ids);
            backend.finish();
            return ids;
        }
        const Tensor<float, 3> there = backend.upload(scores);
        backend.select_blocks(p, rule, there, ids);
        return backend.download(ids.view());
    }

    std::array<std::unique_ptr<Selector>, kPatterns.size()> patterns_;
    std::vector<size_t> best_;  // [Hkv] of kPatterns
};

}  // namespace

std::unique_ptr<Selector> make_minference_selector() {
    return std::make_unique<MInferenceSelector>();
}

}  // namespace msa
