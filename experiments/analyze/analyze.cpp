// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "core/select/selector.h"
#include "experiments/analyze/layer.h"
#include "experiments/analyze/options.h"
#include "experiments/analyze/summary.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/own_attention.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/write_text.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::analyze {
namespace {

/// Fills in what depends on the file, and checks the options against it.
void resolve(AnalyzeOptions& o, const io::ActivationsReader& file) {
    if (o.layers.empty())
        for (const io::LayerInfo& layer : file.info().layers) o.layers.push_back(layer.layer);
    for (int64_t number : o.layers) io::require_post_rope(file, number);
}

/// The selectors that the layers have operands for; those that were asked for must be.
void resolve_selectors(AnalyzeOptions& o, const io::ActivationsReader& file) {
    const bool chosen = !o.selectors.empty();
    for (const std::string& name : o.selectors) pointwise_selector("selectors", name);
    if (!chosen) o.selectors = list_pointwise_selectors();
    std::erase_if(o.selectors, [&](const std::string& name) {
        std::string lacks;
        for (int64_t number : o.layers)
            if (lacks.empty())
                lacks = lacking(make_selector(name)->needs(), file.layer(number), o.block_size);
        require(!chosen || lacks.empty(), file.name(), ": has no ", lacks, ", which selector ",
                name, " needs");
        return !lacks.empty();
    });
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<AnalyzeOptions> parsed = parse_analyze_options(args, out);
    if (!parsed) return 0;
    AnalyzeOptions& o = *parsed;
    const io::ActivationsReader file(o.files);
    resolve(o, file);
    for (int64_t number : o.layers) choose_queries(o, file.info().cu_seqlens, number);
    std::vector<io::LayerInfo> layers;
    for (int64_t number : o.layers) layers.push_back(file.layer(number));
    take_own_sizes(o, args, layers, err);
    resolve_selectors(o, file);
    const std::string note = clamp_top_k(o.rule, o.block_size, file.info().cu_seqlens);
    if (!note.empty()) err << "note: " << note << '\n';
    for (int64_t number : o.layers)
        warn_of_own_attention(file, number, Computed::with_window_cap_and_sinks, err);
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_backend(o.backend, o.backend_options);

    UnitRun job("msa-analyze", args, o, inputs_of(o, o), {"summary.json", "metrics.csv"}, err);
    job.record.options = option_table(o).record();
    job.record.definitions = metric_definitions(note);
    job.record.device = backend->device();
    record_elements(*backend, file, o.layers, o.element, job.record);
    record_captures(file, job.record);
    job.begin(layer_units(
        file, o.layers, [&](const io::LayerInfo& layer, const Worker& worker, io::UnitWriter& to) {
            const std::vector<int64_t> queries =
                choose_queries(o, file.info().cu_seqlens, layer.layer);
            analyze_layer(o, file, layer, queries, worker, to);
        }));
    if (!job.work(o, *backend, OnError::stop)) return 0;
    complete({job.finish(), o.out, o.files, o.json, 0, out});
    return 0;
}

void complete(const Completed& run) {
    const io::ResultsReader& results = run.results;
    check_mass_bounds(results);
    write_text(run.out / "metrics.csv", metrics_csv(results));
    write_text(run.out / "summary.json", summary_json(results));
    if (run.json)
        run.print << summary_json(results);
    else
        print_table(results, run.print);
}

}  // namespace msa::experiments::analyze
