// SPDX-License-Identifier: MIT
#include "core/select/dsa.h"

#include <algorithm>
#include <optional>

#include "core/cpu/tile.h"
#include "core/half.h"
#include "core/select/block_vectors.h"

namespace msa {
namespace {

/// A host copy of an operand that lives elsewhere.
template <int Rank>
Tensor<float, Rank> to_host(Backend& backend, In<Rank> there) {
    if (there.element() == Element::f32) return backend.download(there.template as<const float>());
    const Tensor<bf16, Rank> stored = backend.download(there.template as<const bf16>());
    Tensor<float, Rank> values(stored.shape());
    for (int64_t i = 0; i < values.size(); ++i)
        values.data()[i] = static_cast<float>(stored.data()[i]);
    return values;
}

class DsaSelector final : public Selector {
public:
    std::string_view name() const override { return "dsa"; }
    std::string_view rule() const override {
        return "the lightning indexer: largest over the block's tokens of the sum over index heads "
               "of ReLU(index_q . index_k), one choice for all groups (DeepSeek-V3.2-Exp)";
    }
    Needs needs() const override { return {.index = true}; }
    void prepare(const SelectorLayer& layer) override { keys_.emplace(layer); }
    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange> visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        const bool there = layer.backend.space() != Space::host;
        const Tensor<float, 3> copy =
            there ? to_host(layer.backend, chunk.index_q) : Tensor<float, 3>();
        const View<const float, 3> index_q =
            there ? View<const float, 3>(copy) : chunk.index_q.as<const float>();
#pragma omp parallel for schedule(dynamic, 16) if (p.queries() > kSmall)
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const std::vector<float> tokens =
                keys_->scores(index_q[i], sequence[row], visible[row].count);
            for (int64_t b = 0; b < visible_blocks(visible[row].count, p.block_size); ++b) {
                const float* first = tokens.data() + b * p.block_size;
                const float* last =
                    tokens.data() + std::min((b + 1) * p.block_size, visible[row].count);
                const float top = *std::max_element(first, last);
                for (int64_t r = 0; r < p.kv_heads; ++r) scores(i, r, b) = top;
            }
        }
    }

private:
    std::optional<LightningKeys> keys_;
};

}  // namespace

LightningKeys::LightningKeys(const SelectorLayer& layer) : dims_(layer.problem.index_dim) {
    const bool there = layer.backend.space() != Space::host;
    const Tensor<float, 2> copy =
        there ? to_host(layer.backend, layer.index_k) : Tensor<float, 2>();
    const View<const float, 2> index_k =
        there ? View<const float, 2>(copy) : layer.index_k.as<const float>();
    const std::vector<int64_t>& starts = layer.problem.batch.cu_seqlens_k();
    for (size_t s = 0; s + 1 < starts.size(); ++s) {
        const int64_t tokens = starts[s + 1] - starts[s];
        panels_.emplace_back(Shape<1>{cpu::panel_floats(dims_, tokens)});
        cpu::pack_keys(index_k.data() + starts[s] * dims_, dims_, tokens, dims_,
                       panels_.back().data());
    }
}

std::vector<float> LightningKeys::scores(View<const float, 2> index_q, int64_t sequence,
                                         int64_t count) const {
    std::vector<float> sums(static_cast<size_t>(count), 0.0F);
    if (count == 0) return sums;
    Tensor<float, 1> products({cpu::padded(count)});
    for (int64_t h = 0; h < index_q.extent(0); ++h) {
        cpu::multiply({index_q[h].data(), dims_, 1},
                      {panels_[static_cast<size_t>(sequence)].data(), dims_, count},
                      products.data(), products.size());
        for (int64_t j = 0; j < count; ++j)
            sums[static_cast<size_t>(j)] += std::max(products(j), 0.0F);
    }
    return sums;
}

std::unique_ptr<Selector> make_dsa_selector() { return std::make_unique<DsaSelector>(); }

}  // namespace msa
