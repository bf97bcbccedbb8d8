// SPDX-License-Identifier: MIT
#include "experiments/fit/layer.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <ostream>

#include "core/error.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/driver/sample.h"
#include "experiments/fit/architecture.h"
#include "experiments/fit/indexer.h"
#include "experiments/fit/rope.h"
#include "experiments/fit/start.h"
#include "experiments/fit/whitening.h"

namespace msa::experiments::fit {
namespace {

constexpr int64_t kWhiteningTokens = 16384;  // that the second moment is taken over

std::vector<int64_t> sample(const std::vector<int64_t>& tokens, int64_t wanted, uint64_t seed) {
    std::vector<int64_t> some;
    for (int64_t n : stratified_sample(static_cast<int64_t>(tokens.size()), wanted, seed))
        some.push_back(tokens[static_cast<size_t>(n)]);
    return some;
}

/// What the numbers of a layer hang on.
void write_sizes(io::UnitWriter& to, const FitOptions& o, const TrainingLayer& data,
                 const Split& split, const HeldOut& held_out, const PolicyCost& cost,
                 const IndexWeights& best) {
    const std::string group = concat("/fit/", data.info.layer);
    for (const auto& [name, value] : {std::pair{"tokens", data.problem.keys()},
                                      {"blocks", data.problem.blocks()},
                                      {"warmup_steps", *o.warmup_steps},
                                      {"train_queries", static_cast<int64_t>(split.train.size())},
                                      {"held_out_queries", held_out.queries()},
                                      {"rows_counted", held_out.rows_counted()},
                                      {"dead_heads", held_out.dead_heads()}})
        to.attribute(group, name, value);
    to.attribute(group, "split", split.text);
    to.attribute(group, "index_flops", cost.flops);
    to.attribute(group, "index_bytes", cost.bytes);
    to.attribute(group, "head_dim", data.problem.head_dim);
    if (data.problem.window) to.attribute(group, "window", *data.problem.window);
    to.attribute(group, kFirstForced, held_out.first_forced_mass(best));
    const Untrained untrained = held_out.untrained();
    for (const UntrainedMeasure& of : kUntrained) to.attribute(group, of.name, untrained.*of.value);
}

std::string diverged(const io::ActivationsReader& file, int64_t layer, int64_t step, int64_t good,
                     const std::filesystem::path& checkpoint) {
    return concat(file.name(), ": layer ", layer, ": the loss is not finite at step ", step,
                  "; the weights after step ", good, " are kept in ", checkpoint.string(),
                  "; --overwrite starts again, a smaller --lr may help");
}

Members read_members(const FitRun& run, std::span<const int64_t> layers, const IndexForm& form,
                     Backend& backend, int threads) {
    Members members;
    for (int64_t layer : layers)
        members.push_back(std::make_unique<Member>(
            read_layer(run.file, layer, run.options, form, members.empty()), backend, threads));
    return members;
}

/// What every worker has of the layers of an indexer.
struct Work {
    Work(const FitRun& run, std::span<const int64_t> layers, Backend& backend, int threads,
         const parallel::Group& workers)
        : form(index_form(run.options, run.file, layers.front())),
          members(read_members(run, layers, form, backend, threads)),
          data(members.front()->data),
          trainer(run.options, members, run.split.train, threads, workers),
          pairs(choose_pairs(run.options, data, run.split.train, form)) {
        if (fitted(form.architecture).reads_x)
            whitening.emplace(data.hidden(),
                              sample(run.split.train, kWhiteningTokens, run.options.seed), threads);
        pool(data, run.file, form);
    }

    IndexWeights plain(const IndexWeights& weights) const {
        return whitening ? whitening->plain(weights) : weights;
    }

