// SPDX-License-Identifier: MIT
#include "core/select/vertical_slash.h"

#include <algorithm>
#include <numeric>

#include "core/select/attention_rows.h"

namespace msa {
namespace {

/// Sum over [begin, end) from running sums; nothing lies behind their end.
double sum_of(const std::vector<double>& sums, int64_t begin, int64_t end) {
    const auto at = [&](int64_t n) {
        return sums[std::min(static_cast<size_t>(n), sums.size() - 1)];
    };
    return at(end) - at(begin);
}

}  // namespace

VerticalSlash::VerticalSlash(const SelectorLayer& layer, int64_t probe)
    : groups_(layer.problem.kv_heads), block_size_(layer.problem.block_size) {
    const Problem& p = layer.problem;
    for (int64_t s = 0; s < p.sequences(); ++s) {
        const int64_t end = prompt_length(layer, s), base = s * groups_;
        for (std::vector<std::vector<double>>* sums : {&vertical_, &slash_})
            sums->resize(static_cast<size_t>(base + groups_),
                         std::vector<double>(static_cast<size_t>(end + 1), 0.0));
        const int64_t begin = std::max<int64_t>(0, end - probe);
        const auto add = [&](int64_t first, View<const float, 3> mass) {
            for (int64_t n = 0; n < mass.extent(0); ++n)
                for (int64_t r = 0; r < groups_; ++r)
                    add_row(static_cast<size_t>(base + r), begin + first + n + 1, p.group_size(),
                            mass[n][r]);
        };
        for_each_mass(layer, sequence_tokens(p, s, {begin, end}), 1, add);
        for (int64_t r = 0; r < groups_; ++r)
            for (std::vector<std::vector<double>>* sums : {&vertical_, &slash_}) {
                std::vector<double>& line = (*sums)[static_cast<size_t>(base + r)];
                std::partial_sum(line.begin(), line.end(), line.begin());
            }
    }
}

void VerticalSlash::add_row(size_t at, int64_t seen, int64_t heads, View<const float, 1> mean) {
    for (int64_t j = 0; j < seen; ++j) {
        const double weight = static_cast<double>(heads) * double{mean(j)};
        vertical_[at][static_cast<size_t>(j + 1)] += weight;
        slash_[at][static_cast<size_t>(seen - j)] += weight;
    }
}

float VerticalSlash::score(int64_t sequence, int64_t group, int64_t position, int64_t block) const {
    const int64_t begin = block * block_size_, end = std::min(begin + block_size_, position + 1);
    return static_cast<float>(
        sum_of(of(vertical_, sequence, group), begin, end) +
        sum_of(of(slash_, sequence, group), position + 1 - end, position + 1 - begin));
}

}  // namespace msa
