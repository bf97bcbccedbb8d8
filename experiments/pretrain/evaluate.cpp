// SPDX-License-Identifier: MIT
#include "experiments/pretrain/evaluate.h"

#include <algorithm>
#include <limits>
#include <numbers>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/number/convert.h"
#include "core/random.h"

namespace msa::experiments::pretrain {

namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double mean(double sum, int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : kNone;
}

/// Is the target the likeliest byte, for the tokens of answers?
std::vector<char> right_answers(Backend& backend, In<2> logits, const Sequences& sequences) {
    std::vector<char> right(sequences.targets.size());
    const int64_t vocabulary = logits.shape()[1];
    const int64_t row_bytes = vocabulary * element_bytes(logits.element());
    for (const AnswerTokens& answer : sequences.answers) {
        const int64_t rows = answer.end - answer.begin;
        std::vector<char> stored(static_cast<size_t>(rows * row_bytes));
        backend.copy(stored.data(), Space::host,
                     static_cast<const char*>(logits.data()) + answer.begin * row_bytes,
                     logits.space(), rows * row_bytes);
        std::vector<float> values(static_cast<size_t>(rows * vocabulary));
        decode(stored.data(), logits.element(), values);
        for (int64_t i = 0; i < rows; ++i) {
            const auto row = values.begin() + i * vocabulary;
            const auto token = static_cast<size_t>(answer.begin + i);
            right[token] =
                std::max_element(row, row + vocabulary) - row == sequences.targets[token];
        }
    }
    return right;
}

void evaluate_text(Evaluation& to, const Predict& predict, const Documents& documents,
                   const EvaluationOptions& o) {
    for (int64_t first = 0, end = o.first_bucket; first < o.context; first = end, end *= 2)
        to.by_position.push_back({.first = first, .end = std::min(end, o.context)});
    const Batches batches(documents, {}, o.reading, o.context, o.sequences, o.seed);
    const int64_t at_once = std::max<int64_t>(1, o.batch_tokens / o.context);
    if (documents.files().size() > 1)
        for (const std::string& file : documents.files()) to.by_file.push_back({.file = file});
    std::vector<double> nats(to.by_position.size()), nats_of_file(to.by_file.size());
    for (int64_t row = 0; row < o.sequences; row += at_once) {
        const Sequences rows = batches.at(0, row, std::min(at_once, o.sequences - row));
        const Predictions predictions = predict(rows);
        for (size_t i = 0; i < rows.tokens.size(); ++i) {
            size_t bucket = 0;
            while (rows.positions[i] >= to.by_position[bucket].end) ++bucket;
            ++to.by_position[bucket].bytes;
            nats[bucket] += double{predictions.losses[i]};
        }
        for (size_t s = 0; s < rows.files.size() && !to.by_file.empty(); ++s) {
            const auto file = static_cast<size_t>(rows.files[s]);
            to.by_file[file].bytes += rows.cu_seqlens[s + 1] - rows.cu_seqlens[s];
            nats_of_file[file] +=
                std::accumulate(predictions.losses.begin() + rows.cu_seqlens[s],
                                predictions.losses.begin() + rows.cu_seqlens[s + 1], 0.0);
        }
    }
    for (size_t file = 0; file < to.by_file.size(); ++file)
        to.by_file[file].bits_per_byte =
            mean(nats_of_file[file] / std::numbers::ln2, to.by_file[file].bytes);
    for (size_t bucket = 0; bucket < nats.size(); ++bucket) {
        PositionScore& score = to.by_position[bucket];
        score.bits_per_byte = mean(nats[bucket] / std::numbers::ln2, score.bytes);
        to.bytes += score.bytes;
    }
    to.bits_per_byte =
        mean(std::accumulate(nats.begin(), nats.end(), 0.0) / std::numbers::ln2, to.bytes);
}

/// Sums over the answers of one task and length, by depth.
class Scores {
public:
    Scores(Task task, int64_t length, int64_t depths) {
        const auto parts = static_cast<double>(depths);
        for (int64_t part = 0; part < depths; ++part)
            scores_.push_back({.task = task,
                               .length = length,
                               .shallowest = static_cast<double>(part) / parts,
                               .deepest = static_cast<double>(part + 1) / parts});
        counted_.resize(scores_.size(), -1);
    }

    void add(const AnswerTokens& answer, const Predictions& predictions, int64_t exercise) {
        const auto parts = static_cast<double>(scores_.size());
        const size_t part = std::min(scores_.size() - 1, static_cast<size_t>(answer.depth * parts));
        bool right = true;
        for (int64_t i = answer.begin; i < answer.end; ++i) {
            right = right && predictions.right[static_cast<size_t>(i)] != 0;
            scores_[part].log_likelihood -= double{predictions.losses[static_cast<size_t>(i)]};
        }
        scores_[part].exact_match += right ? 1 : 0;
        ++scores_[part].answers;
        if (std::exchange(counted_[part], exercise) != exercise) ++scores_[part].exercises;
    }

