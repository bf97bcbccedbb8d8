// SPDX-License-Identifier: MIT
#include "experiments/fit/fit.h"

#include <omp.h>

#include <iostream>

#include "experiments/common/own_attention.h"
#include "experiments/common/run_record.h"
#include "experiments/common/write_text.h"
#include "experiments/fit/indexer_file.h"
#include "experiments/fit/layer.h"
#include "experiments/fit/options.h"
#include "experiments/fit/start.h"
#include "experiments/fit/summary.h"

namespace msa::experiments {
namespace {

/// Fills in what depends on the files, and checks the options against them.
void resolve(FitOptions& o, std::span<const io::ActivationsReader> files) {
    if (o.layers.empty())
        for (const io::LayerInfo& layer : files.front().info().layers)
            o.layers.push_back(layer.layer);
    for (int64_t layer : o.layers) {
        check_layer(files, layer);
        check_start(o.start, index_form(o, files.front(), layer), files.front().layer(layer));
    }
    if (o.backend_options.threads == 0) o.backend_options.threads = omp_get_max_threads();
}

/// What an earlier run left follows the rule of results: kept, replaced or refused.
void check_unfinished(const FitOptions& o, const std::filesystem::path& what, bool unfinished) {
    require(o.resume || o.overwrite || !unfinished, what.string(),
            ": holds an unfinished run; --resume continues it, --overwrite starts afresh");
}

}  // namespace

int fit_indexer(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<FitOptions> parsed = parse_fit_options(args, out);
    if (!parsed) return 0;
    FitOptions& o = *parsed;
    std::vector<io::ActivationsReader> files;
    for (const std::filesystem::path& file : o.files) files.emplace_back(file);
    resolve(o, files);
    for (size_t n = 0; n < files.size(); ++n)
        for (int64_t layer : o.layers)
            warn_of_own_attention(o.files[n], files[n].layer(layer), err);
    const Split split = split_queries(o, all_sequences(files));
    const std::unique_ptr<Backend> backend = make_backend(o.backend, o.backend_options);
    if (backend->space() != Space::host)
        throw UnsupportedError(text("--backend ", o.backend, ": fitting needs a host backend"));

    std::filesystem::create_directories(o.out);
    io::RunRecord record = start_record("msa-fit-indexer", args, o.files);
    record.options = o.identity();
    record.definitions = fit_definitions();
    record.device = backend->device();
    record.seed = o.seed;
    const auto checkpoint_of = [&](int64_t layer) {
        return Checkpoint(o.out / text("checkpoint-", layer, ".h5"), layer, record);
    };
    for (int64_t layer : o.layers) {
        const Checkpoint checkpoint = checkpoint_of(layer);
        check_unfinished(o, checkpoint.path(), std::filesystem::exists(checkpoint.path()));
        if (o.overwrite) checkpoint.remove();
    }
    const std::filesystem::path results_path = o.out / "results.h5";
    const std::filesystem::path summary_path = o.out / "summary.json";  // written last
    check_unfinished(o, o.out, exists(results_path) && !exists(summary_path));
    io::ResultsWriter writer(results_path, record,
                             o.overwrite ? io::IfExists::overwrite
                             : o.resume  ? io::IfExists::resume
                                         : io::IfExists::refuse);
    for (int64_t layer : o.layers) {
        const std::string unit = text("layer ", layer);
        const Checkpoint checkpoint = checkpoint_of(layer);
        if (writer.done(unit)) {
            err << unit << ": done before\n";
        } else {
            writer.begin_unit(unit);
            fit_layer(o, files, layer, split, *backend, writer, checkpoint, err);
            writer.end_unit();
        }
        checkpoint.remove();
    }
    std::filesystem::remove(summary_path);
    writer.finish(utc_now());

    const io::ResultsReader results(results_path);
    write_indexer_file(o.out / "indexer.h5", files, results, o.layers, o.backend_options.threads);
    write_text(summary_path, fit_summary_json(results));
    if (o.json)
        out << fit_summary_json(results);
    else
        print_fit_table(results, out);
    return 0;
}

}  // namespace msa::experiments
