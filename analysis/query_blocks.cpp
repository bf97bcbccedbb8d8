// SPDX-License-Identifier: MIT
#include "analysis/query_blocks.h"

#include <algorithm>

namespace msa::analysis {
namespace {

void add_to(State& state, const State& more) {
    if (state.sums.empty() && state.counts.empty()) {
        state = more;
        return;
    }
    require_state("a block", more, state.sums.size(), state.counts.size());
    for (size_t n = 0; n < state.sums.size(); ++n) state.sums[n] += more.sums[n];
    for (size_t n = 0; n < state.counts.size(); ++n) state.counts[n] += more.counts[n];
}

template <typename T>
Tensor<T, 2> table_of(const std::vector<State>& rows, std::vector<T> State::*numbers) {
    const int64_t columns = rows.empty() ? 0 : std::ssize(rows.front().*numbers);
    Tensor<T, 2> table({std::ssize(rows), columns}, Fill::nothing);
    for (int64_t m = 0; m < table.extent(0); ++m) {
        const std::vector<T>& row = rows[static_cast<size_t>(m)].*numbers;
        std::copy(row.begin(), row.end(), table.data() + m * columns);
    }
    return table;
}

}  // namespace

int64_t QueryBlocks::at(int64_t query) const {
    return std::lower_bound(begins.begin(), begins.end(), query) - begins.begin();
}

QueryBlocks query_blocks(const Problem& p, std::span<const RowKind> kinds) {
    const std::vector<KeyRange> seen = visible_keys(p);
    const std::vector<int64_t> sequence = query_sequences(p);
    QueryBlocks blocks;
    int64_t last = -1;
    for (size_t i = 0; i < kinds.size(); ++i) {
        const int64_t stretch = (seen[i].count - 1) / kBlockPositions;
        if (blocks.rows.empty() || sequence[i] != blocks.sequences.back() || stretch != last) {
            blocks.sequences.push_back(sequence[i]);
            blocks.rows.push_back(0);
            blocks.begins.push_back(blocks.begins.back());
        }
        last = stretch;
        ++blocks.begins.back();
        if (kinds[i] == RowKind::counted) ++blocks.rows.back();
    }
    return blocks;
}

BlockSums::BlockSums(View<const double, 2> sums, View<const int64_t, 2> counts)
    : of_(static_cast<size_t>(sums.extent(0))) {
    for (int64_t m = 0; m < sums.extent(0); ++m) {
        State& state = of_[static_cast<size_t>(m)];
        state.sums.assign(sums[m].data(), sums[m].data() + sums.extent(1));
        state.counts.assign(counts[m].data(), counts[m].data() + counts.extent(1));
    }
}

void BlockSums::add(int64_t block, const State& state) {
    add_to(of_[static_cast<size_t>(block)], state);
}

void BlockSums::append(const BlockSums& next) {
    of_.insert(of_.end(), next.of_.begin(), next.of_.end());
}

State BlockSums::total() const {
    State all;
    for (const State& of : of_) add_to(all, of);
    return all;
}

Tensor<double, 2> BlockSums::sums() const { return table_of(of_, &State::sums); }

Tensor<int64_t, 2> BlockSums::counts() const { return table_of(of_, &State::counts); }

}  // namespace msa::analysis
