// SPDX-License-Identifier: MIT
#include "experiments/measure/drawn.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "analysis/recall.h"
#include "core/error.h"
#include "experiments/driver/run.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::measure {
namespace {

std::vector<int64_t> read_list(const io::ResultsReader& results, const std::string& dataset) {
    const auto values = results.read<int64_t, 1>(dataset);
    return {values.data(), values.data() + values.size()};
}

}  // namespace

DrawnBlocks::DrawnBlocks(const io::ResultsReader& results, const std::string& group)
    : sequences_(read_list(results, group + "/sequence")),
      rows_(read_list(results, group + "/rows")) {
    std::vector<int64_t> places, of;
    for (size_t b = 0; b < rows_.size(); ++b)
        if (rows_[b] > 0) {
            places.push_back(static_cast<int64_t>(b));
            of.push_back(sequences_[b]);
        }
    if (std::ssize(places) < analysis::kLeastUnits) return;
    const Tensor<int32_t, 2> drawn = analysis::bootstrap_draws(of, kDraws, results.run().seed);
    draws_ = Tensor<int32_t, 2>({kDraws, std::ssize(rows_)});
    for (int64_t n = 0; n < kDraws; ++n)
        for (int64_t at = 0; at < std::ssize(places); ++at)
            draws_(n, places[static_cast<size_t>(at)]) = drawn(n, at);
}

DrawnBlocks DrawnBlocks::once() const {
    DrawnBlocks once;
    once.sequences_ = sequences_;
    once.rows_ = rows_;
    once.draws_ = Tensor<int32_t, 2>({1, std::ssize(rows_)});
    std::fill_n(once.draws_.data(), once.draws_.size(), 1);
    return once;
}

int64_t DrawnBlocks::blocks() const {
    return std::count_if(rows_.begin(), rows_.end(), [](int64_t rows) { return rows > 0; });
}

int64_t DrawnBlocks::sequences() const {
    std::set<int64_t> distinct;
    for (size_t b = 0; b < rows_.size(); ++b)
        if (rows_[b] > 0) distinct.insert(sequences_[b]);
    return std::ssize(distinct);
}

int64_t DrawnBlocks::queries() const {
    return std::accumulate(rows_.begin(), rows_.end(), int64_t{0});
}

std::vector<double> DrawnBlocks::means(View<const double, 2> sums, View<const int64_t, 2> counts,
                                       int64_t first, int64_t columns) const {
    std::vector<double> averages(static_cast<size_t>(draws_.extent(0)), 0.0);
#pragma omp parallel for
    for (int64_t n = 0; n < draws_.extent(0); ++n)
        for (int64_t c = first; c < first + columns; ++c) {
            double sum = 0;
            int64_t count = 0;
            for (int64_t b = 0; b < sums.extent(0); ++b) {
                if (draws_(n, b) == 0) continue;
                sum += draws_(n, b) * sums(b, c);
                count += draws_(n, b) * counts(b, c);
            }
            averages[static_cast<size_t>(n)] +=
                sum / static_cast<double>(count) / static_cast<double>(columns);
        }
    return averages;
}

std::vector<double> DrawnBlocks::errors(View<const double, 2> sums) const {
    const int64_t heads = sums.extent(1) / 2;
    std::vector<double> errors(static_cast<size_t>(draws_.extent(0)));
#pragma omp parallel for
    for (int64_t n = 0; n < draws_.extent(0); ++n) {
        double sum = 0, living = 0;
        for (int64_t h = 0; h < heads; ++h) {
            double off = 0, all = 0;
            for (int64_t b = 0; b < sums.extent(0); ++b) {
                if (draws_(n, b) == 0) continue;
                off += draws_(n, b) * sums(b, h);
                all += draws_(n, b) * sums(b, heads + h);
            }
            if (all == 0) continue;
            sum += std::sqrt(off / all);
            ++living;
        }
        errors[static_cast<size_t>(n)] = sum / living;
    }
    return errors;
}

