// SPDX-License-Identifier: MIT
// The tables of a record. bench/baselines.py adds one more.
#include <algorithm>
#include <charconv>

#include "experiments/bench/record.h"
#include "experiments/driver/version.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::bench {
namespace {

using report::Column;
using std::optional;

/// The shortest numbers that read back the same.
std::string all_text(const std::vector<double>& numbers) {
    std::string all;
    for (double number : numbers) {
        char text[32];
        const auto [end, error] = std::to_chars(text, text + sizeof(text), number);
        add_item(all, " ", std::string_view(text, end));
    }
    return all;
}

Column or_null(Column column, const char* null) {
    column.null = null;
    return column;
}

using State = Record::State;

const report::TableOf<State> kBenchmark{
    "benchmark",
    "what was timed, and on what",
    0,
    {{{"backend", "", "backend that was timed"}, &State::backend},
     {{"device", "", "name of the device; of several, the first"}, &State::device},
     {{"version", "", "version of msalab"}, [](const State&) { return kVersion; }},
     {{"started", "", "when the run began, UTC"}, &State::started},
     {{"is_complete", "", "the run went on to its last measurement"}, &State::is_complete},
     {or_null(report::kModel, "options change its sizes"), &State::model},
     {report::kQueryHeads, [](const State& of) { return of.sizes.query_heads; }},
     {report::kKvHeads, [](const State& of) { return of.sizes.kv_heads; }},
     {report::kHeadDim, [](const State& of) { return of.sizes.head_dim; }},
     {report::kIndexDim, [](const State& of) { return of.sizes.index_dim; }},
     {report::kBlockSize, [](const State& of) { return of.sizes.block_size; }},
     {report::kTopK, [](const State& of) { return of.sizes.top_k; }},
     {{.key = "copy_bytes_per_second",
       .unit = "B/s",
       .definition = "bytes read and written by a copy on the device, median",
       .null = "--devices"},
      [](const State& of) {
          return of.ceilings ? optional(of.ceilings->copy_rate()) : std::nullopt;
      }},
     {{.key = "copy_samples",
       .unit = "B/s",
       .definition = "copy_bytes_per_second of each copy, divided by spaces",
       .null = "--devices"},
      [](const State& of) {
          return of.ceilings ? optional(all_text(of.ceilings->copy_rates)) : std::nullopt;
      }},
     {{.key = "gemm_source",
       .unit = "",
       .definition = "where the rates of matrix products come from",
       .null = "there are none"},
      [](const State& of) {
          return of.ceilings ? optional(of.ceilings->gemm_source) : std::nullopt;
      }}}};

using Rate = std::pair<const Element, double>;

const report::TableOf<Rate> kGemmRates{
    "gemm",
    "rates of matrix products",
    1,
    {{report::kElement, [](const Rate& of) { return to_string(of.first); }},
     {{"gemm_flops_per_second", "FLOP/s", "rate of a large matrix product"},
      [](const Rate& of) { return of.second; }}}};

const Column kCase{"case", "", "name of the shape", "case"};
const Column kKind{"case_kind", "",
                   "square, chunk, short, pack, decode, mixed, top-k; captured: a layer of --input",
                   "case"};
const Column kCaseQueries{"case_queries", "", "Nq: queries of all sequences"};
const Column kCaseKeys{"case_keys", "", "Nk: keys of all sequences"};
const Column kCaseSequences{"case_sequences", "", "sequences of the case"};
const Column kCaseBlocks{"case_blocks", "", "B: blocks of the longest sequence"};

const report::TableOf<CaseRow> kCaseRows{"cases",
                                         "shapes",
                                         1,
                                         {{report::hidden(kCase), &CaseRow::name},
                                          {report::hidden(kKind), &CaseRow::kind},
                                          {kCaseQueries, &CaseRow::queries},
                                          {kCaseKeys, &CaseRow::keys},
                                          {kCaseSequences, &CaseRow::sequences},
                                          {kCaseBlocks, &CaseRow::blocks},
                                          {report::kTopK, &CaseRow::top_k}}};

optional<std::string> some(const std::string& words) {
    return words.empty() ? std::nullopt : optional(words);
}
optional<int64_t> some(int64_t count) { return count == 0 ? std::nullopt : optional(count); }

/// What a stage may have.
template <auto kMember>
report::ColumnOf<MeasuredRow> part(Column column, const char* null = "not of this stage") {
    return {or_null(std::move(column), null),
            [](const MeasuredRow& row) { return some(row.measured.*kMember); }};
}

/// What it has if it was timed.
template <typename Get>
report::ColumnOf<MeasuredRow> timed(Column column, Get get) {
    using Value = std::remove_cvref_t<std::invoke_result_t<Get, const MeasuredRow&>>;
    return {or_null(std::move(column), "skipped"), [get](const MeasuredRow& row) {
                return row.timed() ? optional<Value>(std::invoke(get, row)) : std::nullopt;
            }};
}

const Column kFlopsPerSecond{.key = "stage_flops_per_second",
                             .unit = "FLOP/s",
                             .definition = "stage_flops over median_us",
                             .heading = "TFLOP/s",
                             .form = {.decimals = -4, .per = kTera}};
const Column kMedian{.key = "median_us",
                     .unit = "us",
                     .definition = "median of samples_us",
                     .heading = "us",
                     .form = {.decimals = 1}};
const Column kSamples{"samples_us", "us", "time of a call in each sample, divided by spaces"};
const Column kCalls{"calls_per_sample", "", "calls in a row, each on its own operands"};
const Column kSkipped{.key = "skipped",
                      .unit = "",
                      .definition = "why it was not timed",
                      .heading = "skipped",
                      .null = "timed"};

const report::TableOf<MeasuredRow> kMeasurements{
    "measurements",
    "stages of the cases, timed from cold caches",
    8,
    {{kCase, &MeasuredRow::of_case},
     {report::kStage, [](const MeasuredRow& row) { return row.measured.stage; }},
     part<&Measurement::selection>(
         {"selection", "", "what is selected: structured, fitted or random", "selection"}),
     part<&Measurement::order>(report::kOrder),
     part<&Measurement::index_element>(
         {"index_form", "", "how index_q and index_k are stored", "index"}),
     part<&Measurement::support>(
         {"loss_support", "", "keys of the loss, full or selected; lse: gradients, the lse given",
          "support"}),
     part<&Measurement::page_size>(
         {"page_size", "tokens", "tokens of a page, where keys lie in pages", "page"}, "packed"),
     part<&Measurement::capacity>(
         {"capacity", "tokens", "tokens up to which a graph is right, whose lengths the GPU reads",
          "up to"},
         "fixed lengths"),
     part<&Measurement::rows>({"call_queries", "", "queries of one call"}, "all of the case"),
     {{.key = "union_of_8",
       .unit = "blocks",
       .definition = "blocks that 8 neighbouring queries select, mean (of the last 65536)",
       .heading = "union\nof 8",
       .form = {.decimals = 1},
       .null = "not of this stage"},
      [](const MeasuredRow& row) { return row.timed() ? row.measured.union_of_8 : std::nullopt; }},
     timed({"checked_rows", "", "queries compared with the reference before timing"},
           [](const MeasuredRow& row) { return row.measured.checked_rows; }),
     timed({"answered_by", "", "kernel of the backend; of a layer, the last; of layer_grad, each"},
           [](const MeasuredRow& row) { return row.measured.answered_by; }),
     timed(report::kStageFlops, [](const MeasuredRow& row) { return row.measured.flops; }),
     timed(report::kStageBytes, [](const MeasuredRow& row) { return row.measured.bytes; }),
     timed(kCalls, [](const MeasuredRow& row) { return row.measured.timing.calls; }),
     timed({"is_one_launch", "", "the calls of a sample are one graph"},
           [](const MeasuredRow& row) { return row.measured.timing.captured; }),
     timed(kMedian, &MeasuredRow::median_us),
     timed(
         {"spread", "1", "slowest less fastest sample, over the median", "spread", {.decimals = 3}},
         &MeasuredRow::spread),
     timed(kFlopsPerSecond, &MeasuredRow::flops_per_second),
     {{.key = "share_of_gemm",
       .unit = "1",
       .definition = "stage_flops_per_second over that of gemm",
       .heading = "of\ngemm",
       .form = {.decimals = 3},
       .null = "no rate is known"},
      &MeasuredRow::share_of_gemm},
     timed({"share_of_copy",
            "1",
            "bytes a second over those of a copy",
            "of copy\nrate",
            {.decimals = 3}},
           &MeasuredRow::share_of_copy),
     {{.key = "over_dense",
       .unit = "1",
       .definition = "time of dense attention, of layer_grad with its gradient, over this",
       .heading = "over\ndense",
       .form = {.decimals = 2},
       .null = "not of this stage"},
      &MeasuredRow::speedup},
     timed(kSamples,
           [](const MeasuredRow& row) { return all_text(row.measured.timing.samples_us); }),
     {kSkipped, [](const MeasuredRow& row) { return some(row.measured.skipped); }}}};

// Layers over ranks.

double slowest_over_mean(const RanksRow& row) {
    double sum = 0, most = 0;
    for (const std::vector<double>& samples : row.rank_samples) {
        sum += median(samples);
        most = std::max(most, median(samples));
    }
    return most * static_cast<double>(row.rank_samples.size()) / sum - 1;
}

constexpr report::Form kMicroseconds{.decimals = 1, .times = 1e6};

const report::TableOf<RanksRow> kOverRanks{
    "over_ranks",
    "one layer over several ranks, beside the first alone",
    2,
    {{kKind, &RanksRow::kind},
     {report::kTokens, &RanksRow::tokens},
     {{"ranks", "", "ranks that compute the layer together", "ranks"}, &RanksRow::ranks},
     {{"one_rank_seconds", "s", "time of the first rank alone, median", "one\nus", kMicroseconds},
      [](const RanksRow& row) { return median(row.one_samples); }},
     {{"all_ranks_seconds", "s", "time of the slowest rank, median", "all\nus", kMicroseconds},
      &RanksRow::seconds},
     {{"over_one_rank",
       "1",
       "one_rank_seconds over all_ranks_seconds",
       "speed-up",
       {.decimals = 3}},
      [](const RanksRow& row) { return median(row.one_samples) / row.seconds; }},
     {{"rank_imbalance",
       "1",
       "rank_seconds of the slowest over the mean, less 1",
       "imbalance\n%",
       {.decimals = 2, .times = 100}},
      slowest_over_mean},
     {{"different_ids", "", "ids that are not those of the first rank alone", "different\nids"},
      &RanksRow::different_ids},
     {{"different_out_values", "",
       "outputs that are not those of the first rank alone, of rows spread over the queries"},
      &RanksRow::different_out_values},
     {{"largest_out_difference",
       "",
       "largest difference of these outputs",
       "largest\ndifference",
       {.decimals = -3}},
      &RanksRow::largest_out_difference},
     {{"one_rank_samples", "s", "one_rank_seconds of each sample, divided by spaces"},
      [](const RanksRow& row) { return all_text(row.one_samples); }},
     {or_null(report::kGatherBytes, "nothing is gathered"), &RanksRow::gather_bytes},
     {or_null(report::shown(report::kGatherSeconds, "gather\nus", kMicroseconds),
              "nothing is gathered"),
      &RanksRow::gather_seconds}}};

struct RankRow {
    const RanksRow* of;
    size_t rank;
    const std::vector<double>& samples() const { return of->rank_samples[rank]; }
};

const report::TableOf<RankRow> kRankTimes{
    "rank_times",
    "the same, rank by rank",
    3,
    {{report::hidden(kKind), [](const RankRow& row) { return row.of->kind; }},
     {report::hidden(report::kTokens), [](const RankRow& row) { return row.of->tokens; }},
     {report::kRank, &RankRow::rank},
     {{"rank_seconds", "s", "time of the rank, median"},
      [](const RankRow& row) { return median(row.samples()); }},
     {{"rank_samples", "s", "rank_seconds of each sample, divided by spaces"},
      [](const RankRow& row) { return all_text(row.samples()); }}}};

}  // namespace

std::vector<report::Shape> tables() {
    return {kBenchmark.shape(),    kGemmRates.shape(), kCaseRows.shape(),
            kMeasurements.shape(), kOverRanks.shape(), kRankTimes.shape()};
}

report::Table state_table(const State& of) { return kBenchmark.of(of); }
report::Table gemm_table(const std::map<Element, double>& rates) { return kGemmRates.of(rates); }
report::Table cases_table(const std::vector<CaseRow>& rows) { return kCaseRows.of(rows); }
report::Table measurements_table(const std::vector<MeasuredRow>& rows) {
    return kMeasurements.of(rows);
}
std::vector<report::Table> ranks_tables(const std::vector<RanksRow>& rows) {
    std::vector<RankRow> ranks;
    for (const RanksRow& row : rows)
        for (size_t rank = 0; rank < row.rank_samples.size(); ++rank) ranks.push_back({&row, rank});
    return {kOverRanks.of(rows), kRankTimes.of(ranks)};
}

}  // namespace msa::experiments::bench
