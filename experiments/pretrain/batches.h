// SPDX-License-Identifier: MIT
// The sequences of each training step. A sequence is a function of (seed, step, its number), so a
// resumed run and the ranks of a data-parallel run need no state.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/packed_batch.h"
#include "core/train/attention_layer.h"
#include "experiments/pretrain/tasks.h"
#include "experiments/pretrain/text.h"

namespace msa::experiments::pretrain {

/// The share of sequences that carry an exercise, by task (kTaskNames); the rest is text.
struct Mixture {
    std::array<double, kTasks> shares{};
    TaskOptions tasks{};
    /// InputError unless all shares and their sum are in [0, 1] and the tasks are valid.
    void validate() const;
};

/// What to do with documents that are too short for a row.
enum class ShortDocuments : uint8_t {
    leave_out,  // every sequence is a cut of `context` tokens: all steps have one layout
    pack,       // a row of `context` tokens holds several, each a sequence of its own (cu_seqlens)
};

/// How documents become sequences.
struct Reading {
    ShortDocuments short_documents = ShortDocuments::leave_out;
    bool from_start = false;  // sequences begin with their document, not at a random byte
    bool bos = false;         // kSeparator precedes each, exercises too, and predicts byte 0

    /// Bytes that make a sequence of `tokens` tokens. Each token's target is the next byte, so
    /// without a BOS token one more byte is needed.
    int64_t bytes(int64_t tokens) const { return tokens + (bos ? 0 : 1); }
};

/// An answer to an exercise among the tokens of a batch.
struct AnswerTokens {
    int64_t begin = 0, end = 0;  // targets [begin, end) are the answer's bytes
    Task task = Task::needle;
    double depth = 0;  // as in Answer
};

/// The n tokens of a batch, concatenated.
struct Sequences {
    std::vector<int32_t> tokens{};     // [n]
    std::vector<int32_t> targets{};    // [n] the next byte of the text, Ops::kNoTarget before
                                       // random bytes of an exercise that nothing predicts
    std::vector<int32_t> positions{};  // [n] in their sequences
    std::vector<int64_t> cu_seqlens{0};
    std::vector<int64_t> files{};  // [sequences] the file of their text (Documents::files), or
                                   // -1: exercises
    std::vector<AnswerTokens> answers{};
    PackedBatch layout{};  // of cu_seqlens; set when all sequences are added

    /// Adds Reading::bytes(m) bytes, m at least 1, as a sequence of m tokens.
    void add(std::string_view bytes, bool bos = false, int64_t file = -1);
    void add(const Exercise& exercise, bool bos = false);
};

/// The same on a backend.
class Uploaded {
public:
    Uploaded(Backend& backend, const Sequences& sequences);
    train::Batch batch() const { return {layout_, tokens_, targets_, positions_}; }

private:
    PackedBatch layout_;
    Tensor<int32_t, 1> tokens_, targets_, positions_;
};

class Batches {
public:
    /// Batches of `sequences` rows of `context` tokens. `at_once`: the usual number of rows per
    /// call, whose layout is cached; 0: all. `documents` must outlive this. InputError if a size is
    /// below 1, if all documents would be left out, if an exercise does not fit into a row, or if
    /// the mixture is not valid.
    Batches(const Documents& documents, const Mixture& mixture, const Reading& reading,
            int64_t context, int64_t sequences, uint64_t seed, int64_t at_once = 0);

    /// The rows of step `step`, counted from 0. For text, a byte of all documents is drawn
    /// uniformly. If its document is longer than the rest of the row, it is cut, at a random place
    /// or from its start.
    Sequences at(int64_t step) const { return at(step, 0, sequences_); }
    /// Rows [first, first + count) of it, for one rank of a data-parallel run.
    Sequences at(int64_t step, int64_t first, int64_t count) const;

    int64_t context() const { return context_; }
    int64_t sequences() const { return sequences_; }

private:
    std::optional<Task> task(uint64_t bits) const;
    void add_row(Sequences& to, uint64_t seed) const;

    const Documents& documents_;
    Documents long_documents_;  // those that are not left out
    Mixture mixture_;
    Reading reading_;
    int64_t context_, sequences_;
    uint64_t seed_;
    PackedBatch layout_;  // of the usual calls, if every row is one sequence
};

}  // namespace msa::experiments::pretrain
