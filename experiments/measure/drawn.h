// SPDX-License-Identifier: MIT
// The bootstrap (analysis/bootstrap.h) over the blocks of queries of a layer: one for all programs.
#pragma once

#include <string>
#include <vector>

#include "analysis/bootstrap.h"
#include "analysis/query_blocks.h"
#include "core/io/results.h"
#include "experiments/report/text.h"

namespace msa::experiments::measure {

inline constexpr int64_t kDraws = 1000;  // of the bootstrap

inline constexpr const char* kIntervalsWords =
    "95 % bootstrap interval over sequences and blocks of 128 positions. With fewer than 6 "
    "sequences it is over the blocks of these sequences only. With fewer than 6 blocks there is no "
    "interval";
static_assert(analysis::kLeastUnits == 6 && analysis::kBlockPositions == 128);

/// Blocks of queries, and how often each draw takes each block. Blocks without a counted query are
/// never drawn.
class DrawnBlocks {
public:
    /// kDraws draws of the blocks in a group of results (write_query_blocks); none if fewer than
    /// kLeastUnits blocks have counted queries.
    DrawnBlocks(const io::ResultsReader&, const std::string& group);

    /// The sample itself, as a single draw that takes each block once.
    DrawnBlocks once() const;
    /// Numbers of blocks with counted queries, of their sequences, and of these queries.
    int64_t blocks() const;
    int64_t sequences() const;
    int64_t queries() const;
    bool can_draw() const { return blocks() >= analysis::kLeastUnits; }

    /// Per draw: the mean over the drawn queries of each of the columns [first, first + columns) of
    /// sums [M, any] with their counts, averaged over these columns. Blocks that a draw does not
    /// take are not read.
    std::vector<double> means(View<const double, 2> sums, View<const int64_t, 2> counts,
                              int64_t first, int64_t columns) const;
    /// Per draw: the mean relative error over the heads whose norm is not 0, from OutputError's
    /// sums per block: squares of the differences, then of the norms.
    std::vector<double> errors(View<const double, 2> sums) const;

    /// "Interval: 95 % bootstrap interval ... Drawn from 14 blocks of 1 sequence, seed 0.", or why
    /// there is none.
    std::string text(uint64_t seed) const;

private:
    DrawnBlocks() = default;
    std::vector<int64_t> sequences_, rows_;  // [M]
    Tensor<int32_t, 2> draws_;               // [draws, M]
};

/// A number over all queries, and over the queries of each draw.
struct Numbers {
    double all = 0;
    std::vector<double> draws = {};

    analysis::Estimate estimate() const { return analysis::with_interval(all, draws); }
};
Numbers operator-(const Numbers&, const Numbers&);
Numbers operator/(const Numbers&, const Numbers&);

/// The numbers of a layer's sums, by their names below /sums/<l>.
class LayerNumbers {
public:
    LayerNumbers(const io::ResultsReader&, const std::string& layer);

    bool has(const std::string& name) const;
    /// A column of the sums of an analysis::Recall.
    Numbers recall(const std::string& name, const char* column) const;
    /// The relative error in the sums of an analysis::OutputError.
    Numbers error(const std::string& name) const;
    /// The mean of all columns.
    Numbers mean(const std::string& name) const;
    /// The mean of the columns of one of `parts` equal parts, which count the same queries.
    Numbers mean_of_heads(const std::string& name, int64_t part, int64_t parts) const;
    const DrawnBlocks& drawn() const { return drawn_; }

private:
    struct Read {
        Tensor<double, 2> sums;
        Tensor<int64_t, 2> counts;
    };
    Read read(const std::string& name) const;
    static double average(const Read&, int64_t first, int64_t columns);

    const io::ResultsReader& results_;
    std::string layer_;
    DrawnBlocks drawn_, once_;
};

/// For a page that has counted its queries before: "Intervals are 95 % of 1000 bootstrap draws of
/// 14 blocks of them, of 1 sequence, seed 0.", or why there are none.
std::string draws_text(int64_t blocks, int64_t sequences, uint64_t seed);

/// of - from, draw by draw; both must use the same draws.
std::vector<double> differences(const std::vector<double>& of, const std::vector<double>& from);

}  // namespace msa::experiments::measure
