// SPDX-License-Identifier: MIT
#include <algorithm>
#include <ostream>
#include <sstream>

#include "analysis/rows.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/group.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/fit/architecture.h"
#include "experiments/fit/findings.h"
#include "experiments/fit/indexer_file.h"
#include "experiments/fit/layer.h"
#include "experiments/fit/options.h"
#include "experiments/fit/rope.h"
#include "experiments/fit/start.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::fit {
namespace {

constexpr const char* kPage = "fit.txt";

/// Fills in what depends on the file, and checks the options against it.
std::vector<io::LayerInfo> resolve(FitOptions& o, const io::ActivationsReader& file,
                                   std::ostream& err) {
    std::vector<io::LayerInfo> layers = pick_full_layers(o, file, err);
    for (const std::vector<int64_t>& of : shared_layers(o)) {
        const int64_t layer = of.front();
        check_layers(file, of, o.architecture);
        check_start(o, index_form(o, file, layer), file.layer(layer),
                    model_frequencies(o, file, layer));
    }
    return layers;
}

/// Throws UnsupportedError where the backend does not compute the loss that is asked for.
void check_teacher(const FitOptions& o, const io::ActivationsReader& file, const Backend& backend) {
    if (fitted(o.architecture).target) return;  // on the host
    const int64_t layer = o.layers.front();
    Problem sizes = io::layer_problem({}, file.layer(layer), o.block_size);
    sizes.index_dim = o.index_dim;
    const Support support =
        backend.supports(sizes, IndexKlRequest{.top_k = o.rule.top_k, .teacher = *o.teacher});
    if (!support.yes)
        throw UnsupportedError(concat("--teacher is ", o.teacher_name(), ", which --backend ",
                                      o.backend, " cannot: ", support.why_not));
}

std::string checkpoint_name(int64_t layer) { return concat("checkpoint-", layer, ".h5"); }

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

/// Options and file, checked against each other.
struct Prepared {
    FitOptions o;
    const io::ActivationsReader& file;
    std::vector<io::LayerInfo> layers;
    std::string note;  // on top_k
    Split split;
};

Prepared prepare(FitOptions asked, const io::ActivationsReader& file,
                 std::span<const std::string> args, std::ostream& err) {
    Prepared p{std::move(asked), file, {}, {}, {}};
    FitOptions& o = p.o;
    p.layers = resolve(o, file, err);
    p.note = resolve_sizes(o, args, p.layers, file.info().cu_seqlens, err);
    p.split = split_queries(o, file.info().cu_seqlens);
    if (o.together) check_workers(o, count_workers(o, Ranks::world()), std::ssize(p.split.train));
    warn_of_no_rows(o, file, p.split, err);
    return p;
}

void describe(UnitRun& job, Prepared& p, const parallel::Group& workers, const Backend& backend) {
    std::string device = backend.device();
    if (workers.size() > 1) device += concat(", one of ", workers.size());
    job.describe(option_table(p.o), definitions_with(p.note), device);
    std::vector<LayerElements> elements;
    for (const io::LayerInfo& layer : p.layers)
        elements.push_back(float_elements(layer, p.o.element));
    record_elements(elements, job.record);
    record_captures(p.file, job.record);
    job.record.index_element = to_string(Element::f32);  // the Index Branch's own
}

constexpr int64_t kNoLayer = -1;

/// Tells the other workers which layer comes, or that there is none; what the first one says.
int64_t announce(const parallel::Group& workers, int64_t layer) {
    return workers.broadcast_value(layer);
}

/// What the first worker does: everything but the others' shares of the steps.
void lead(Prepared p, std::span<const std::string> args, Backend& backend,
          const parallel::Group& workers, std::ostream& out, std::ostream& err) {
    const FitOptions& o = p.o;
    const FitRun run{o, p.file, p.split};
    std::vector<std::string> outputs{"summary.json", kPage, "tables", "indexer.h5"};
    const std::vector<std::vector<int64_t>> shared = shared_layers(o);
    for (const std::vector<int64_t>& of : shared) outputs.push_back(checkpoint_name(of.front()));
    UnitRun job(kProgram.name, args, o, o.files, outputs, err);
    describe(job, p, workers, backend);
    std::vector<Unit> units;
    std::vector<Checkpoint> checkpoints;
    for (const std::vector<int64_t>& of : shared) {
        const int64_t layer = of.front();
        const Checkpoint& checkpoint = checkpoints.emplace_back(job.path(checkpoint_name(layer)),
                                                                layer, job.record_with_inputs());
        units.push_back({unit_of(layer),
                         [&, layer, checkpoint](const Worker& worker, io::UnitWriter& to) {
                             announce(workers, layer);
                             fit_layer(run, of, checkpoint, worker, workers, to);
                         },
                         [checkpoint] { checkpoint.remove(); }});
    }
    job.begin(std::move(units));
    for (size_t n = 0; n < checkpoints.size(); ++n) {
        if (o.overwrite && !job.is_claimed(unit_of(shared[n].front()))) checkpoints[n].remove();
        checkpoints[n].load();  // refuses that of another run before anything is trained
    }
    // Whom the others wait for does not go on after an error.
    job.work(o, backend, o.together ? OnError::stop : OnError::finish_others);
    announce(workers, kNoLayer);
    job.end(answer, out, o.backend_options.threads);
}

void follow(const Prepared& p, Backend& backend, int threads, const parallel::Group& workers) {
    const FitRun run{p.o, p.file, p.split};
    const std::vector<std::vector<int64_t>> shared = shared_layers(p.o);
    for (int64_t layer = announce(workers, kNoLayer); layer != kNoLayer;
         layer = announce(workers, kNoLayer))
        for (const std::vector<int64_t>& of : shared)
            if (of.front() == layer) follow_layer(run, of, backend, threads, workers);
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<FitOptions> parsed = parse_fit_options(args, out);
    if (!parsed) return 0;
    const io::ActivationsReader file(parsed->files);
    const Prepared prepared = prepare(*std::move(parsed), file, args, err);
    const FitOptions& o = prepared.o;
    register_cuda_backend();
    if (!o.together) {
        const std::unique_ptr<Backend> backend = make_own_backend(o);
        check_teacher(o, file, *backend);
        parallel::Group alone;
        lead(prepared, args, *backend, alone, out, err);
        return 0;
    }
    run_group(o, Ranks::world(), [&](const parallel::Group& workers) {
        const BackendOptions own = backend_of(o, workers);
        const std::unique_ptr<Backend> backend = make_backend(o.backend, own);
        check_teacher(o, file, *backend);
        workers.barrier();  // all have started, before a file is touched
        if (workers.is_first()) {
            Prepared first = prepared;
            first.o.backend_options = own;
            first.o.devices.clear();  // they are the workers'
            lead(std::move(first), args, *backend, workers, out, err);
        } else {
            follow(prepared, *backend, own.threads, workers);
        }
    });
    return 0;
}

RunAnswer answer(const io::ResultsReader& results) {
    return {make_report(results), kPage, [](const Completed& run) {
                const io::ActivationsReader file(run.inputs);
                std::vector<int64_t> layers;
                for (const std::string& layer : run.results.list("/fit"))
                    layers.push_back(std::stoll(layer));
                write_indexer_file(run.out / "indexer.h5", file, run.results, layers, run.threads);
            }};
}

}  // namespace msa::experiments::fit
