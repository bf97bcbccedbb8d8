// SPDX-License-Identifier: MIT
// Exercises, solved from their bytes alone.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "experiments/pretrain/tasks.h"
#include "tests/experiments/pretrain_text.h"
#include "tests/support/refusal.h"

namespace msa::experiments::pretrain {
namespace {

using test::MadeDocuments;
using test::prose;
using test::refusal;

/// What a reader finds who knows the forms of lines and sees the bytes before an answer.
struct Solution {
    std::string answer;
    std::vector<size_t> facts;  // where the lines begin that lead to it, the asked one first
    bool in_order = true;       // each leads to one before it
};

Solution solve(const std::string& prompt) {
    std::map<std::string, std::pair<std::string, size_t>> facts;  // key: value and place
    std::pair<std::string, size_t> source;
    const size_t asked = prompt.rfind('\0');
    int lines = 0;
    for (size_t at = prompt.find('\0'); at < asked; at = prompt.find('\0', at + 1), ++lines) {
        const std::string line = prompt.substr(at + 1, prompt.find('\n', at) - at - 1);
        const size_t equals = line.find('=');
        const std::string value = line.substr(equals + 1);
        if (equals == std::string::npos) {
            source = {line, at};
            continue;
        }
        // An earlier question, answered, repeats its fact.
        const auto [fact, is_new] = facts.insert({line.substr(0, equals), {value, at}});
        EXPECT_EQ(fact->second.first, value) << "two facts of one key";
    }
    const std::string question = prompt.substr(asked + 1);
    if (question.empty()) {
        EXPECT_EQ(lines, 1) << "nothing but the place tells what is copied";
        return {source.first, {source.second}};
    }
    Solution solution;
    std::string key = question.substr(0, question.size() - 1);
    while (true) {
        const auto& [value, at] = facts.at(key);
        if (!solution.facts.empty()) solution.in_order &= at < solution.facts.back();
        solution.facts.push_back(at);
        solution.answer = value;
        if (value.front() != '$') return solution;
        key = value.substr(1);
    }
}

/// Bytes of [0, end) that no planted line or question holds: those end with the line.
int64_t filler_before(const std::string& bytes, size_t end) {
    int64_t count = 0;
    bool planted = false;
    for (size_t i = 0; i < end; ++i) {
        planted = planted || bytes[i] == '\0';
        count += planted ? 0 : 1;
        planted = planted && bytes[i] != '\n';
    }
    return count;
}

class TaskTest : public testing::TestWithParam<Task> {
protected:
    MadeDocuments documents_{{prose(5000, 1), prose(700, 2)}};
    TaskOptions options_{.pairs = 6, .questions = 4, .hops = 3};
};

TEST_P(TaskTest, TheAnswerFollowsFromWhatStandsBeforeIt) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
        const Exercise e = make_exercise(GetParam(), options_, documents_.all(), 1500, {}, seed);
        ASSERT_EQ(e.bytes.size(), 1500U);
        ASSERT_EQ(std::ssize(e.answers), GetParam() == Task::recall ? 4 : 1);
        for (const Answer& answer : e.answers) {
            const auto begin = static_cast<size_t>(answer.begin);
            const Solution solution = solve(e.bytes.substr(0, begin));
            EXPECT_EQ(e.bytes.substr(begin, static_cast<size_t>(answer.end) - begin),
                      solution.answer);
            EXPECT_EQ(std::ssize(solution.answer), GetParam() == Task::copy ? 32 : 8);
            EXPECT_EQ(answer.fact, static_cast<int64_t>(solution.facts.back()));
            EXPECT_EQ(solution.facts.size(), GetParam() == Task::tracking ? 4U : 1U);
            EXPECT_TRUE(solution.in_order);
        }
        EXPECT_EQ(e.answers.back().end, 1500);
    }
}

TEST_P(TaskTest, TheFactLiesAtItsDepth) {
    for (double depth : {0.0, 0.1, 0.5, 0.77, 1.0}) {
        const Exercise e = make_exercise(GetParam(), options_, documents_.all(), 1500, depth, 3);
        const auto questions = static_cast<size_t>(e.answers.front().begin);
        const auto filler = static_cast<double>(filler_before(e.bytes, questions));
        EXPECT_EQ(filler, 1500 - static_cast<double>(planted_bytes(GetParam(), options_)));
        for (const Answer& answer : e.answers) {
            const auto fact = static_cast<size_t>(answer.fact);
            const auto before = static_cast<double>(filler_before(e.bytes, fact));
            EXPECT_DOUBLE_EQ(answer.depth, before / filler);
            if (&answer != &e.answers.front()) continue;
            EXPECT_LE(std::fabs(before - depth * filler), 0.5);
        }
    }
}

