// SPDX-License-Identifier: MIT
#include "experiments/pretrain/training.h"

#include <charconv>
#include <chrono>
#include <cmath>
#include <string_view>

#include "analysis/metrics.h"
#include "core/error.h"
#include "core/random.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/pretrain/results.h"

namespace msa::experiments::pretrain {
namespace {

/// Text that is probed is not that of the evaluations.
constexpr int64_t kProbedText = 1;
constexpr int64_t kEarlyProbes = 20;  // as many before the first regular one

std::vector<std::string> layer_names(int64_t layers) {
    std::vector<std::string> names;
    for (int64_t layer = 0; layer < layers; ++layer) names.push_back(std::to_string(layer));
    return names;
}

std::vector<Curve> make_curves(const PretrainOptions& o) {
    const Column step{"step", "steps", "steps done before"};
    const std::vector<std::string> layers = layer_names(o.sizes.layers);
    std::vector<Column> probed{step};
    for (const char* name : kProbed) {
        const analysis::Metric& of = analysis::metric(name);
        probed.push_back({name, of.unit, of.definition, "layer", layers});
    }
    std::vector<std::string> tasks;
    for (Task task : o.chosen_tasks()) tasks.emplace_back(name_of(task));
    return {
        Curve("/train",
              {step,
               {"loss", "nats", "loss of the language model in the step, mean over its targets"},
               {"gradient_norm", "1", "norm of the gradient before clipping"},
               {"index_gradient_norm", "1", "of the parameters of the Index Branch alone"},
               {"learning_rate", "1", "of AdamW"},
               {"kl_loss", "nats",
                "KL loss of the step on its support, mean over queries and groups; 0 without",
                "layer", layers}}),
        Curve("/probe", std::move(probed)),
        Curve("/evaluation",
              {step,
               {"bits_per_byte", "bits", "on held-out text"},
               {"exact_match", "share of answers", "mean over lengths and depths", "task", tasks},
               {"log_likelihood", "nats", "of an answer, mean likewise", "task", tasks}})};
}

Batches make_batches(const char* side, const Documents& documents, const Mixture& mixture,
                     const PretrainOptions& o, int64_t sequences, uint64_t seed,
                     int64_t at_once = 0) {
    try {
        return {documents, mixture, o.reading, o.context, sequences, seed, at_once};
    } catch (const InputError& error) {
        throw InputError(concat(side, " text: ", error.what()));
    }
}

}  // namespace

TrainingBatches::TrainingBatches(const PretrainOptions& o, const Text& text,
                                 const parallel::Group& workers)
    : share_(o.sequences / workers.size()),
      first_(share_ * workers.rank()),
      all_(make_batches("training", text.train(), o.mixture(), o, o.sequences, o.seed, share_)) {}

Training::Training(const PretrainOptions& options, const Text& text, train::Model& model,
                   const parallel::Group& workers, const Checkpoint& checkpoint,
                   const std::filesystem::path& csv, std::ostream& err)
    : o_(options),
      model_(model),
      workers_(workers),
      checkpoint_(checkpoint),
      trainer_(model, options.training, workers),
      batches_(options, text, workers),
      held_out_(make_batches("held-out", text.held_out(), {}, options, 1,
                             mix(kEvaluationSeed, kProbedText))),
      text_(text),
      peak_(peak_of(model.ops().backend().space(), model.ops().device(), model.ops().element())),
      csv_path_(csv),
      err_(err) {
    peak_.flops_per_second *= workers.size();
    state_.curves = make_curves(options);
}

void Training::resume() {
    if (!checkpoint_.exists()) return;
    checkpoint_.load(model_, state_);
    go_on();
}

void Training::fork() {
    checkpoint_.fork(o_.start_from, o_.end(), model_, state_);
    go_on();
}

void Training::go_on() {
    trainer_.resume(state_.step);
    logged_ = state_.step;
    logged_seconds_ = state_.seconds;
    logged_flops_ = state_.flops;
}

/// The rates of earlier runs up to the checkpoint: they stand in curves.csv alone.
std::string Training::earlier_rates() const {
    std::ifstream before(csv_path_);
    std::string rates;
    for (std::string line; std::getline(before, line) && !before.eof();) {  // eof: a torn line
        int64_t step = 0;
        const char* const end = line.data() + line.size();
        const std::string_view rest(std::from_chars(line.data(), end, step).ptr, end);
        const bool is_rate =
            rest.starts_with(",train,tokens_per_second,") || rest.starts_with(",train,mfu,");
        if (is_rate && step <= state_.step) rates += line + '\n';
    }
    return rates;
}

void Training::run() {
    trainer_.broadcast_state();
    const std::string rates = earlier_rates();
    csv_.open(csv_path_);
    csv_ << "step,group,name,part,value\n";
    for (const Curve& curve : state_.curves)
        for (int64_t row = 0; row < curve.rows(); ++row) curve.print(row, csv_);
    csv_ << rates;
    Progress progress(err_, "training", o_.end() - state_.step, "steps");
    while (state_.step < o_.end()) {
        if (probe_due()) look();
        if (due(o_.evaluate_every)) judge();
        step();
        progress.advance(1);
    }
    const bool trunk = o_.end() < o_.training.steps;
    if (trunk) save();  // without the looks that a run which goes on does not take here
    look();
    judge();
    if (!std::isfinite(last_.bits_per_byte))
        diverged(state_.step, concat("on held-out text it is ", last_.bits_per_byte));
    if (!trunk) save();
}

bool Training::due(int64_t every) const {
    return every > 0 && state_.step > 0 && state_.step % every == 0;
}

/// Attention changes fast at first.
bool Training::probe_due() const {
    const int64_t early = o_.probe_every / kEarlyProbes;
    return due(o_.probe_every) ||
           (early > 0 && state_.step < o_.probe_every && state_.step % early == 0);
}

/// Kept are weights whose loss and gradient are known to be finite, before they move on.
void Training::step() {
    using Clock = std::chrono::steady_clock;
    const auto since = [](Clock::time_point start) {
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    Clock::time_point start = Clock::now();
    const Uploaded batch(model_.ops().backend(), batches_.at(state_.step));
    const train::StepReport report = trainer_.gradient(batch.batch());
    state_.seconds += since(start);
    if (!report.finite())
        diverged(state_.step,
                 concat("loss ", report.losses.lm, ", gradient norm ", report.norms.all));
    const bool stop = workers_.any(stop_requested());
    if (stop || due(o_.checkpoint_every)) save();
    if (stop)
        throw Interrupted(concat("stopped after ", state_.step, " steps; --resume continues"));
    if (state_.step % o_.log_every == 0 || state_.step + 1 == o_.training.steps) log(report);
    start = Clock::now();
    trainer_.update(report);
    model_.ops().backend().finish();
    state_.seconds += since(start);
    count_flops(batch.batch().layout);
    state_.step = trainer_.step();
}

/// Counts the FLOPs of all workers, whose shares are alike.
void Training::count_flops(const PackedBatch& layout) {
    const bool sparse = o_.training.sparse(state_.step);
    if (counted_.flops == 0 || counted_.sparse != sparse || !(counted_.layout == layout))
        counted_ = {layout, sparse,
                    step_flops(model_.config(), model_.parameters(), layout, sparse)};
    state_.flops += counted_.flops * workers_.size();
}

void Training::save() {
    try {
        checkpoint_.save(model_, state_);
    } catch (const SystemError& error) {  // a full disk
        throw SystemError(concat(error.what(), "; ", kept()));
    }
}

std::string Training::kept() const {
    return checkpoint_.exists() ? concat("the weights after ", checkpoint_.step(),
                                         " steps are kept in ", checkpoint_.path().string())
                                : "no checkpoint was written yet";
}

void Training::log(const train::StepReport& report) {
    std::vector<double> row{static_cast<double>(report.step), report.losses.lm, report.norms.all,
                            report.norms.indexer, report.lr};
    std::vector<double> kl = report.losses.kl;
    kl.resize(static_cast<size_t>(o_.sizes.layers));
    row.insert(row.end(), kl.begin(), kl.end());
    record(kTrain, std::move(row));
    const double seconds = state_.seconds - logged_seconds_;
    if (state_.step > logged_) {
        print_rate(
            report.step, "tokens_per_second",
            static_cast<double>((state_.step - logged_) * o_.sequences * o_.context) / seconds);
        if (peak_.flops_per_second > 0)
            print_rate(report.step, "mfu",
                       (state_.flops - logged_flops_) / seconds / peak_.flops_per_second);
    }
    logged_ = state_.step;
    logged_seconds_ = state_.seconds;
    logged_flops_ = state_.flops;
}

/// What differs from run to run, and so stands in curves.csv alone.
void Training::print_rate(int64_t step, const char* name, double value) {
    csv_ << step << ",train," << name << ",," << value << std::endl;
}

void Training::look() {
    const bool known = state_.curves[kProbe].has(state_.step);
    if (known && state_.step < o_.end()) return;
    last_look_ = probe(model_, held_out_.at(0), o_.training.sparse(state_.step));
    if (known) return;
    std::vector<double> row{static_cast<double>(state_.step)};
    for (const std::vector<double>& layers : last_look_.layers)
        row.insert(row.end(), layers.begin(), layers.end());
    record(kProbe, std::move(row));
}

void Training::judge() {
    const Predict predict = predictions_of(model_, o_.training.sparse(state_.step));
    last_ = evaluate(
        [&](const Sequences& sequences) {
            if (stop_requested())
                throw Interrupted("stopped in an evaluation; --resume continues at the checkpoint");
            return predict(sequences);
        },
        text_.held_out(), o_.evaluation());
    if (state_.curves[kEvaluation].has(state_.step)) return;
    std::vector<double> row{static_cast<double>(state_.step), last_.bits_per_byte};
    const std::vector<TaskScore> scores = by_task(last_, o_.chosen_tasks());
    for (const TaskScore& score : scores) row.push_back(score.exact_match);
    for (const TaskScore& score : scores) row.push_back(score.log_likelihood);
    record(kEvaluation, std::move(row));
}

void Training::record(size_t which, std::vector<double> row) {
    Curve& curve = state_.curves[which];
    curve.add(std::move(row));
    curve.print(curve.rows() - 1, csv_);
    if (!csv_.flush()) throw SystemError(csv_path_.string() + ": cannot be written");
}

void Training::diverged(int64_t step, const std::string& what) const {
    throw Diverged(
        concat("diverged: the loss or its gradient is not finite after ", step, " steps (", what,
               "); ", kept(), "; a smaller --lr or --kl-weight may help"),
        step);
}

void Training::write(io::UnitWriter& to) const {
    for (const Curve& curve : state_.curves) curve.write(to);
    write_evaluation(to, last_);
    write_heads(to, last_look_);
    const auto tokens = static_cast<double>(state_.step * o_.sequences * o_.context);
    to.attribute("/train", "steps", state_.step);
    to.attribute("/train", "parameters", model_.parameters().size());
    to.attribute("/train", "tokens_per_second", tokens / state_.seconds);
    to.attribute("/train", "flops_per_token", state_.flops / tokens);
    if (peak_.flops_per_second > 0)
        to.attribute("/train", "mfu", state_.flops / state_.seconds / peak_.flops_per_second);
    to.attribute("/train", "peak", peak_.words);
}

}  // namespace msa::experiments::pretrain
