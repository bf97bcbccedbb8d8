// SPDX-License-Identifier: MIT
#include <omp.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <iostream>
#include <mutex>
#include <thread>

#include "analysis/rows.h"
#include "experiments/driver/own_attention.h"
#include "experiments/driver/program.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/write_text.h"
#include "experiments/fit/indexer_file.h"
#include "experiments/fit/layer.h"
#include "experiments/fit/options.h"
#include "experiments/fit/start.h"
#include "experiments/fit/summary.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::fit {
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

/// Throws UnsupportedError where the backend does not compute the loss that is asked for.
void check_teacher(const FitOptions& o, const Backend& backend) {
    const Support support =
        backend.supports({}, IndexKlRequest{.top_k = o.rule.top_k, .teacher = o.teacher});
    if (!support.yes)
        throw UnsupportedError(text("--teacher is ", o.teacher_name(), ", which --backend ",
                                    o.backend, " cannot: ", support.why_not));
}

/// Recall, mass and output error are averages over held-out queries that see more than k blocks.
void warn_of_no_rows(const FitOptions& o, std::span<const io::ActivationsReader> files,
                     const Split& split, std::ostream& err) {
    io::ActivationsInfo all;
    all.cu_seqlens = all_sequences(files);
    const Problem p = io::layer_problem(all, files.front().layer(o.layers.front()), o.block_size)
                          .with_query_rows(split.held_out);
    for (analysis::RowKind kind : analysis::row_kinds(p, o.rule.top_k, false))
        if (kind == analysis::RowKind::counted) return;
    err << "warning: no held-out query sees more than --top-k = " << o.rule.top_k
        << " blocks of --block-size = " << o.block_size
        << " tokens: the KL is all that will be measured\n";
}

/// What an earlier run left follows the rule of results: kept, replaced or refused.
void check_unfinished(const FitOptions& o, const std::filesystem::path& what, bool unfinished) {
    require(o.resume || o.overwrite || !unfinished, what.string(),
            ": holds an unfinished run; --resume continues it, --overwrite starts afresh");
}

/// Fits the layers that are not done, o.jobs at once. An error in one does not keep the others from
/// their end; the first error is thrown then, further ones are printed.
void fit_layers(const FitOptions& o, std::span<const io::ActivationsReader> files,
                const Split& split, io::ResultsWriter& writer,
                const std::function<Checkpoint(int64_t layer)>& checkpoint_of, std::ostream& err) {
    FitOptions share = o;
    share.backend_options.threads =
        std::max(1, o.backend_options.threads / static_cast<int>(o.jobs));
    std::vector<int64_t> waiting;  // the next one last
    for (int64_t layer : o.layers)
        if (!writer.done(unit_of(layer))) {
            waiting.insert(waiting.begin(), layer);
        } else {
            err << unit_of(layer) << ": done before\n";
            checkpoint_of(layer).remove();
        }
    struct Failure {
        std::exception_ptr error;
        std::string message;
    };
    std::vector<Failure> failures;
    std::mutex hdf5, turn;  // turn: of waiting and failures
    const auto take = [&]() -> std::optional<int64_t> {
        const std::lock_guard lock(turn);
        if (waiting.empty() || (stop_requested() && !failures.empty())) return std::nullopt;
        const int64_t layer = waiting.back();
        waiting.pop_back();
        return layer;
    };
    const auto fit_some = [&] {
        const std::unique_ptr<Backend> backend = make_backend(o.backend, share.backend_options);
        while (const std::optional<int64_t> layer = take()) try {
                fit_layer(share, files, *layer, split, *backend, writer, checkpoint_of(*layer),
                          hdf5, err);
            } catch (const std::exception& error) {
                const std::lock_guard lock(turn);
                failures.push_back({std::current_exception(), error.what()});
            }
    };
    {
        std::vector<std::jthread> others;
        for (int64_t job = 1; job < std::min(o.jobs, std::ssize(o.layers)); ++job)
            others.emplace_back(fit_some);
        fit_some();
    }
    if (failures.empty()) return;
    for (size_t n = 1; n < failures.size(); ++n)
        err << "msa-fit-indexer: " << failures[n].message << '\n';
    std::rethrow_exception(failures.front().error);
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
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
    warn_of_no_rows(o, files, split, err);
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_backend(o.backend, o.backend_options);
    check_teacher(o, *backend);

    std::filesystem::create_directories(o.out);
    io::RunRecord record = start_record("msa-fit-indexer", args, o.files);
    record.options = o.identity();
    record.definitions = fit_definitions();
    record.device = backend->device();
    std::vector<LayerElements> elements;
    for (const io::ActivationsReader& file : files)
        for (int64_t layer : o.layers)
            elements.push_back(float_elements(file.layer(layer), o.element));
    record_elements(elements, record);
    record.seed = o.seed;
    const auto checkpoint_of = [&](int64_t layer) {
        return Checkpoint(o.out / text("checkpoint-", layer, ".h5"), layer, record);
    };
    for (int64_t layer : o.layers) {
        const Checkpoint checkpoint = checkpoint_of(layer);
        check_unfinished(o, checkpoint.path(), std::filesystem::exists(checkpoint.path()));
        if (o.overwrite) checkpoint.remove();
        if (o.resume) checkpoint.load();  // refuses that of another run before anything is trained
    }
    const std::filesystem::path results_path = o.out / "results.h5";
    const std::filesystem::path summary_path = o.out / "summary.json";  // written last
    check_unfinished(o, o.out, exists(results_path) && !exists(summary_path));
    io::ResultsWriter writer(results_path, record,
                             o.overwrite ? io::IfExists::overwrite
                             : o.resume  ? io::IfExists::resume
                                         : io::IfExists::refuse);
    fit_layers(o, files, split, writer, checkpoint_of, err);
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

}  // namespace msa::experiments::fit
