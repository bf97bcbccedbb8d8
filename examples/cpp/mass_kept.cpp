// SPDX-License-Identifier: MIT
// How much attention probability does a selection of key blocks keep? One layer, from operands in
// memory to a number: index_select, sparse_attention and block_mass.
#include <iostream>
#include <random>

#include "core/registry.h"

namespace {

constexpr int64_t kTokens = 512, kHeads = 8, kGroups = 2, kHeadDim = 64, kIndexDim = 32;
constexpr int64_t kBlockSize = 32, kTopK = 4;

/// Stands for a tensor that was captured from a model.
template <int Rank>
msa::Tensor<float, Rank> noise(const msa::Shape<Rank>& shape, unsigned seed) {
    msa::Tensor<float, Rank> tensor(shape);
    std::mt19937 bits(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = normal(bits);
    return tensor;
}

/// The share of all attention probability that lies in the blocks `ids`, over queries and groups.
double mass_of(msa::View<const float, 3> mass, msa::View<const int32_t, 3> ids) {
    double sum = 0;
    for (int64_t query = 0; query < ids.extent(0); ++query)
        for (int64_t group = 0; group < ids.extent(1); ++group)
            for (int64_t slot = 0; slot < ids.extent(2); ++slot)
                if (const int32_t block = ids(query, group, slot); block >= 0)  // -1: padding
                    sum += mass(query, group, block);
    return sum / static_cast<double>(ids.extent(0) * ids.extent(1));
}

}  // namespace

int main() {
    const msa::Problem problem =
        msa::square_problem(kTokens, kHeads, kGroups, kHeadDim, kIndexDim, kBlockSize);
    const auto q = noise<3>({kTokens, kHeads, kHeadDim}, 1);
    const auto k = noise<3>({kTokens, kGroups, kHeadDim}, 2);
    const auto v = noise<3>({kTokens, kGroups, kHeadDim}, 3);
    const auto index_q = noise<3>({kTokens, kGroups, kIndexDim}, 4);
    const auto index_k = noise<2>({kTokens, kIndexDim}, 5);
    const auto backend = msa::make_backend("cpu");

    // Which blocks the Index Branch selects; a query's own block is always among them.
    msa::Tensor<int32_t, 3> ids({kTokens, kGroups, kTopK});
    backend->index_select(problem, {.top_k = kTopK}, {index_q, index_k}, ids);

    // Attention over the tokens of these blocks alone.
    msa::Tensor<float, 3> out({kTokens, kHeads, kHeadDim});
    msa::Tensor<float, 2> lse({kTokens, kHeads});
    backend->sparse_attention(problem, {q, k, v}, ids, {out, lse});

    // What dense attention gives to every block.
    msa::Tensor<float, 3> mass({kTokens, kGroups, problem.blocks()});
    backend->block_mass(problem, {q, k}, {mass, {}});
    backend->finish();

    std::cout << backend->device() << ": " << kTokens << " tokens in blocks of " << kBlockSize
              << ", k = " << kTopK << " of " << problem.blocks() << " blocks\n"
              << "last query, head 0: lse " << lse(kTokens - 1, 0) << ", output begins with "
              << out(kTokens - 1, 0, 0) << "\n"
              << "mass kept: " << mass_of(mass, ids) << "\n";
}
