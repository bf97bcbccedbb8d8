// SPDX-License-Identifier: MIT
#include "experiments/bench/record.h"

#include <algorithm>
#include <ostream>

#include "core/utf8.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/presets.h"
#include "experiments/driver/run_record.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::bench {
namespace {

std::string microseconds_text(double microseconds) {
    const bool milli = microseconds >= 10000;
    return number_text(milli ? microseconds / 1000 : microseconds) + (milli ? " ms" : " us");
}

std::string words_of(const Measurement& m) {
    std::string words = m.stage;
    for (const std::string* part : {&m.selection, &m.order, &m.index_element, &m.support})
        if (!part->empty()) words += " " + *part;
    if (m.page_size > 0) words += concat(" pages of ", m.page_size);
    if (m.capacity > 0) words += concat(" up to ", m.capacity);
    return words;
}

constexpr const char* kLegend =
    "union of 8: blocks that 8 neighbouring queries select, mean; spread: slowest less fastest "
    "sample, over the median; of gemm: FLOP/s over a matrix product's; of copy rate: bytes a "
    "second over a copy's; over dense: time of dense attention, with its gradient where this stage "
    "has one, over this one";

}  // namespace

Record::Record(const BenchOptions& o, std::span<const std::string> args, const std::string& device,
               std::optional<Ceilings> ceilings)
    : options_(o),
      run_(start_record(kProgram.name, args,
                        o.captured ? o.captured->inputs() : std::vector<std::filesystem::path>())) {
    BenchOptions recorded = o;
    run_.options = option_table(recorded).record();
    run_.seed = o.seed;
    run_.element = to_string(o.sizes.element);
    state_ = {.backend = o.backend,
              .device = valid_utf8(device),
              .started = run_.started,
              .sizes = o.sizes,
              .ceilings = std::move(ceilings)};
    if (!o.model.empty()) state_.model = valid_utf8(o.model);
}

void Record::add(const Case& c, const Measurement& m) {
    const Problem& p = c.problem;
    if (cases_.empty() || cases_.back().name != c.name)
        cases_.push_back(
            {c.name, c.kind, p.queries(), p.keys(), p.sequences(), p.blocks(), c.top_k});
    MeasuredRow row{c.name, m};
    if (row.timed()) {
        const auto [least, most] = std::ranges::minmax(m.timing.samples_us);
        const double seconds = median(m.timing.samples_us) * kMicro;
        row.median_us = median(m.timing.samples_us);
        row.spread = (most - least) / row.median_us;
        row.flops_per_second = m.flops / seconds;
        row.share_of_copy = m.bytes / seconds / state_.ceilings->copy_rate();
        const std::map<Element, double>& rates = state_.ceilings->gemm_rates;
        if (const auto gemm = rates.find(m.element); gemm != rates.end() && m.flops > 0)
            row.share_of_gemm = m.flops / seconds / gemm->second;
        if (const double dense = dense_microseconds(c.name, m.stage); dense > 0)
            row.speedup = dense / row.median_us;
    }
    measured_.push_back(std::move(row));
    save();
}

void Record::add(const RanksRow& row) {
    ranks_.push_back(row);
    save();
}

double Record::dense_microseconds(const std::string& of_case, const std::string& stage) const {
    std::vector<std::string> dense;
    if (stage == "layer") dense = {"dense_attention"};
    if (stage == "layer_grad") dense = {"dense_attention", "dense_attention_grad"};
    double sum = 0;
    for (const std::string& part : dense) {
        const auto own = std::ranges::find_if(measured_, [&](const MeasuredRow& row) {
            return row.of_case == of_case && row.measured.stage == part && row.timed();
        });
        if (own == measured_.end()) return 0;
        sum += own->median_us;
    }
    return sum;
}

report::Report Record::report() const {
    report::Report report{.title = concat(state_.device, "\n", sizes_text(state_.sizes), ", ",
                                          to_string(state_.sizes.element)),
                          .tables = {state_table(state_)}};
    if (!state_.ceilings) {
        for (report::Table& table : ranks_tables(ranks_)) report.tables.push_back(std::move(table));
        return report;
    }
    report.title += concat("\ncopy ", number_text(state_.ceilings->copy_rate() / kTera), " TB/s");
    report.tables.push_back(gemm_table(state_.ceilings->gemm_rates));
    report.tables.push_back(cases_table(cases_));
    report.tables.push_back(measurements_table(measured_));
    report.note("headings", kLegend);
    return report;
}

std::string Record::text() const { return report::json_text(report(), run_); }

void Record::save() const {
    if (!options_.out.empty()) write_text(options_.out, text());
}

void Record::finish(std::ostream& out) {
    state_.is_complete = true;
    save();
    if (options_.json)
        out << text();
    else
        report::print(report(), out);
}

std::string Record::last_line() const {
    const MeasuredRow& row = measured_.back();
    const std::string what = row.of_case + ": " + words_of(row.measured) + ": ";
    return what +
           (row.timed() ? microseconds_text(row.median_us) : "skipped: " + row.measured.skipped);
}

}  // namespace msa::experiments::bench
