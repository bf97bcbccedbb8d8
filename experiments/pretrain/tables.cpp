// SPDX-License-Identifier: MIT
// The answer of msa-pretrain as tables.
#include <algorithm>
#include <cmath>
#include <limits>

#include "analysis/metrics.h"
#include "experiments/pretrain/results.h"
#include "experiments/programs.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::pretrain {
namespace {

const report::Column kBits{"bits_per_byte", "bits", "on held-out text, mean over bytes",
                           "bits\nper byte"};
const report::Column kScoredBytes{"scored_bytes", "bytes", "held-out bytes that were predicted",
                                  "bytes"};
const report::Column kTask{"task", "", "kind of exercise", "task"};
const report::Column kAnswers{"answers", "", "answers that are counted", "answers"};
const report::Column kExactMatch{
    "exact_match", "share of answers",
    "answers whose every byte is the likeliest, the true bytes before it given", "exact\nmatch"};
const report::Column kLogLikelihood{"log_likelihood", "nats",
                                    "of a whole answer, mean over answers", "log-\nlikelihood"};

struct Trained {
    int64_t steps, parameters;
    double loss, bits_per_byte;
    int64_t bytes;
    double tokens_per_second, flops_per_token, mfu;
    std::string peak;
};

const report::TableOf<Trained> kTrained{
    "trained",
    "the model, behind its last step",
    0,
    {{{"last_step", "", "training steps done in all"}, &Trained::steps},
     {{"parameters", "", "learned numbers of the model"}, &Trained::parameters},
     {{"loss", "nats",
       "per token of the last step that was logged, on training text and exercises"},
      &Trained::loss},
     {report::hidden(kBits), &Trained::bits_per_byte},
     {report::hidden(kScoredBytes), &Trained::bytes},
     {{"tokens_per_second", "1/s", "tokens of training steps alone"}, &Trained::tokens_per_second},
     {{"flops_per_token", "FLOP",
       "that the model's mathematics asks for in a step, mean over the steps: 6 for each weight "
       "of a matrix but the embedding, and attention's, those of the Index Branch among them; "
       "nothing that is computed anew"},
      &Trained::flops_per_token},
     {{"mfu", "1", "share of the peak that these FLOPs reach in the training steps"},
      &Trained::mfu},
     {{"peak", "", "the peak in words, or why it is not known"}, &Trained::peak}}};

const report::TableOf<TaskScore> kTaskScores{
    "tasks",
    "retrieval, over all answers of a task",
    1,
    {{kTask, [](const TaskScore& of) { return name_of(of.task); }},
     {kAnswers, &TaskScore::answers},
     {kExactMatch, &TaskScore::exact_match},
     {kLogLikelihood, &TaskScore::log_likelihood}}};

const report::TableOf<RetrievalScore> kByDepth{
    "retrieval",
    "retrieval by length and depth",
    4,
    {{report::hidden(kTask), [](const RetrievalScore& of) { return name_of(of.task); }},
     {{"exercise_tokens", "tokens", "tokens of an exercise"}, &RetrievalScore::length},
     {{"shallowest", "1", "least depth of the facts, a share of the exercise"},
      &RetrievalScore::shallowest},
     {{"deepest", "1", "depth that they lie before"}, &RetrievalScore::deepest},
     {{"exercises", "", "exercises with an answer here"}, &RetrievalScore::exercises},
     {report::hidden(kAnswers), &RetrievalScore::answers},
     {report::hidden(kExactMatch), &RetrievalScore::exact_match},
     {report::hidden(kLogLikelihood), &RetrievalScore::log_likelihood}}};

const report::TableOf<PositionScore> kPositions{
    "positions",
    "held-out text by position in a sequence",
    2,
    {{{"first_position", "", "first position of the predicting tokens"}, &PositionScore::first},
     {{"end_position", "", "position behind the last"}, &PositionScore::end},
     {report::hidden(kScoredBytes), &PositionScore::bytes},
     {report::hidden(kBits), &PositionScore::bits_per_byte}}};

/// Stems may be the same.
struct FileRow {
    int64_t number;
    const FileScore* score;
};

const report::TableOf<FileRow> kFiles{
    "files",
    "held-out text by file, where there are several",
    1,
    {{{"file_number", "", "number of the file, in the order given"}, &FileRow::number},
     {{"file", "", "stem of the file's name"}, [](const FileRow& of) { return of.score->file; }},
     {report::hidden(kScoredBytes), [](const FileRow& of) { return of.score->bytes; }},
     {report::hidden(kBits), [](const FileRow& of) { return of.score->bits_per_byte; }}}};

/// A layer in the last probe.
struct Probed {
    int64_t layer;
    std::vector<double> values;  // [kProbed]
};

/// Programs that draw intervals have these as estimates.
bool is_estimated(const std::string& metric) {
    return metric == "kl" || metric.ends_with("_recall") || metric == "mass_kept" ||
           metric == "oracle_mass" || metric.starts_with("sink_mass") ||
           metric == "entropy_dense" || metric == "entropy_sparse";
}

std::vector<report::ColumnOf<Probed>> probed_columns() {
    std::vector<report::ColumnOf<Probed>> columns{{report::kLayer, &Probed::layer}};
    for (size_t n = 0; n < std::size(kProbed); ++n) {
        const report::Column column = report::metric(kProbed[n]);
        if (is_estimated(column.key))
            columns.emplace_back(
                column, [n](const Probed& of) { return report::without_interval(of.values[n]); });
        else
            columns.emplace_back(column, [n](const Probed& of) { return of.values[n]; });
    }
    return columns;
}

const report::TableOf<Probed> kLayers{"layers", "the last probe, layer by layer", 1,
                                      probed_columns()};

struct ProbedHead {
    int64_t layer, head;
    std::vector<double> values;  // [kProbedHeads]
};

std::vector<report::ColumnOf<ProbedHead>> head_columns() {
    std::vector<report::ColumnOf<ProbedHead>> columns{
        {report::hidden(report::kLayer), &ProbedHead::layer},
        {{"head", "", "number of the query head"}, &ProbedHead::head}};
    for (size_t n = 0; n < std::size(kProbedHeads); ++n)
        columns.push_back({{concat("head_", kProbedHeads[n]), "probability",
                            concat(kProbedHeads[n], " of the head alone")},
                           [n](const ProbedHead& of) { return of.values[n]; }});
    return columns;
}

const report::TableOf<ProbedHead> kHeads{"heads", "the last probe, head by head", 2,
                                         head_columns()};

double last_loss(const io::ResultsReader& results) {
    const Tensor<double, 1> losses = results.read<double, 1>("/train/loss");
    return losses(losses.size() - 1);
}

Trained trained(const io::ResultsReader& results, const Evaluation& evaluation) {
    const auto number = [&](const char* name) { return results.number("/train", name); };
    return {.steps = static_cast<int64_t>(number("steps")),
            .parameters = static_cast<int64_t>(number("parameters")),
            .loss = last_loss(results),
            .bits_per_byte = evaluation.bits_per_byte,
            .bytes = evaluation.bytes,
            .tokens_per_second = number("tokens_per_second"),
            .flops_per_token = number("flops_per_token"),
            .mfu = results.has("/train", "mfu") ? number("mfu")
                                                : std::numeric_limits<double>::quiet_NaN(),
            .peak = results.text("/train", "peak")};
}

/// "31 % of 989.4 TFLOP/s in bf16, NVIDIA H200 SXM 141GB", or why there is none.
std::string mfu_text(const Trained& of) {
    return std::isnan(of.mfu) ? "none, " + of.peak
                              : number_text(100 * of.mfu, 3) + " % of " + of.peak;
}

std::string title_of(const Trained& of) {
    constexpr int kDecimals = 4;
    return concat(
        of.steps, " steps of ", of.parameters, " parameters, ", number_text(of.tokens_per_second),
        " tokens per second\n", "model FLOPs utilization: ", mfu_text(of),
        "\nloss of the last step ", fixed_text(of.loss, kDecimals), " nats per token; ",
        fixed_text(of.bits_per_byte, kDecimals), " bits per byte on ", of.bytes, " held-out bytes");
}

std::vector<Task> tasks_of(const Evaluation& evaluation) {
    std::vector<Task> tasks;
    for (const RetrievalScore& score : evaluation.retrieval)
        if (std::ranges::find(tasks, score.task) == tasks.end()) tasks.push_back(score.task);
    return tasks;
}

std::vector<Probed> last_probe(const io::ResultsReader& results) {
    std::vector<Probed> layers;
    for (const char* name : kProbed) {
        const Tensor<double, 2> all = results.read<double, 2>(std::string("/probe/") + name);
        for (int64_t layer = 0; layer < all.extent(1); ++layer) {
            if (std::ssize(layers) <= layer) layers.push_back({layer, {}});
            layers[static_cast<size_t>(layer)].values.push_back(all(all.extent(0) - 1, layer));
        }
    }
    return layers;
}

/// Those of which anything was measured.
std::vector<ProbedHead> last_heads(const io::ResultsReader& results) {
    std::vector<ProbedHead> heads;
    for (const char* name : kProbedHeads) {
        const Tensor<double, 2> all = results.read<double, 2>(std::string("/heads/") + name);
        if (heads.empty())
            for (int64_t n = 0; n < all.size(); ++n)
                heads.push_back({n / all.extent(1), n % all.extent(1), {}});
        for (ProbedHead& of : heads) of.values.push_back(all(of.layer, of.head));
    }
    std::erase_if(heads, [](const ProbedHead& of) {
        return std::ranges::all_of(of.values, [](double value) { return std::isnan(value); });
    });
    return heads;
}

}  // namespace

std::vector<report::Shape> run_tables() {
    return {kTrained.shape(), kTaskScores.shape(), kLayers.shape(), kPositions.shape(),
            kByDepth.shape(), kFiles.shape(),      kHeads.shape()};
}

report::Report make_report(const io::ResultsReader& results) {
    const Evaluation evaluation = read_evaluation(results);
    const Trained of = trained(results, evaluation);
    std::vector<FileRow> files;
    for (const FileScore& score : evaluation.by_file) files.push_back({std::ssize(files), &score});
    report::Report report{
        .title = title_of(of),
        .tables = {kTrained.of(of), kTaskScores.of(by_task(evaluation, tasks_of(evaluation))),
                   kLayers.of(last_probe(results)), kPositions.of(evaluation.by_position),
                   kByDepth.of(evaluation.retrieval), kFiles.of(files),
                   kHeads.of(last_heads(results))}};
    report.note(report::kIntervals, "No intervals: runs of several seeds give them.");
    return report;
}

}  // namespace msa::experiments::pretrain