    IndexForm form;
    Members members;
    TrainingLayer& data;  // of the first
    /// After which the hidden states of `data` are whitened, where the architecture reads them.
    std::optional<Whitening> whitening;
    Trainer trainer;
    std::vector<int64_t> pairs;  // of the model's RoPE, which the form has
};

constexpr int64_t kTimedSteps = 10;

/// "45 s", "12 min", "2 h 55 min"
std::string duration_text(double seconds) {
    const int64_t minutes = std::llround(seconds / 60);
    if (minutes < 2) return concat(std::llround(seconds), " s");
    if (minutes < 60) return concat(minutes, " min");
    return concat(minutes / 60, " h ", minutes % 60, " min");
}

/// The steps that are left, with their evaluations and checkpoints.
void take_steps(const FitRun& run, const Work& work, const HeldOut& held_out,
                const Checkpoint& checkpoint, const parallel::Group& workers, std::ostream& said,
                Progress& progress, FitState& state) {
    const FitOptions& o = run.options;
    const int64_t layer = work.data.info.layer;
    FitState good = state;  // the last one whose loss was finite
    const auto save = [&](const FitState& which) {
        checkpoint.save(which, work.plain(which.weights));
    };
    auto begin = std::chrono::steady_clock::now();
    const int64_t first_step = state.step;
    while (true) {
        const bool last = state.step == o.steps;
        const bool known =
            !state.evaluations.empty() && state.evaluations.back().step == state.step;
        if (!known && (last || state.step % o.eval_every == 0)) {
            state.add(held_out.evaluate(state.step, state.weights));
            if (!last && state.step > 0) save(state);
        }
        if (last) break;
        if (workers.any(stop_requested())) {
            if (state.step > 0) save(state);
            throw Interrupted(concat("stopped after step ", state.step, " of layer ", layer,
                                     "; the same command continues"));
        }
        if (state.step == first_step) begin = std::chrono::steady_clock::now();
        FitState before = state;
        if (!work.trainer.advance(state)) {
            save(good);
            throw InputError(diverged(run.file, layer, state.step, good.step, checkpoint.path()));
        }
        good = std::move(before);
        progress.advance(1);
        if (layer != o.layers.front() || state.step - first_step != kTimedSteps) continue;
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        said << pace_text(o, took.count() / static_cast<double>(kTimedSteps)) << std::flush;
    }
}

}  // namespace

std::string unit_of(int64_t layer) { return concat("layer ", layer); }

std::string pace_text(const FitOptions& o, double seconds_per_step) {
    const double layer = seconds_per_step * static_cast<double>(o.steps);
    const size_t layers = shared_layers(o).size();
    const double all = layer * static_cast<double>(layers);
    if (all < 60) return "";
    return concat("note: about ", duration_text(layer), " a layer, ", duration_text(all), " all ",
                  layers, " one after the other, as the first ", kTimedSteps,
                  " steps went; --steps is ", o.steps,
                  ", and a step costs by --queries-per-step\n");
}

void fit_layer(const FitRun& run, std::span<const int64_t> layers, const Checkpoint& checkpoint,
               const Worker& worker, const parallel::Group& workers, io::UnitWriter& to) {
    const FitOptions& o = run.options;
    const int64_t layer = layers.front();
    const Work work(run, layers, worker.backend, worker.threads, workers);
    const std::vector<int64_t> evaluated = sample(run.split.held_out, o.eval_queries, o.seed);
    const HeldOut held_out(o, work.members, evaluated, worker.threads);
    const IndexWeights start =
        start_weights(o.start, work.form, work.pairs, work.data, run.split.train, o.seed);
    FitState state;
    if (std::optional<FitState> saved = checkpoint.load())
        state = std::move(*saved);
    else
        state = start_state(start);
    work.trainer.broadcast_state(state);
    Progress progress(worker.progress, unit_of(layer), o.steps - state.step, "steps");
    take_steps(run, work, held_out, checkpoint, workers, worker.progress, progress, state);
    write_fit(to, layer, state, work.plain(state.best));
    write_sizes(to, o, work.data, run.split, held_out,
                cost_per_query(*work.members.front()->indexer, work.data), state.best);
    if (layers.size() > 1)
        to.write<int64_t, 1>(concat("/fit/", layer, "/layers"),
                             {layers.data(), {std::ssize(layers)}},
                             {"layer", "layer", "its own layer, and those that take its ids"});
    held_out.write_blocks(to, start, state.best);
    to.write<int64_t, 1>(
        concat("/queries/", layer, "/token"), {evaluated.data(), {std::ssize(evaluated)}},
        {"query", "token", "packed token index of each held-out query that was evaluated"});
}

void follow_layer(const FitRun& run, std::span<const int64_t> layers, Backend& backend, int threads,
                  const parallel::Group& workers) {
    const Work work(run, layers, backend, threads, workers);
    FitState state = start_state(IndexWeights(work.form));
    work.trainer.broadcast_state(state);
    while (state.step < run.options.steps && !workers.any(stop_requested()))
        if (!work.trainer.advance(state)) return;
}

}  // namespace msa::experiments::fit
