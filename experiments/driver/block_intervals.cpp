// SPDX-License-Identifier: MIT
#include "experiments/driver/block_intervals.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/run.h"

namespace msa::experiments {

void write_query_blocks(io::UnitWriter& to, const std::string& group,
                        const analysis::QueryBlocks& blocks) {
    if (blocks.count() == 0) return;
    const Shape<1> shape{blocks.count()};
    to.write<int64_t, 1>(group + "/rows", {blocks.rows.data(), shape},
                         {"block", "queries",
                          text("counted queries of each block: those that lie in the same ",
                               kBlockTokens, " positions of their sequence")});
    to.write<int64_t, 1>(group + "/sequence", {blocks.sequences.data(), shape},
                         {"block", "", "sequence of each block"});
}

int64_t StoredBlocks::sequence_count() const {
    return std::ssize(std::set<int64_t>(sequences.begin(), sequences.end()));
}

StoredBlocks read_query_blocks(const io::ResultsReader& results, const std::string& group) {
    StoredBlocks blocks;
    if (!results.has(group)) return blocks;
    const Tensor<int64_t, 1> of = results.read<int64_t, 1>(group + "/sequence");
    const Tensor<int64_t, 1> counted = results.read<int64_t, 1>(group + "/rows");
    blocks.sequences.assign(of.data(), of.data() + of.size());
    blocks.rows.assign(counted.data(), counted.data() + counted.size());
    return blocks;
}

void write_block_means(io::UnitWriter& to, const std::string& dataset,
                       const analysis::BlockMeans& means, int64_t blocks, int64_t groups,
                       const std::vector<std::string>& columns) {
    if (blocks == 0) return;
    const std::vector<double> values = means.values();
    Tensor<double, 3> by_group({blocks, groups, std::ssize(columns)});
    for (int64_t m = 0; m < blocks; ++m)
        for (int64_t c = 0; c < std::ssize(columns); ++c)
            for (int64_t r = 0; r < groups; ++r)
                by_group(m, r, c) =
                    values[static_cast<size_t>((m * std::ssize(columns) + c) * groups + r)];
    to.write<double, 3>(dataset, std::as_const(by_group).view(),
                        {"block,group,column", "",
                         "columns: " + join(columns) + "; means over the queries of a block"});
}

std::vector<double> average_of_draw(const StoredBlocks& blocks, View<const double, 3> means,
                                    View<const int32_t, 1> times) {
    std::vector<double> averages(static_cast<size_t>(means.extent(2)), 0.0);
    const auto groups = static_cast<double>(means.extent(1));
    double rows = 0;
    for (int64_t m = 0; m < means.extent(0); ++m)
        rows += static_cast<double>(times(m) * blocks.rows[static_cast<size_t>(m)]);
    for (int64_t r = 0; r < means.extent(1); ++r)
        for (int64_t c = 0; c < means.extent(2); ++c) {
            double sum = 0;
            for (int64_t m = 0; m < means.extent(0); ++m)
                if (times(m) != 0)
                    sum += static_cast<double>(times(m) * blocks.rows[static_cast<size_t>(m)]) *
                           means(m, r, c);
            averages[static_cast<size_t>(c)] += sum / rows / groups;
        }
    return averages;
}

std::vector<analysis::Estimate> with_intervals(const io::ResultsReader& results,
                                               const StoredBlocks& blocks,
                                               const std::string& dataset,
                                               const std::vector<double>& values,
                                               const std::string& less) {
    std::vector<std::vector<double>> draws(values.size());
    if (blocks.count() >= 2) {
        Tensor<double, 3> means = results.read<double, 3>(dataset);
        if (!less.empty()) {
            const Tensor<double, 3> other = results.read<double, 3>(less);
            require(other.shape() == means.shape(), less, " and ", dataset,
                    " differ in shape, must be of the same blocks");
            for (int64_t n = 0; n < means.size(); ++n) means.data()[n] -= other.data()[n];
        }
        const Tensor<int32_t, 2> times =
            analysis::bootstrap_draws(blocks.sequences, kDraws, results.run().seed);
        for (int64_t n = 0; n < kDraws; ++n) {
            const std::vector<double> averages = average_of_draw(
                blocks, std::as_const(means).view(), std::as_const(times).view()[n]);
            for (size_t c = 0; c < draws.size(); ++c) draws[c].push_back(averages[c]);
        }
    }
    std::vector<analysis::Estimate> estimates;
    for (size_t c = 0; c < values.size(); ++c)
        estimates.push_back(analysis::with_interval(values[c], std::move(draws[c])));
    return estimates;
}

nlohmann::ordered_json interval_json(const analysis::Estimate& of) {
    return {{"low", json_number(of.low)}, {"high", json_number(of.high)}};
}

std::string drawn_text(const StoredBlocks& blocks, uint64_t seed) {
    return text("Interval: ", kIntervalsWords, "; ", blocks.count(), " blocks of ",
                blocks.sequence_count(), blocks.sequence_count() == 1 ? " sequence" : " sequences",
                ", seed ", seed, ".");
}

}  // namespace msa::experiments
