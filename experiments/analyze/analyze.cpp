// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iostream>
#include <sstream>

#include "core/cu_seqlens.h"
#include "core/select/selector.h"
#include "experiments/analyze/findings.h"
#include "experiments/analyze/layer.h"
#include "experiments/analyze/options.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/run.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::analyze {
namespace {

/// Fills in what depends on the file, and checks the options against it. What became of k.
std::string resolve(AnalyzeOptions& o, std::span<const std::string> args,
                    const io::ActivationsReader& file, std::ostream& err) {
    const std::vector<io::LayerInfo> layers = pick_full_layers(o, file, err);
    for (int64_t number : o.layers) sampled_queries(o, file.info().cu_seqlens, number, o.seed);
    std::string note = resolve_sizes(o, args, layers, file.info().cu_seqlens, err);
    const int64_t blocks = ceil_div(longest_sequence(file.info().cu_seqlens), o.block_size);
    require(o.all_rows || blocks > o.rule.top_k, file.name(), ": the longest sequence has ", blocks,
            " blocks of --block-size = ", o.block_size,
            " tokens, all of which --top-k keeps: there "
            "is nothing to choose; choose smaller ones, or --all-rows");
    const bool chosen = !o.selectors.empty();
    if (!chosen) o.selectors = list_pointwise_selectors();
    std::erase_if(o.selectors, [&](const std::string& name) {
        std::string lacks;
        for (const io::LayerInfo& layer : layers)
            if (lacks.empty()) lacks = lacking(make_selector(name)->needs(), layer, o.block_size);
        require(!chosen || lacks.empty(), file.name(), ": has no ", lacks, ", which selector ",
                name, " needs; msa-fit-indexer makes them");
        return !lacks.empty();
    });
    return note;
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<AnalyzeOptions> parsed = parse_analyze_options(args, out);
    if (!parsed) return 0;
    AnalyzeOptions& o = *parsed;
    const io::ActivationsReader file(o.files);
    const std::string note = resolve(o, args, file, err);
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_own_backend(o);

    UnitRun job(kProgram.name, args, o, inputs_of(o, o),
                {"summary.json", "metrics.csv", "analyze.txt", "tables"}, err);
    job.describe(option_table(o), definitions_with(note), *backend, file, o.element);
    return job.run(query_units(
                       file, o.layers, o.unit_queries,
                       [&](const io::LayerInfo& layer) {
                           return analyzed_queries(o, file, layer).blocks.begins;
                       },
                       [&](const LayerPart& part, const Worker& worker, io::UnitWriter& to) {
                           analyze_part(o, file, part, worker, to);
                       }),
                   o, *backend, answer, out, join_layer);
}

RunAnswer answer(const io::ResultsReader& results) {
    const Findings findings = make_findings(results);
    check_mass_bounds(results, findings);
    return {make_report(results, findings), "analyze.txt",
            [csv = metrics_csv(results)](const Completed& run) {
                write_text(run.out / "metrics.csv", csv);
            }};
}

}  // namespace msa::experiments::analyze
