// SPDX-License-Identifier: MIT
// Exercises in retrieval inside text, in the shapes of RULER (Hsieh et al. 2024, arXiv:2404.06654)
// and of multi-query associative recall (Zoology: Arora et al. 2023, arXiv:2312.04927).
//
// An exercise is filler text from documents with planted lines, and questions at its end. A planted
// line begins with the byte 0, which no document contains, so filler never looks like one. Keys and
// values are random letters a to z; the keys of an exercise differ.
//
//   fact       \0key=value\n     question   \0key=value\n    the value is the answer
//   reference  \0key=$other\n    question   \0key?value\n    the value at the end of references
//   source     \0value\n         question   \0value\n        a copy
//
// The last answer ends the exercise, without a line break.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/pretrain/text.h"

namespace msa::experiments::pretrain {

enum class Task : uint8_t {
    needle,     // one fact, asked for (RULER: single needle)
    multi_key,  // many facts, one of them asked for (RULER: multi-key needles)
    tracking,  // chains of references to a value; the value at the end of one is asked for. RULER's
               // variable tracking asks for the names along the chain instead, which gives every
               // hop away when the answer is fed back
    recall,    // many facts, many of them asked for (RULER: multi-query needles; Zoology: MQAR)
    copy,      // one run of random letters, to be repeated, without a key
};
inline constexpr int kTasks = 5;
inline constexpr std::array<const char*, kTasks> kTaskNames{"needle", "multi_key", "tracking",
                                                            "recall", "copy"};
constexpr const char* name_of(Task task) { return kTaskNames[static_cast<size_t>(task)]; }

struct TaskOptions {
    int64_t pairs = 16;        // facts of multi_key and recall, chains of tracking
    int64_t questions = 16;    // of recall, at most pairs
    int64_t key_length = 4;    // bytes
    int64_t value_length = 8;  // bytes
    int64_t hops = 2;          // references from the variable asked for to the value
    int64_t copy_length = 32;  // bytes of the run that is copied

    /// InputError naming the value and the rule it breaks; keys must be long enough for twice as
    /// many different ones as a task plants.
    void validate() const;
};

/// An answer, bytes [begin, end) of an exercise, and its fact.
struct Answer {
    int64_t begin = 0, end = 0;
    int64_t fact = 0;  // first byte of the planted line that holds the value
    double depth = 0;  // share of the filler that lies before that line, from 0 to 1
};

struct Exercise {
    Task task = Task::needle;
    std::string bytes;
    std::vector<Answer> answers;  // in order
    /// Unpredictable bytes that are not filler: planted lines, and questions without their answers.
    /// [begin, end), in order, disjoint from answers.
    std::vector<std::array<int64_t, 2>> planted;
};

/// Bytes of a task's planted lines and questions, the minimum length of an exercise.
int64_t planted_bytes(Task task, const TaskOptions& options);

/// An exercise of exactly `length` bytes; a pure function. The value of the first answer lies at
/// `depth`, from 0 to 1, up to half a byte of filler; without `depth`, at a random one. Other lines
/// lie at random depths, references after their referents. InputError if length < planted_bytes or
/// if the filler has no documents.
Exercise make_exercise(Task task, const TaskOptions& options, const Documents& filler,
                       int64_t length, std::optional<double> depth, uint64_t seed);

}  // namespace msa::experiments::pretrain
