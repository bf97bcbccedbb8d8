// SPDX-License-Identifier: MIT
#include "experiments/measure/sinks.h"

#include <algorithm>
#include <map>
#include <set>

#include "analysis/rows.h"
#include "analysis/sink.h"
#include "core/error.h"
#include "experiments/driver/options.h"
#include "experiments/measure/sums.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::measure {
namespace {

constexpr double kSink = 0.05, kKept = 0.8;
constexpr const char* kRemedy = "--forced-first 1";

struct Dropped {
    Sink of;
    int64_t first;
};

report::Column setting_or_none() {
    report::Column column = report::kSetting;
    column.null = "the program has one setting";
    return column;
}

const report::TableOf<Dropped> kTable{
    "dropped_sinks",
    "layers where dense attention has a sink that the choice of blocks drops",
    3,
    {{report::hidden(report::kLayer), [](const Dropped& row) { return row.of.layer; }},
     {report::hidden(report::kSelector), [](const Dropped& row) { return row.of.selector; }},
     {setting_or_none(), [](const Dropped& row) { return row.of.setting; }},
     {report::hidden(report::metric("sink_mass_dense")),
      [](const Dropped& row) { return report::without_interval(row.of.dense); }},
     {report::hidden(report::metric("sink_mass_sparse")),
      [](const Dropped& row) { return report::without_interval(row.of.sparse); }},
     {{"sink_from_layer", "", "first layer where dense attention has a sink"}, &Dropped::first},
     {{"remedy", "", "option that keeps the sink"}, [](const Dropped&) { return kRemedy; }}}};

std::string dropped_text(const std::vector<Dropped>& dropped) {
    if (dropped.empty()) return "";
    std::map<std::string, std::string> layers;  // of each selector
    std::set<std::string> selectors;
    for (const Dropped& row : dropped) {
        selectors.insert(row.of.selector);
        std::string& of =
            layers[row.of.setting ? row.of.selector + "@" + *row.of.setting : row.of.selector];
        add_item(of, ", ", row.of.layer, " (", fixed_text(row.of.dense, 3), " to ",
                 fixed_text(row.of.sparse, 3), ")");
    }
    std::string words;
    for (const auto& [selector, of] : layers) add_item(words, "; ", selector, " in layer ", of);
    return concat("Sink from layer ", dropped.front().first, "; ", join(selectors),
                  selectors.size() == 1 ? " drops it" : " drop it", "; force block 0.\n",
                  "Sink dropped, probability on token 0 from dense to sparse: ", words,
                  ". The model puts it there in dense attention, and it goes to other tokens "
                  "here: ",
                  kRemedy, " keeps it.");
}

}  // namespace

Sink read_sink(const io::ResultsReader& results, const std::string& layer, const std::string& name,
               const std::string& selector) {
    const auto mean = [&](const std::string& of) {
        const std::string group = sums_group(layer, of + "/sink");
        const auto sums = results.read<double, 2>(group + "/sums");
        const auto counts = results.read<int64_t, 2>(group + "/counts");
        analysis::State all{std::vector<double>(static_cast<size_t>(sums.extent(1))),
                            std::vector<int64_t>(static_cast<size_t>(sums.extent(1)))};
        for (int64_t b = 0; b < sums.extent(0); ++b)
            for (int64_t c = 0; c < sums.extent(1); ++c) {
                all.sums[static_cast<size_t>(c)] += sums(b, c);
                all.counts[static_cast<size_t>(c)] += counts(b, c);
            }
        analysis::SinkMass sink(sums.extent(1) / 2, 1);
        sink.join(all);
        return analysis::average(sink.first_token());
    };
    return {std::stoll(layer), selector, std::nullopt, mean("dense"), mean(name)};
}

const report::Shape& dropped_sinks_shape() { return kTable.shape(); }

void add_dropped_sinks(const std::vector<Sink>& sinks, report::Report& to) {
    std::vector<Dropped> dropped;
    const auto first = std::ranges::min_element(sinks, {}, [](const Sink& of) {
        return of.dense > kSink ? of.layer : std::numeric_limits<int64_t>::max();
    });
    for (const Sink& of : sinks)
        if (of.dense > kSink && of.sparse < kKept * of.dense) dropped.push_back({of, first->layer});
    to.tables.push_back(kTable.of(dropped));
    to.note("dropped_sinks", dropped_text(dropped));
}

}  // namespace msa::experiments::measure
