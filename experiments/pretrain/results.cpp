// SPDX-License-Identifier: MIT
#include "experiments/pretrain/results.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "analysis/metrics.h"
#include "experiments/report/text.h"

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
    to.attribute("/retrieval", "tasks", join(kTaskNames, ","));
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

}  // namespace msa::experiments::pretrain
