// SPDX-License-Identifier: MIT
// What each step of training reads. A sequence is a function of (seed, step, its number), so that a
// resumed run and every rank of a data-parallel one need no state.
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
    /// InputError unless shares are from 0 to 1 and so is their sum, or where tasks are not valid.
    void validate() const;
};

/// What becomes of documents that are too short for a row.
enum class ShortDocuments : uint8_t {
    leave_out,  // every sequence is one cut of `context` tokens: all steps have one layout
    pack,       // a row of `context` tokens holds several, each a sequence of its own (cu_seqlens)
};

/// How documents become sequences.
struct Reading {
    ShortDocuments short_documents = ShortDocuments::leave_out;
    bool from_start = false;  // sequences begin where their document does, not at a random byte
    bool bos = false;         // kSeparator stands before each, exercises too; it foretells byte 0

    /// Bytes that become a sequence of so many tokens: each token has the byte behind it as its
    /// target, so without a BOS token there is one more of them.
    int64_t bytes(int64_t tokens) const { return tokens + (bos ? 0 : 1); }
};

/// An answer to an exercise among the tokens of a batch.
struct AnswerTokens {
    int64_t begin = 0, end = 0;  // targets [begin, end) are the answer's bytes
    Task task = Task::needle;
    double depth = 0;  // as in Answer
};

/// The tokens of a batch, behind each other; n of them.
struct Sequences {
    std::vector<int32_t> tokens{};     // [n]
    std::vector<int32_t> targets{};    // [n] the next byte of the text, Ops::kNoTarget where random
                                       // bytes of an exercise come next that nothing foretells
    std::vector<int32_t> positions{};  // [n] in their sequences
    std::vector<int64_t> cu_seqlens{0};
    std::vector<int64_t> files{};  // [sequences] where their text is from (Documents::files), or
                                   // -1: exercises
    std::vector<AnswerTokens> answers{};
    PackedBatch layout{};  // of cu_seqlens; set when all sequences are there

    /// Reading::bytes(m) bytes, m at least 1, become a sequence of m tokens.
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
    /// Batches of `sequences` rows of `context` tokens. `at_once`: the rows that most calls ask
    /// for, whose layout is made once; 0: all. `documents` must outlive this. InputError where a
    /// size is below 1, where all documents are to be left out, where an exercise of the mixture
    /// does not fit into the bytes of a row, or the mixture is not valid.
    Batches(const Documents& documents, const Mixture& mixture, const Reading& reading,
            int64_t context, int64_t sequences, uint64_t seed, int64_t at_once = 0);

    /// The rows of a step, from 0 on. Text: a byte of all documents is drawn, each as likely, and
    /// its document is cut, at a random place or from its start, where it is longer than the rest
    /// of the row.
    Sequences at(int64_t step) const { return at(step, 0, sequences_); }
    /// Rows [first, first + count) of it: what one rank of a data-parallel run reads.
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
    PackedBatch layout_;  // of the rows of most calls where every row is one sequence
};

}  // namespace msa::experiments::pretrain
