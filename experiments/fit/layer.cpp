// SPDX-License-Identifier: MIT
#include "experiments/fit/layer.h"

#include "core/error.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/driver/sample.h"
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
                 const Split& split, const HeldOut& held_out, const PolicyCost& cost) {
    const std::string group = text("/fit/", data.info.layer);
    for (const auto& [name, value] : {std::pair{"tokens", data.problem.keys()},
                                      {"blocks", data.problem.blocks()},
                                      {"warmup_steps", *o.warmup_steps},
                                      {"train_queries", static_cast<int64_t>(split.train.size())},
                                      {"held_out_queries", held_out.queries()},
                                      {"rows_counted", held_out.rows_counted()}})
        to.attribute(group, name, value);
    to.attribute(group, "split", split.text);
    to.attribute(group, "index_flops", cost.flops);
    to.attribute(group, "index_bytes", cost.bytes);
}

std::string diverged(const io::ActivationsReader& file, int64_t layer, int64_t step, int64_t good,
                     const std::filesystem::path& checkpoint) {
    return text(file.name(), ": layer ", layer, ": the loss is not finite at step ", step,
                "; the weights after step ", good, " are kept in ", checkpoint.string(),
                "; --overwrite starts again, a smaller --lr may help");
}

}  // namespace

std::string unit_of(int64_t layer) { return text("layer ", layer); }

void fit_layer(const FitOptions& o, const io::ActivationsReader& file, int64_t layer,
               const Split& split, const Checkpoint& checkpoint, const Worker& worker,
               io::UnitWriter& to) {
    const int threads = worker.threads;
    TrainingLayer data = read_layer(file, layer, o);
    const IndexForm form = index_form(o, file, layer);
    std::optional<Whitening> whitening;  // of hidden states, which a gate does not read
    if (!form.is_gate())
        whitening.emplace(data.hidden(), sample(split.train, kWhiteningTokens, o.seed), threads);
    const auto plain = [&](const IndexWeights& weights) {
        return whitening ? whitening->plain(weights) : weights;
    };
    const LayerOperands operands(worker.backend, data);
    const std::vector<int64_t> evaluated = sample(split.held_out, o.eval_queries, o.seed);
    const std::unique_ptr<Indexer> indexer = make_indexer(o.architecture, data, operands, threads);
    const HeldOut held_out(o, data, operands, *indexer, evaluated, threads);
    const Trainer trainer(o, data, operands, *indexer, split.train, threads);

    const IndexWeights start = start_weights(o.start, form, data, split.train, o.seed);
    FitState state;
    if (std::optional<FitState> saved = checkpoint.load())
        state = std::move(*saved);
    else
        state = start_state(start);
    FitState good = state;  // the last one whose loss was finite
    const auto save = [&](const FitState& which) { checkpoint.save(which, plain(which.weights)); };
    Progress progress(worker.progress, unit_of(layer), o.steps - state.step, "steps");
    while (true) {
        const bool last = state.step == o.steps;
        const bool known =
            !state.evaluations.empty() && state.evaluations.back().step == state.step;
        if (!known && (last || state.step % o.eval_every == 0)) {
            state.evaluations.push_back(held_out.evaluate(state.step, state.weights));
            if (!last && state.step > 0) save(state);
        }
        if (last) break;
        if (stop_requested()) {
            if (state.step > 0) save(state);
            throw Interrupted(text("stopped after step ", state.step, " of layer ", layer,
                                   "; --resume continues"));
        }
        FitState before = state;
        if (!trainer.advance(state)) {
            save(good);
            throw InputError(diverged(file, layer, state.step, good.step, checkpoint.path()));
        }
        good = std::move(before);
        progress.advance(1);
    }
    write_fit(to, layer, state, plain(state.weights));
    write_sizes(to, o, data, split, held_out, cost_per_query(*indexer, data.problem));
    held_out.write_blocks(to, start, state.weights);
    to.write<int64_t, 1>(
        text("/queries/", layer, "/token"), {evaluated.data(), {std::ssize(evaluated)}},
        {"query", "token", "packed token index of each held-out query that was evaluated"});
}

}  // namespace msa::experiments::fit