    std::vector<RetrievalScore> means() const {
        std::vector<RetrievalScore> means = scores_;
        for (RetrievalScore& score : means) {
            score.exact_match = mean(score.exact_match, score.answers);
            score.log_likelihood = mean(score.log_likelihood, score.answers);
        }
        return means;
    }

private:
    std::vector<RetrievalScore> scores_;
    std::vector<int64_t> counted_;  // the last exercise of each part
};

std::vector<RetrievalScore> evaluate_task(Task task, int64_t length, const Predict& predict,
                                          const Documents& documents, const EvaluationOptions& o) {
    Scores scores(task, length, o.depths);
    const int64_t at_once = std::max<int64_t>(1, o.batch_tokens / length);
    for (int64_t first = 0; first < o.exercises; first += at_once) {
        Sequences sequences;
        std::vector<int64_t> exercise_of;  // of each answer
        for (int64_t e = first; e < std::min(first + at_once, o.exercises); ++e) {
            const double depth = (static_cast<double>(e) + 0.5) / static_cast<double>(o.exercises);
            sequences.add(make_exercise(task, o.task, documents, o.reading.bytes(length), depth,
                                        mix(o.seed, static_cast<int64_t>(task), length, e)),
                          o.reading.bos);
            exercise_of.resize(sequences.answers.size(), e);
        }
        sequences.layout = PackedBatch(sequences.cu_seqlens, sequences.cu_seqlens);
        const Predictions predictions = predict(sequences);
        for (size_t a = 0; a < sequences.answers.size(); ++a)
            scores.add(sequences.answers[a], predictions, exercise_of[a]);
    }
    return scores.means();
}

}  // namespace

void EvaluationOptions::validate() const {
    const auto at_least = [](const char* name, int64_t value, int64_t low) {
        require(value >= low, name, " is ", value, ", must be at least ", low);
    };
    at_least("batch_tokens", batch_tokens, 1);
    at_least("sequences", sequences, 0);
    if (sequences > 0) {
        at_least("context", context, 1);
        at_least("first_bucket", first_bucket, 1);
    }
    if (tasks.empty()) return;
    at_least("depths", depths, 1);
    at_least("exercises", exercises, 1);
    require(!lengths.empty(), "no length of exercises is given");
    for (int64_t length : lengths)
        for (Task one : tasks)
            require(reading.bytes(length) >= planted_bytes(one, task), "an exercise of ",
                    name_of(one), " takes ", planted_bytes(one, task),
                    " bytes without any filler, a length is ", length,
                    "; --context or --eval-lengths must be longer, or --tasks others");
}

Predict predictions_of(train::Model& model, bool sparse) {
    return [&model, sparse](const Sequences& sequences) {
        Backend& backend = model.ops().backend();
        const Uploaded uploaded(backend, sequences);
        const Tensor<float, 1> losses = backend.download(model.forward(uploaded.batch(), sparse));
        Predictions predictions;
        predictions.losses = {losses.data(), losses.data() + losses.size()};
        if (!sequences.answers.empty())
            predictions.right = right_answers(backend, model.logits(), sequences);
        return predictions;
    };
}

Evaluation evaluate(const Predict& predict, const Documents& documents,
                    const EvaluationOptions& options) {
    options.validate();
    Evaluation evaluation;
    if (options.sequences > 0) evaluate_text(evaluation, predict, documents, options);
    for (Task task : options.tasks)
        for (int64_t length : options.lengths)
            for (const RetrievalScore& score :
                 evaluate_task(task, length, predict, documents, options))
                evaluation.retrieval.push_back(score);
    return evaluation;
}

Evaluation evaluate(train::Model& model, bool sparse, const Documents& documents,
                    const EvaluationOptions& options) {
    const train::ModelSizes& sizes = model.config().sizes;
    require(sizes.vocabulary >= kBytes, "the model's vocabulary is ", sizes.vocabulary,
            ", must be at least ", kBytes, ", one for each byte");
    const auto check = [&](const char* name, int64_t value) {
        require(value <= sizes.max_positions, name, " is ", value, ", must be at most ",
                sizes.max_positions, ", the positions of the model");
    };
    if (options.sequences > 0) check("context", options.context);
    if (!options.tasks.empty())
        for (int64_t length : options.lengths) check("a length of exercises", length);
    return evaluate(predictions_of(model, sparse), documents, options);
}

}  // namespace msa::experiments::pretrain
