// SPDX-License-Identifier: MIT
// Evaluates a model on held-out text and on long-range retrieval.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/train/model.h"
#include "experiments/pretrain/batches.h"

namespace msa::experiments::pretrain {

struct EvaluationOptions {
    Reading reading{};
    int64_t context = 0;        // tokens of a row of text
    int64_t sequences = 0;      // rows of text; 0: no text is evaluated
    int64_t first_bucket = 64;  // positions of the first bucket; each next one has twice as many

    std::vector<Task> tasks{};  // empty: no retrieval is evaluated
    TaskOptions task{};
    std::vector<int64_t> lengths;  // tokens of exercises
    int64_t depths = 5;            // equal parts of depth, each its own row
    int64_t exercises = 0;         // per task and length, with evenly spread depths

    int64_t batch_tokens = 0;  // of a forward pass; one sequence may be longer
    uint64_t seed = 0;

    /// InputError naming the value and the rule it breaks.
    void validate() const;
};

/// Bits per byte: mean of -log2 of the model's probabilities over bytes.
struct PositionScore {
    int64_t first = 0, end = 0;  // positions in a sequence of the predicting token
    int64_t bytes = 0;
    double bits_per_byte = 0;
};

/// All means are over answers, and NaN without any.
struct RetrievalScore {
    Task task = Task::needle;
    int64_t length = 0;
    double shallowest = 0, deepest = 0;  // depths [shallowest, deepest) of the answers' facts; 1
                                         // is in the last part
    int64_t exercises = 0;               // that have an answer here
    int64_t answers = 0;
    double exact_match = 0;     // share whose every byte is the likeliest one, given the true bytes
                                // before it (teacher forcing); ties go to the lowest byte
    double log_likelihood = 0;  // nats of a whole answer
};

/// Score of the held-out text of one file.
struct FileScore {
    std::string file;  // its stem
    int64_t bytes = 0;
    double bits_per_byte = 0;
};

struct Evaluation {
    int64_t bytes = 0;
    double bits_per_byte = std::numeric_limits<double>::quiet_NaN();  // NaN: without text
    std::vector<PositionScore> by_position;
    std::vector<FileScore> by_file;         // empty if the held-out text is one file
    std::vector<RetrievalScore> retrieval;  // by task, length and depth, in this order
};

/// A model's predictions for the n tokens of a batch.
struct Predictions {
    std::vector<float> losses;  // [n] nats of the target; 0 without one
    std::vector<char> right;    // [n] is the target the likeliest byte? Without answers: empty
};
using Predict = std::function<Predictions(const Sequences&)>;

/// Forward passes of a model; `sparse` as in Model::forward.
Predict predictions_of(train::Model& model, bool sparse);

/// A pure function. Filler and text come from `documents`. InputError if options are not valid
/// (also from Batches and make_exercise), or if a length exceeds the model's positions.
Evaluation evaluate(const Predict& predict, const Documents& documents,
                    const EvaluationOptions& options);
Evaluation evaluate(train::Model& model, bool sparse, const Documents& documents,
                    const EvaluationOptions& options);

}  // namespace msa::experiments::pretrain
