// SPDX-License-Identifier: MIT
#include "experiments/cost/cost.h"

#include <ostream>

#include "experiments/cost/options.h"
#include "experiments/driver/run_record.h"
#include "experiments/programs.h"

namespace msa::experiments::cost {
namespace {

report::Report answer(const CostOptions& o) {
    const analysis::Hardware on = read_hardware(o.hardware, o.ceilings);
    for (Element element : {*o.element, *o.index_element}) on.peak(element);  // throws without one
    report::Report report = !o.gpus.empty()     ? cost_over_gpus(o, on)
                            : o.results.empty() ? cost_from_sizes(o, on)
                                                : cost_from_results(o, on);
    for (report::Table& table : chip_tables(on, o.ceilings))
        report.tables.push_back(std::move(table));
    return report;
}

}  // namespace

std::vector<report::Shape> tables() {
    std::vector<report::Shape> all = tables_from_sizes();
    for (const auto& more : {tables_over_gpus(), tables_from_results(), tables_of_inputs()})
        all.insert(all.end(), more.begin(), more.end());
    return all;
}

int run(std::span<const std::string> args, std::ostream& out, std::ostream&) {
    std::optional<CostOptions> o = parse_cost_options(args, out);
    if (!o) return 0;
    const report::Report report = answer(*o);
    if (!o->json) {
        report::print(report, out);
        return 0;
    }
    std::vector<std::filesystem::path> inputs;
    if (!o->results.empty()) inputs.push_back(o->results);
    io::RunRecord record = start_record(kProgram.name, args, inputs);
    record.options = option_table(*o).record();
    out << report::json_text(report, record);
    return 0;
}

}  // namespace msa::experiments::cost
