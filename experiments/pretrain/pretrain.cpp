// SPDX-License-Identifier: MIT
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "core/random.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/program.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/pretrain/capture.h"
#include "experiments/pretrain/options.h"
#include "experiments/pretrain/results.h"
#include "experiments/pretrain/sweep.h"
#include "experiments/pretrain/training.h"
#include "experiments/pretrain/workers.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"
#include "gpu/train/cuda_ops.h"

namespace msa::experiments::pretrain {
namespace {

constexpr const char* kPage = "pretrain.txt";
constexpr int64_t kCapturedText = 2;  // which held-out text is captured

/// Held-out text of the model's own sequences, as the capture has it.
Sequences captured_text(const PretrainOptions& o, const Text& text) {
    return Batches(text.held_out(), {}, o.reading, o.context, o.capture,
                   mix(kEvaluationSeed, kCapturedText))
        .at(0);
}

/// Float on the host, bf16 on a GPU.
std::unique_ptr<train::Ops> make_ops(std::unique_ptr<Backend> backend) {
    return backend->space() == Space::host ? train::make_cpu_ops(std::move(backend))
                                           : train::make_cuda_ops(std::move(backend));
}

train::Model make_model(const PretrainOptions& o, std::unique_ptr<train::Ops> ops) {
    std::vector<float> start;
    if (!o.start_from.empty() && !o.fork) {
        const train::Model names(o.model(), train::make_cpu_ops(make_backend("cpu")), o.seed);
        start = start_values(o.start_from, names.parameters(), o.seed);
    }
    return {o.model(), std::move(ops), o.seed, start};
}

/// Tells the others whether there is anything to train.
bool agree_to_train(const parallel::Group& workers, bool wanted) {
    return workers.broadcast_value(wanted);
}

/// What the first worker does: everything but the others' shares of the steps.
void lead(PretrainOptions o, std::span<const std::string> args, const Text& text,
          std::unique_ptr<train::Ops> ops, const parallel::Group& workers, std::ostream& out,
          std::ostream& err) {
    train::Model model = make_model(o, std::move(ops));
    UnitRun job(kProgram.name, args, o, o.inputs(),
                {"summary.json", kPage, "tables", "checkpoint.h5", "curves.csv", "activations.h5"},
                err);
    job.describe(option_table(o), report::definitions(run_tables()), model.ops().device());
    if (workers.size() > 1) job.record.device += msa::concat(", one of ", workers.size());
    job.record.element = job.record.index_element = job.record.computed_in =
        to_string(model.ops().element());
    const Checkpoint checkpoint(job.path("checkpoint.h5"), job.record_with_inputs());
    Training training(o, text, model, workers, checkpoint, job.path("curves.csv"), err);
    check_unfinished(o, o.out, checkpoint.exists() && !exists(job.path("summary.json")));
    // Locks the folder's results, so that nobody else is at the checkpoint either.
    job.begin({{.name = "training",
                .work =
                    [&](const Worker&, io::UnitWriter& to) {
                        training.run();
                        training.write(to);
                    }}},
              Others::refused);
    if (o.overwrite) checkpoint.remove();
    if (o.fork && !checkpoint.exists())
        training.fork();
    else if (o.resume)
        training.resume();
    agree_to_train(workers, !job.is_done());
    job.work(o, model.ops().backend(), OnError::stop);
    const RunAnswer answered = job.finish(answer);
    const io::ResultsReader results(job.path("results.h5"));
    if (o.capture > 0)
        write_capture(job.path("activations.h5"), model, captured_text(o, text),
                      o.training.sparse(o.training.steps), results.run().options);
    write_answer({.results = results,
                  .out = o.out,
                  .inputs = o.inputs(),
                  .json = o.json,
                  .threads = 0,
                  .print = out},
                 answered);
}

/// The text of a process's runs: one that the run before read, too, is in memory once.
class Texts {
public:
    std::shared_ptr<const Text> of(const PretrainOptions& o) {
        std::vector<std::filesystem::path> files = o.files;
        files.insert(files.end(), o.held_out_files.begin(), o.held_out_files.end());
        const std::lock_guard lock(turn_);
        Key key{o.files, o.held_out_files, o.held_out, hash_inputs(files)};
        if (!last_ || key_ != key) {
            last_ = nullptr;
            last_ = o.held_out_files.empty()
                        ? std::make_shared<const Text>(o.files, o.held_out)
                        : std::make_shared<const Text>(o.files, o.held_out_files);
            key_ = std::move(key);
        }
        return last_;
    }

private:
    using Paths = std::vector<std::filesystem::path>;
    using Key = std::tuple<Paths, Paths, double, std::map<std::string, std::string>>;
    std::mutex turn_;
    Key key_;
    std::shared_ptr<const Text> last_;
};

void train_one(const PretrainOptions& o, std::span<const std::string> args, const Ranks& ranks,
               Texts& texts, std::ostream& out, std::ostream& err) {
    check_workers(o, ranks);
    const std::shared_ptr<const Text> shared = texts.of(o);
    const Text& text = *shared;
    run_group(o, ranks, [&](const parallel::Group& workers) {
        PretrainOptions own = o;
        own.backend_options = backend_of(o, workers);
        std::unique_ptr<train::Ops> ops = make_ops(make_backend(own.backend, own.backend_options));
        workers.barrier();  // all have started, before a file is touched
        if (workers.is_first()) {
            lead(std::move(own), args, text, std::move(ops), workers, out, err);
        } else if (agree_to_train(workers, false)) {
            train::Model model = make_model(own, std::move(ops));
            follow(own, text, model, workers);
        }
    });
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    const std::optional<PretrainOptions> o = parse_pretrain_options(args, out);
    if (!o) return 0;
    register_cuda_backend();
    Texts texts;
    if (o->sweep.empty()) {
        train_one(*o, args, Ranks::world(), texts, out, err);
        return 0;
    }
    const auto train = [&texts](std::span<const std::string> words, const Ranks& ranks,
                                std::ostream& progress) {
        Silence tables;
        train_one(*parse_pretrain_options(words, tables), words, ranks, texts, tables, progress);
    };
    run_sweep(*o, args, train, out, err);
    return 0;
}

RunAnswer answer(const io::ResultsReader& results) { return {make_report(results), kPage}; }

}  // namespace msa::experiments::pretrain
