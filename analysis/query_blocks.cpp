// SPDX-License-Identifier: MIT
#include "analysis/query_blocks.h"

namespace msa::analysis {

QueryBlocks query_blocks(const Problem& p, std::span<const RowKind> kinds, int64_t tokens) {
    const std::vector<KeyRange> seen = visible_keys(p);
    const std::vector<int64_t> sequence = query_sequences(p);
    QueryBlocks blocks;
    int64_t last = -1;
    for (size_t i = 0; i < kinds.size(); ++i) {
        if (kinds[i] != RowKind::counted) {
            blocks.of_query.push_back(-1);
            continue;
        }
        const int64_t stretch = (seen[i].count - 1) / tokens;
        if (blocks.rows.empty() || sequence[i] != blocks.sequences.back() || stretch != last) {
            blocks.sequences.push_back(sequence[i]);
            blocks.rows.push_back(0);
        }
        last = stretch;
        ++blocks.rows.back();
        blocks.of_query.push_back(blocks.count() - 1);
    }
    return blocks;
}

void BlockMeans::add(std::span<const int64_t> of_query,
                     const std::function<void(int64_t i, RowValues values)>& measure) {
    int64_t first = 0;
    while (first < std::ssize(of_query)) {
        const int64_t block = of_query[static_cast<size_t>(first)];
        int64_t end = first + 1;
        while (end < std::ssize(of_query) && of_query[static_cast<size_t>(end)] == block) ++end;
        if (block >= 0)
            add_rows(std::span(means_).subspan(static_cast<size_t>(block * columns_),
                                               static_cast<size_t>(columns_)),
                     end - first,
                     [&](int64_t row, RowValues values) { measure(first + row, values); });
        first = end;
    }
}

void BlockSums::add(std::span<const int64_t> of_query, View<const double, 2> mass_kept,
                    View<const double, 2> differences, View<const double, 2> norms) {
    for (int64_t i = 0; i < norms.extent(0); ++i) {
        const int64_t block = of_query[static_cast<size_t>(i)];
        if (block < 0) continue;
        for (int64_t r = 0; r < norms.extent(1); ++r) {
            mass(block, r) += mass_kept(i, r);
            difference(block, r) += differences(i, r);
            norm(block, r) += norms(i, r);
        }
    }
}

State BlockSums::state() const {
    State state;
    for (const Tensor<double, 2>* of : {&mass, &difference, &norm})
        state.sums.insert(state.sums.end(), of->data(), of->data() + of->size());
    return state;
}

void BlockSums::join(const State& state) {
    require_state("sums of blocks", state, static_cast<size_t>(3 * mass.size()), 0);
    const double* sum = state.sums.data();
    for (Tensor<double, 2>* of : {&mass, &difference, &norm})
        for (int64_t n = 0; n < of->size(); ++n) of->data()[n] += *sum++;
}

}  // namespace msa::analysis
