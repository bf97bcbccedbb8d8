// SPDX-License-Identifier: MIT
#include <omp.h>

#include <iostream>

#include "core/select/selector.h"
#include "experiments/analyze/layer.h"
#include "experiments/analyze/options.h"
#include "experiments/analyze/summary.h"
#include "experiments/driver/own_attention.h"
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
    bool index_everywhere = true;
    for (int64_t number : o.layers) {
        io::require_post_rope(file, number);
        index_everywhere &= file.layer(number).has(io::Field::index_q);
    }
    const bool chosen = !o.selectors.empty();
    if (!chosen) o.selectors = list_pointwise_selectors();
    std::erase_if(o.selectors, [&](const std::string& name) {
        const bool lacks = make_selector(name)->needs().index && !index_everywhere;
        require(!(chosen && lacks), file.path().string(),
                ": has no index_q and index_k, which "
                "selector ",
                name, " needs");
        return lacks;
    });
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<AnalyzeOptions> parsed = parse_analyze_options(args, out);
    if (!parsed) return 0;
    AnalyzeOptions& o = *parsed;
    const io::ActivationsReader file(o.file);
    resolve(o, file);
    for (int64_t number : o.layers) warn_of_own_attention(o.file, file.layer(number), err);
    const std::vector<int64_t> tokens = choose_queries(o, file.info().tokens());
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_backend(o.backend, o.backend_options);
    if (o.backend_options.threads > 0) omp_set_num_threads(o.backend_options.threads);

    std::filesystem::create_directories(o.out);
    io::RunRecord record = start_record("msa-analyze", args, {o.file});
    record.options = o.identity();
    record.definitions = metric_definitions();
    record.device = backend->device();
    std::vector<LayerElements> elements;
    for (int64_t number : o.layers)
        elements.push_back(layer_elements(*backend, file.layer(number), o.element));
    record_elements(elements, record);
    record.seed = o.seed;
    const std::filesystem::path results_path = o.out / "results.h5";
    io::ResultsWriter writer(results_path, record,
                             o.overwrite ? io::IfExists::overwrite
                             : o.resume  ? io::IfExists::resume
                                         : io::IfExists::refuse);
    for (int64_t number : o.layers) {
        const std::string unit = text("layer ", number);
        if (writer.done(unit)) {
            err << unit << ": done before\n";
            continue;
        }
        writer.begin_unit(unit);
        analyze_layer(o, file, file.layer(number), tokens, *backend, writer, err);
        writer.end_unit();
    }
    writer.finish(utc_now());

    const io::ResultsReader results(results_path);
    check_order(results);
    write_text(o.out / "summary.json", summary_json(results));
    write_text(o.out / "metrics.csv", metrics_csv(results));
    if (o.json)
        out << summary_json(results);
    else
        print_table(results, out);
    return 0;
}

}  // namespace msa::experiments::analyze