std::string DrawnBlocks::text(uint64_t seed) const {
    const std::string counts =
        msa::concat(count_text(blocks(), "block"), " of ", count_text(sequences(), "sequence"));
    if (!can_draw())
        return msa::concat("No interval: the counted queries lie in ", counts, ", each ",
                           analysis::kBlockPositions, " positions; ", analysis::kLeastUnits,
                           " blocks are the fewest to draw from.");
    return msa::concat("Interval: ", kIntervalsWords, ". Drawn from ", counts, ", seed ", seed,
                       ".");
}

std::string draws_text(int64_t blocks, int64_t sequences, uint64_t seed) {
    const std::string counts =
        msa::concat(blocks, " blocks of them, of ", count_text(sequences, "sequence"));
    if (blocks < analysis::kLeastUnits)
        return msa::concat("No intervals: of ", counts, ", too few to draw from.");
    return msa::concat("Intervals are 95 % of ", kDraws, " bootstrap draws of ", counts, ", seed ",
                       seed, ".");
}

Numbers operator-(const Numbers& a, const Numbers& b) {
    return {a.all - b.all, differences(a.draws, b.draws)};
}

Numbers operator/(const Numbers& a, const Numbers& b) {
    Numbers share{a.all / b.all, a.draws};
    for (size_t n = 0; n < share.draws.size(); ++n) share.draws[n] /= b.draws[n];
    return share;
}

/// Over all queries, then over the columns, as the accumulators have it.
double LayerNumbers::average(const Read& of, int64_t first, int64_t columns) {
    std::vector<double> means;
    for (int64_t c = first; c < first + columns; ++c) {
        double sum = 0;
        int64_t count = 0;
        for (int64_t b = 0; b < of.sums.extent(0); ++b) {
            sum += of.sums(b, c);
            count += of.counts(b, c);
        }
        means.push_back(sum / static_cast<double>(count));
    }
    return analysis::average(means);
}

LayerNumbers::LayerNumbers(const io::ResultsReader& results, const std::string& layer)
    : results_(results),
      layer_(layer),
      drawn_(results, "/query_blocks/" + layer),
      once_(drawn_.once()) {}

bool LayerNumbers::has(const std::string& name) const {
    return results_.has(sums_group(layer_, name));
}

LayerNumbers::Read LayerNumbers::read(const std::string& name) const {
    const std::string group = sums_group(layer_, name);
    return {results_.read<double, 2>(group + "/sums"),
            results_.read<int64_t, 2>(group + "/counts")};
}

Numbers LayerNumbers::recall(const std::string& name, const char* column) const {
    const Read of = read(name);
    const int64_t groups = of.sums.extent(1) / std::ssize(analysis::Recall::kColumns);
    const int64_t first = analysis::Recall::first_of(column, groups);
    return {average(of, first, groups),
            drawn_.means(of.sums.view(), of.counts.view(), first, groups)};
}

Numbers LayerNumbers::error(const std::string& name) const {
    const auto sums = results_.read<double, 2>(sums_group(layer_, name) + "/sums");
    return {once_.errors(sums.view()).front(), drawn_.errors(sums.view())};
}

Numbers LayerNumbers::mean(const std::string& name) const {
    const Read of = read(name);
    return {average(of, 0, of.sums.extent(1)),
            drawn_.means(of.sums.view(), of.counts.view(), 0, of.sums.extent(1))};
}

Numbers LayerNumbers::mean_of_heads(const std::string& name, int64_t part, int64_t parts) const {
    const Read of = read(name);
    const int64_t heads = of.sums.extent(1) / parts, first = part * heads;
    Tensor<double, 2> sums({of.sums.extent(0), 1});
    Tensor<int64_t, 2> counts(sums.shape());
    for (int64_t b = 0; b < sums.extent(0); ++b)
        for (int64_t c = first; c < first + heads; ++c) {
            sums(b, 0) += of.sums(b, c);
            counts(b, 0) += of.counts(b, c);
        }
    return {average(of, first, heads), drawn_.means(sums.view(), counts.view(), 0, 1)};
}

std::vector<double> differences(const std::vector<double>& of, const std::vector<double>& from) {
    std::vector<double> paired;
    for (size_t n = 0; n < of.size(); ++n) paired.push_back(of[n] - from[n]);
    return paired;
}

}  // namespace msa::experiments::measure
