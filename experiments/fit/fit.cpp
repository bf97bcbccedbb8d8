// SPDX-License-Identifier: MIT
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "analysis/rows.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/own_attention.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/write_text.h"
#include "experiments/fit/indexer_file.h"
#include "experiments/fit/layer.h"
#include "experiments/fit/options.h"
#include "experiments/fit/rope.h"
#include "experiments/fit/start.h"
#include "experiments/fit/summary.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::fit {
namespace {

/// Fills in what depends on the file, and checks the options against it.
void resolve(FitOptions& o, const io::ActivationsReader& file) {
    if (o.layers.empty())
        for (const io::LayerInfo& layer : file.info().layers) o.layers.push_back(layer.layer);
    for (int64_t layer : o.layers) {
        check_layer(file, layer, o.architecture);
        check_start(o.start, index_form(o, file, layer), file.layer(layer),
                    model_frequencies(o, file, layer));
    }
}

/// Throws UnsupportedError where the backend does not compute the loss that is asked for.
void check_teacher(const FitOptions& o, const io::ActivationsReader& file, const Backend& backend) {
    if (o.architecture == Architecture::seerattention) return;  // on the host
    const int64_t layer = o.layers.front();
    Problem sizes = io::layer_problem({}, file.layer(layer), o.block_size);
    sizes.index_dim = o.index_dim;
    const Support support =
        backend.supports(sizes, IndexKlRequest{.top_k = o.rule.top_k, .teacher = *o.teacher});
    if (!support.yes)
        throw UnsupportedError(text("--teacher is ", o.teacher_name(), ", which --backend ",
                                    o.backend, " cannot: ", support.why_not));
}

std::string checkpoint_name(int64_t layer) { return text("checkpoint-", layer, ".h5"); }

/// Recall, mass and output error are averages over held-out queries that see more than k blocks.
void warn_of_no_rows(const FitOptions& o, const io::ActivationsReader& file, const Split& split,
                     std::ostream& err) {
    const Problem p = io::layer_problem(file.info(), file.layer(o.layers.front()), o.block_size)
                          .with_query_rows(split.held_out);
    for (analysis::RowKind kind : analysis::row_kinds(p, o.rule.top_k, o.all_rows))
        if (kind == analysis::RowKind::counted) return;
    err << "warning: no held-out query sees more than --top-k = " << o.rule.top_k
        << " blocks of --block-size = " << o.block_size
        << " tokens: the KL is all that will be measured\n";
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<FitOptions> parsed = parse_fit_options(args, out);
    if (!parsed) return 0;
    FitOptions& o = *parsed;
    const io::ActivationsReader file(o.files);
    resolve(o, file);
    for (int64_t layer : o.layers)
        warn_of_own_attention(file, layer, Computed::with_window_cap_and_sinks, err);
    std::vector<io::LayerInfo> layers;
    for (int64_t number : o.layers) layers.push_back(file.layer(number));
    take_own_sizes(o, args, layers, err);
    const std::string note = clamp_top_k(o.rule, o.block_size, file.info().cu_seqlens);
    if (!note.empty()) err << "note: " << note << '\n';
    const Split split = split_queries(o, file.info().cu_seqlens);
    warn_of_no_rows(o, file, split, err);
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_backend(o.backend, o.backend_options);
    check_teacher(o, file, *backend);

    std::vector<std::string> outputs{"summary.json", "indexer.h5"};
    for (int64_t layer : o.layers) outputs.push_back(checkpoint_name(layer));
    UnitRun job("msa-fit-indexer", args, o, o.files, outputs, err);
    job.record.options = option_table(o).record();
    job.record.definitions = fit_definitions(note);
    job.record.device = backend->device();
    std::vector<LayerElements> elements;
    for (const io::LayerInfo& layer : layers) elements.push_back(float_elements(layer, o.element));
    record_elements(elements, job.record);
    record_captures(file, job.record);
    job.record.index_element = to_string(Element::f32);  // the Index Branch's own
    check_unfinished(o, o.out, exists(job.path("results.h5")) && !exists(job.path("summary.json")));
    std::vector<Unit> units;
    std::vector<Checkpoint> checkpoints;
    for (int64_t layer : o.layers) {
        const Checkpoint& checkpoint =
            checkpoints.emplace_back(job.path(checkpoint_name(layer)), layer, job.record);
        units.push_back({unit_of(layer),
                         [&, layer, checkpoint](const Worker& worker, io::UnitWriter& to) {
                             fit_layer(o, file, layer, split, checkpoint, worker, to);
                         },
                         [checkpoint] { checkpoint.remove(); }});
    }
    job.begin(std::move(units));  // locks the folder, so that nobody else is at the checkpoints
    for (const Checkpoint& checkpoint : checkpoints) {
        check_unfinished(o, checkpoint.path(), std::filesystem::exists(checkpoint.path()));
        if (o.overwrite) checkpoint.remove();
        if (o.resume) checkpoint.load();  // refuses that of another run before anything is trained
    }
    if (!job.work(o, *backend, OnError::finish_others)) return 0;
    complete({job.finish(), o.out, o.files, o.json, o.backend_options.threads, out});
    return 0;
}

void complete(const Completed& run) {
    const io::ActivationsReader file(run.inputs);
    std::vector<int64_t> layers;
    for (const std::string& layer : run.results.list("/fit")) layers.push_back(std::stoll(layer));
    write_indexer_file(run.out / "indexer.h5", file, run.results, layers, run.threads);
    write_text(run.out / "summary.json", fit_summary_json(run.results));
    if (run.json)
        run.print << fit_summary_json(run.results);
    else
        print_fit_table(run.results, run.print);
}

}  // namespace msa::experiments::fit
