// SPDX-License-Identifier: MIT
#include "core/random.h"

#include "core/select/selector.h"

namespace msa {
namespace {

class RandomSelector final : public Selector {
public:
    std::string_view name() const override { return "random"; }
    std::string_view rule() const override {
        return "uniformly random visible blocks, a function of seed, layer, token, group and block "
               "alone";
    }
    std::string_view note() const override { return "tokens are numbered through all sequences"; }
    Family family() const override { return Family::position; }
    PolicyCost do_cost(const Phase&) const override { return {}; }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        Tensor<float, 3> scores(
            {chunk.problem.queries(), chunk.problem.kv_heads, chunk.problem.blocks()});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < scores.extent(0); ++i) {
            const int64_t token = chunk.tokens[static_cast<size_t>(i)];
            for (int64_t r = 0; r < scores.extent(1); ++r)
                for (int64_t b = 0; b < scores.extent(2); ++b)
                    scores(i, r, b) = static_cast<float>(
                        random_uniform(mix(layer.seed, layer.number, token, r, b)));
        }
        return {layer.backend, std::move(scores)};
    }
};

}  // namespace

std::unique_ptr<Selector> make_random_selector() { return std::make_unique<RandomSelector>(); }

}  // namespace msa
