// SPDX-License-Identifier: MIT
#include "experiments/pretrain/results.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>

#include "analysis/metrics.h"
#include "experiments/driver/run.h"
#include "experiments/driver/table.h"

namespace msa::experiments::pretrain {
namespace {

using nlohmann::ordered_json;

/// A list of rows as one dataset for each of their fields.
template <typename Row>
struct RowColumn {
    const char *name, *unit, *description;
    double (*get)(const Row&);
    void (*set)(Row&, double);
};

template <typename Row, auto Member>
constexpr RowColumn<Row> field(const char* name, const char* unit, const char* description) {
    return {name, unit, description,
            [](const Row& row) { return static_cast<double>(row.*Member); },
            [](Row& row, double value) {
                row.*Member = static_cast<std::decay_t<decltype(row.*Member)>>(value);
            }};
}

using Position = PositionScore;
using Retrieval = RetrievalScore;

const RowColumn<Position> kPosition[] = {
    field<Position, &Position::first>("first", "token", "first position of a part of sequences"),
    field<Position, &Position::end>("end", "token", "position behind its last"),
    field<Position, &Position::bytes>("bytes", "bytes", "held-out bytes predicted there"),
    field<Position, &Position::bits_per_byte>("bits_per_byte", "bits", "mean over them"),
};
const RowColumn<FileScore> kFile[] = {
    field<FileScore, &FileScore::bytes>("bytes", "bytes", "held-out bytes of the file"),
    field<FileScore, &FileScore::bits_per_byte>("bits_per_byte", "bits", "mean over them"),
};
const RowColumn<Retrieval> kRetrieval[] = {
    field<Retrieval, &Retrieval::task>("task", "task", "number in the attribute tasks"),
    field<Retrieval, &Retrieval::length>("length", "tokens", "of the exercises"),
    field<Retrieval, &Retrieval::shallowest>("shallowest", "share", "least depth of the facts"),
    field<Retrieval, &Retrieval::deepest>("deepest", "share", "depth that they lie before"),
    field<Retrieval, &Retrieval::exercises>("exercises", "exercises", "with an answer here"),
    field<Retrieval, &Retrieval::answers>("answers", "answers", "that are counted"),
    field<Retrieval, &Retrieval::exact_match>(
        "exact_match", "share of answers",
        "answers whose every byte is the likeliest, the true bytes before it given"),
    field<Retrieval, &Retrieval::log_likelihood>("log_likelihood", "nats", "of a whole answer"),
};

template <typename Row, size_t N>
void write_rows(io::UnitWriter& to, const std::string& group, const std::vector<Row>& rows,
                const RowColumn<Row> (&fields)[N]) {
    for (const RowColumn<Row>& of : fields) {
        std::vector<double> values;
        for (const Row& row : rows) values.push_back(of.get(row));
        to.write<double, 1>(group + "/" + of.name, {values.data(), {std::ssize(values)}},
                            {"row", of.unit, of.description});
    }
}

template <typename Row, size_t N>
std::vector<Row> read_rows(const io::ResultsReader& from, const std::string& group,
                           const RowColumn<Row> (&fields)[N]) {
    std::vector<Row> rows;
    for (const RowColumn<Row>& of : fields) {
        const Tensor<double, 1> values = from.read<double, 1>(group + "/" + of.name);
        rows.resize(static_cast<size_t>(values.size()));
        for (size_t n = 0; n < rows.size(); ++n) of.set(rows[n], values(n));
    }
    return rows;
}

/// The last row of a column of the probe, by layer.
std::vector<double> last_probe(const io::ResultsReader& results, const char* name) {
    const Tensor<double, 2> all = results.read<double, 2>(std::string("/probe/") + name);
    const View<const double, 1> row = all.view()[all.extent(0) - 1];
    return {row.data(), row.data() + row.size()};
}

/// {name: [Hq]} of a layer, what it has.
ordered_json heads_json(const io::ResultsReader& results, int64_t layer) {
    ordered_json heads = ordered_json::object();
    for (const char* name : kProbedHeads) {
        const Tensor<double, 2> all = results.read<double, 2>(std::string("/heads/") + name);
        const View<const double, 1> row = all.view()[layer];
        if (std::isnan(row(0))) continue;
        for (int64_t head = 0; head < row.extent(0); ++head)
            heads[name].push_back(json_number(row(head)));
    }
    return heads;
}

/// "31 % of 989.4 TFLOP/s in bf16, NVIDIA H200 SXM 141GB", or why there is none.
std::string mfu_text(const io::ResultsReader& results) {
    const std::string peak = results.text("/train", "peak");
    if (!results.has("/train", "mfu")) return "none, " + peak;
    return number_text(100 * results.number("/train", "mfu"), 3) + " % of " + peak;
}

double last_loss(const io::ResultsReader& results) {
    const Tensor<double, 1> losses = results.read<double, 1>("/train/loss");
    return losses(losses.size() - 1);
}

std::vector<Task> tasks_of(const Evaluation& evaluation) {
    std::vector<Task> tasks;
    for (const RetrievalScore& score : evaluation.retrieval)
        if (std::find(tasks.begin(), tasks.end(), score.task) == tasks.end())
            tasks.push_back(score.task);
    return tasks;
}

}  // namespace

std::vector<TaskScore> by_task(const Evaluation& evaluation, const std::vector<Task>& tasks) {
    std::vector<TaskScore> scores;
    for (Task task : tasks) {
        TaskScore sum{.task = task};
        for (const RetrievalScore& score : evaluation.retrieval) {
            if (score.task != task || score.answers == 0) continue;
            const auto answers = static_cast<double>(score.answers);
            sum.answers += score.answers;
            sum.exact_match += answers * score.exact_match;
            sum.log_likelihood += answers * score.log_likelihood;
        }
        const double count = sum.answers > 0 ? static_cast<double>(sum.answers)
                                             : std::numeric_limits<double>::quiet_NaN();
        scores.push_back({task, sum.answers, sum.exact_match / count, sum.log_likelihood / count});
    }
    return scores;
}

void write_evaluation(io::UnitWriter& to, const Evaluation& evaluation) {
    write_rows(to, "/text", evaluation.by_position, kPosition);
    write_rows(to, "/files", evaluation.by_file, kFile);
    write_rows(to, "/retrieval", evaluation.retrieval, kRetrieval);
    ordered_json files = ordered_json::array();
    for (const FileScore& score : evaluation.by_file) files.push_back(score.file);
    to.attribute("/files", "files", files.dump());
    to.attribute("/text", "bytes", evaluation.bytes);
    to.attribute("/text", "bits_per_byte", evaluation.bits_per_byte);
    std::string tasks;
    for (const char* name : kTaskNames) tasks += (tasks.empty() ? "" : ",") + std::string(name);
    to.attribute("/retrieval", "tasks", tasks);
}

Evaluation read_evaluation(const io::ResultsReader& from) {
    Evaluation evaluation;
    evaluation.by_position = read_rows(from, "/text", kPosition);
    evaluation.by_file = read_rows(from, "/files", kFile);
    const ordered_json files = ordered_json::parse(from.text("/files", "files"));
    for (size_t n = 0; n < evaluation.by_file.size(); ++n) evaluation.by_file[n].file = files.at(n);
    evaluation.retrieval = read_rows(from, "/retrieval", kRetrieval);
    evaluation.bytes = static_cast<int64_t>(from.number("/text", "bytes"));
    evaluation.bits_per_byte = from.number("/text", "bits_per_byte");
    return evaluation;
}

void write_heads(io::UnitWriter& to, const Probe& look) {
    for (size_t m = 0; m < std::size(kProbedHeads); ++m) {
        const std::vector<std::vector<double>>& layers = look.heads[m];
        std::vector<double> values;
        for (const std::vector<double>& heads : layers)
            values.insert(values.end(), heads.begin(), heads.end());
        const auto rows = std::ssize(layers);
        const analysis::Metric& of = analysis::metric(kProbedHeads[m]);
        to.write<double, 2>(std::string("/heads/") + kProbedHeads[m],
                            {values.data(), {rows, std::ssize(values) / rows}},
                            {"layer,head", of.unit, of.definition});
    }
}

std::string pretrain_definitions() {
    ordered_json definitions{
        {"steps", "training steps done"},
        {"parameters", "learned numbers of the model"},
        {"loss", "nats per token of the last step that was logged, on training text and exercises"},
        {"bits_per_byte", "on held-out text, mean over bytes"},
        {"tokens_per_second", "of training steps alone"},
        {"flops_per_token",
         "that the model's mathematics asks for in a step, mean over the steps: 6 for each weight "
         "of a matrix but the embedding, and attention's, those of the Index Branch among them; "
         "nothing that is computed anew"},
        {"mfu", "share of the peak that these FLOPs reach in the training steps"},
        {"retrieval",
         "by task, over all answers: exact_match, the share whose every byte is the likeliest, "
         "the true bytes before it given; log_likelihood of an answer in nats"},
    };
    for (const char* name : kProbed) definitions[name] = analysis::metric(name).definition;
    return definitions.dump();
}

std::string pretrain_summary_json(const io::ResultsReader& results) {
    const Evaluation evaluation = read_evaluation(results);
    ordered_json summary{
        {"format", "msa-summary"},
        {"program", results.run().program},
        {"options", ordered_json::parse(results.run().options)},
        {"definitions", ordered_json::parse(results.run().definitions)},
        {"steps", static_cast<int64_t>(results.number("/train", "steps"))},
        {"parameters", static_cast<int64_t>(results.number("/train", "parameters"))},
        {"loss", json_number(last_loss(results))},
        {"bits_per_byte", json_number(evaluation.bits_per_byte)},
        {"tokens_per_second", json_number(results.number("/train", "tokens_per_second"))},
        {"flops_per_token", json_number(results.number("/train", "flops_per_token"))},
        {"mfu", results.has("/train", "mfu") ? json_number(results.number("/train", "mfu"))
                                             : ordered_json(nullptr)},
        {"peak", results.text("/train", "peak")},
        {"retrieval", ordered_json::object()},
        {"evaluation", to_json(evaluation)},
        {"rows", ordered_json::array()}};
    for (const TaskScore& score : by_task(evaluation, tasks_of(evaluation)))
        summary["retrieval"][name_of(score.task)] = {
            {"answers", score.answers},
            {"exact_match", json_number(score.exact_match)},
            {"log_likelihood", json_number(score.log_likelihood)}};
    for (const char* name : kProbed) {
        const std::vector<double> values = last_probe(results, name);
        for (size_t layer = 0; layer < values.size(); ++layer) {
            if (summary["rows"].size() <= layer) summary["rows"].push_back({{"layer", layer}});
            summary["rows"][layer][name] = json_number(values[layer]);
        }
    }
    for (size_t layer = 0; layer < summary["rows"].size(); ++layer)
        summary["rows"][layer]["heads"] = heads_json(results, static_cast<int64_t>(layer));
    return summary.dump(2) + "\n";
}

void print_pretrain_tables(const io::ResultsReader& results, std::ostream& out) {
    constexpr int kDecimals = 4;
    const Evaluation evaluation = read_evaluation(results);
    out << static_cast<int64_t>(results.number("/train", "steps")) << " steps of "
        << static_cast<int64_t>(results.number("/train", "parameters")) << " parameters, "
        << number_text(results.number("/train", "tokens_per_second")) << " tokens per second\n"
        << "model FLOPs utilization: " << mfu_text(results) << '\n'
        << "loss of the last step " << fixed_text(last_loss(results), kDecimals)
        << " nats per token; " << fixed_text(evaluation.bits_per_byte, kDecimals)
        << " bits per byte on " << evaluation.bytes << " held-out bytes\n\n";
    Table retrieval({"task", "answers", "exact match", "log-likelihood"});
    for (const TaskScore& score : by_task(evaluation, tasks_of(evaluation)))
        retrieval.add({name_of(score.task), std::to_string(score.answers),
                       fixed_text(score.exact_match, kDecimals),
                       fixed_text(score.log_likelihood, kDecimals)});
    if (!retrieval.empty()) {
        retrieval.print(out);
        out << '\n';
    }
    std::vector<std::string> header{"layer"};
    std::vector<std::vector<std::string>> rows;
    for (const char* name : kProbed) {
        header.emplace_back(analysis::metric(name).heading);
        std::replace(header.back().begin(), header.back().end(), ' ', '\n');
        const std::vector<double> values = last_probe(results, name);
        for (size_t layer = 0; layer < values.size(); ++layer) {
            if (rows.size() <= layer) rows.push_back({std::to_string(layer)});
            rows[layer].push_back(fixed_text(values[layer], kDecimals));
        }
    }
    Table probed(header);
    for (const std::vector<std::string>& row : rows) probed.add(row);
    probed.print(out);
}

}  // namespace msa::experiments::pretrain