TEST_P(TaskTest, DepthsThatAreNotAskedForAreSpread) {
    double sum = 0;
    for (uint64_t seed = 0; seed < 200; ++seed)
        sum += make_exercise(GetParam(), options_, documents_.all(), 1500, {}, seed)
                   .answers.front()
                   .depth;
    EXPECT_NEAR(sum / 200, 0.5, 5 * std::sqrt(1.0 / 12 / 200));  // uniform, 5 standard deviations
}

TEST_P(TaskTest, FillerPlantedBytesAndAnswersAreAllThereIs) {
    const MadeDocuments one({prose(5000, 1)});
    const Exercise e = make_exercise(GetParam(), options_, one.all(), 1500, {}, 9);
    std::string kind(e.bytes.size(), 'f'), filler;
    for (const auto& [begin, end] : e.planted)
        for (int64_t i = begin; i < end; ++i)
            EXPECT_EQ(std::exchange(kind[static_cast<size_t>(i)], 'p'), 'f');
    for (const Answer& answer : e.answers)
        for (int64_t i = answer.begin; i < answer.end; ++i)
            EXPECT_EQ(std::exchange(kind[static_cast<size_t>(i)], 'a'), 'f');
    for (size_t i = 0; i < kind.size(); ++i)
        if (kind[i] == 'f') filler += e.bytes[i];
    EXPECT_NE(one.all()[0].find(filler), std::string::npos)
        << "the filler is a cut of the document";
}

TEST_P(TaskTest, IsAFunctionOfItsArguments) {
    const auto bytes = [&](uint64_t seed) {
        return make_exercise(GetParam(), options_, documents_.all(), 900, 0.5, seed).bytes;
    };
    EXPECT_EQ(bytes(4), bytes(4));
    EXPECT_NE(bytes(4), bytes(5));
}

TEST_P(TaskTest, NeedsTheRoomOfWhatIsPlanted) {
    const int64_t planted = planted_bytes(GetParam(), options_);
    const Documents none;
    const auto make = [&](int64_t length) {
        return make_exercise(GetParam(), options_, none, length, {}, 1);
    };
    EXPECT_EQ(std::ssize(make(planted).bytes), planted);
    EXPECT_EQ(refusal([&] { make(planted - 1); }),
              concat("an exercise of ", name_of(GetParam()), " is ", planted - 1,
                     " bytes long, but its planted lines and questions alone take ", planted));
    EXPECT_EQ(refusal([&] { make(planted + 1); }),
              concat("there is no text for the filler of ", name_of(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(All, TaskTest,
                         testing::Values(Task::needle, Task::multi_key, Task::tracking,
                                         Task::recall, Task::copy),
                         [](const auto& task) { return std::string(name_of(task.param)); });

TEST(Tasks, KeysDifferWhereLettersAreScarce) {
    const TaskOptions options{.pairs = 112, .questions = 1, .key_length = 2};  // 336 of 676 keys
    const Documents none;
    for (Task task : {Task::tracking, Task::multi_key}) {
        const Exercise e = make_exercise(task, options, none, planted_bytes(task, options), {}, 1);
        solve(e.bytes.substr(0, static_cast<size_t>(e.answers.front().begin)));
    }
}

TEST(Tasks, QuestionsOfRecallComeInRandomOrder) {
    const TaskOptions options{.pairs = 16, .questions = 16};
    const Documents none;
    std::map<int64_t, int> seconds;  // where the fact of the second question lies
    for (uint64_t seed = 0; seed < 100; ++seed)
        ++seconds[make_exercise(Task::recall, options, none, planted_bytes(Task::recall, options),
                                {}, seed)
                      .answers[1]
                      .fact];
    EXPECT_GE(seconds.size(), 14U);
}

TEST(Tasks, OptionsAreRefusedWithTheValueAndTheRule) {
    const auto of = [](const TaskOptions& options) { return refusal([&] { options.validate(); }); };
    EXPECT_EQ(of({}), "");
    EXPECT_EQ(of({.pairs = 0}), "pairs is 0, must be at least 1");
    EXPECT_EQ(of({.pairs = 4, .questions = 5}), "questions is 5, must be at most pairs = 4");
    EXPECT_EQ(of({.hops = 0}), "hops is 0, must be at least 1");
    EXPECT_EQ(of({.key_length = 1}),
              "key_length is 1, too short for 48 different keys of letters a to z");
    const Documents none;
    EXPECT_EQ(refusal([&] { make_exercise(Task::copy, {}, none, 999, 1.5, 1); }),
              "depth is 1.5, must be from 0 to 1");
}

}  // namespace
}  // namespace msa::experiments::pretrain
