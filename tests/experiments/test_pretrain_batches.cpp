// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "core/registry.h"
#include "core/train/ops.h"
#include "experiments/pretrain/batches.h"
#include "tests/experiments/pretrain_text.h"
#include "tests/support/refusal.h"

namespace msa::experiments::pretrain {
namespace {

using test::MadeDocuments;
using test::prose;
using test::refusal;

constexpr int64_t kContext = 200, kRows = 8;

/// Everything that a batch says.
auto content(const Sequences& s) {
    std::vector<double> answers;
    for (const AnswerTokens& a : s.answers)
        for (double value : {static_cast<double>(a.begin), static_cast<double>(a.end),
                             static_cast<double>(a.task), a.depth})
            answers.push_back(value);
    return std::tuple(s.tokens, s.targets, s.positions, s.cu_seqlens, answers);
}

/// The bytes that sequence s was made of, its targets being the tokens behind.
std::string bytes_of(const Sequences& batch, size_t s) {
    std::string bytes;
    const auto begin = static_cast<size_t>(batch.cu_seqlens[s]);
    const auto end = static_cast<size_t>(batch.cu_seqlens[s + 1]);
    for (size_t i = begin; i < end; ++i) {
        bytes += static_cast<char>(batch.tokens[i]);
        if (i + 1 < end && batch.targets[i] != train::Ops::kNoTarget) {
            EXPECT_EQ(batch.targets[i], batch.tokens[i + 1]);
        }
        EXPECT_EQ(batch.positions[i], static_cast<int32_t>(i - begin));
    }
    return bytes + static_cast<char>(batch.targets[end - 1]);
}

class BatchesTest : public testing::Test {
protected:
    MadeDocuments documents_{{prose(3000, 1), prose(150, 2), prose(40, 3), prose(500, 4)}};
    Mixture mixture_{.shares = {0.1, 0.1, 0.1, 0.1, 0.1}, .tasks = {.pairs = 2, .questions = 2}};

    Batches batches(ShortDocuments short_documents, const Mixture& mixture, uint64_t seed = 1) {
        return {documents_.all(), mixture, {short_documents}, kContext, kRows, seed};
    }
    bool in_a_document(const std::string& bytes, int64_t longer_than) {
        for (int64_t i = 0; i < documents_.all().count(); ++i)
            if (std::ssize(documents_.all()[i]) > longer_than &&
                documents_.all()[i].find(bytes) != std::string_view::npos)
                return true;
        return false;
    }
};

TEST_F(BatchesTest, AreAFunctionOfSeedAndStep) {
    for (ShortDocuments how : {ShortDocuments::leave_out, ShortDocuments::pack}) {
        const Batches one = batches(how, mixture_), same = batches(how, mixture_),
                      other = batches(how, mixture_, 2);
        const Sequences late = one.at(7);
        EXPECT_EQ(content(late), content(same.at(7)));
        EXPECT_NE(content(late), content(same.at(8)));
        EXPECT_NE(content(late), content(other.at(7)));
        EXPECT_EQ(late.layout.cu_seqlens_q(), late.cu_seqlens);
        EXPECT_EQ(late.layout.cu_seqlens_k(), late.cu_seqlens);
    }
}

TEST_F(BatchesTest, RanksReadPartsOfTheSameBatch) {
    for (ShortDocuments how : {ShortDocuments::leave_out, ShortDocuments::pack}) {
        const Batches all = batches(how, mixture_);
        const Sequences whole = all.at(3);
        std::vector<int32_t> tokens, targets;
        size_t answers = 0;
        for (const auto& [first, count] : {std::array{0, 3}, {3, 1}, {4, 4}}) {
            const Sequences part = all.at(3, first, count);
            tokens.insert(tokens.end(), part.tokens.begin(), part.tokens.end());
            targets.insert(targets.end(), part.targets.begin(), part.targets.end());
            answers += part.answers.size();
            EXPECT_EQ(part.layout.cu_seqlens_q(), part.cu_seqlens);
        }
        EXPECT_EQ(tokens, whole.tokens);
        EXPECT_EQ(targets, whole.targets);
        EXPECT_EQ(answers, whole.answers.size());
    }
}

TEST_F(BatchesTest, LongDocumentsAreCutAndShortOnesLeftOut) {
    const Batches all = batches(ShortDocuments::leave_out, {});
    std::set<std::string> cuts;
    for (int64_t step = 0; step < 20; ++step) {
        const Sequences batch = all.at(step);
        ASSERT_EQ(batch.cu_seqlens.size(), size_t{kRows} + 1);
        for (size_t row = 0; row < kRows; ++row) {
            const std::string bytes = bytes_of(batch, row);
            EXPECT_EQ(std::ssize(bytes), kContext + 1);
            EXPECT_TRUE(in_a_document(bytes, kContext));
            cuts.insert(bytes);
        }
        EXPECT_EQ(batch.layout.identity(), all.at(0).layout.identity()) << "one layout for all";
    }
    EXPECT_GT(cuts.size(), 140U);  // of 160: about 3100 places to cut
}

TEST_F(BatchesTest, PackedRowsHoldDocumentsAsSequencesOfTheirOwn) {
    const Batches all = batches(ShortDocuments::pack, {});
    std::set<int64_t> lengths;
    for (int64_t step = 0; step < 30; ++step) {
        const Sequences batch = all.at(step);
        ASSERT_EQ(std::ssize(batch.tokens), kRows * kContext);
        const std::set<int64_t> ends(batch.cu_seqlens.begin(), batch.cu_seqlens.end());
        for (int64_t row = 0; row <= kRows; ++row) EXPECT_TRUE(ends.contains(row * kContext));
        for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
            EXPECT_TRUE(in_a_document(bytes_of(batch, s), 0));
            lengths.insert(batch.cu_seqlens[s + 1] - batch.cu_seqlens[s]);
        }
    }
    for (int64_t whole : {39, 149, 200}) EXPECT_TRUE(lengths.contains(whole)) << whole;
}

TEST_F(BatchesTest, SequencesMayBeginWithTheirDocument) {
    for (ShortDocuments how : {ShortDocuments::leave_out, ShortDocuments::pack}) {
        const Batches all(documents_.all(), {}, {.short_documents = how, .from_start = true},
                          kContext, kRows, 1);
        for (int64_t step = 0; step < 20; ++step) {
            const Sequences batch = all.at(step);
            for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
                const std::string bytes = bytes_of(batch, s);
                int64_t starts = 0;
                for (int64_t i = 0; i < documents_.all().count(); ++i)
                    starts += documents_.all()[i].starts_with(bytes) ? 1 : 0;
                EXPECT_EQ(starts, 1) << bytes;
            }
        }
    }
}

TEST_F(BatchesTest, ABosTokenForetellsTheFirstByte) {
    for (ShortDocuments how : {ShortDocuments::leave_out, ShortDocuments::pack}) {
        const Batches all(documents_.all(), mixture_, {.short_documents = how, .bos = true},
                          kContext, kRows, 1);
        for (int64_t step = 0; step < 20; ++step) {
            const Sequences batch = all.at(step);
            ASSERT_EQ(std::ssize(batch.tokens), kRows * kContext);
            for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
                const auto begin = static_cast<size_t>(batch.cu_seqlens[s]);
                const std::string bytes = bytes_of(batch, s);
                EXPECT_EQ(bytes[0], kSeparator);
                EXPECT_EQ(batch.positions[begin], 0);
                if (batch.files[s] < 0) continue;  // exercises are filled with several documents
                EXPECT_TRUE(in_a_document(bytes.substr(1), 0));
            }
        }
    }
    const MadeDocuments one({"ab"});  // context bytes will do
    EXPECT_EQ(refusal([&] { Batches(one.all(), {}, {.bos = true}, 2, 1, 1); }), "");
    EXPECT_EQ(refusal([&] { Batches(one.all(), {}, {.bos = true}, 3, 1, 1); }),
              "the text: the longest document has 2 bytes, must have at least 3: the context, "
              "unless short documents are packed");
}

TEST_F(BatchesTest, AnAnswerStaysItsOwnBehindABosToken) {
    const Exercise e = make_exercise(Task::recall, mixture_.tasks, documents_.all(), 200, {}, 5);
    Sequences batch;
    batch.add(e, true);
    ASSERT_EQ(batch.tokens.size(), 200U);
    for (size_t a = 0; a < e.answers.size(); ++a)
        for (int64_t i = batch.answers[a].begin; i < batch.answers[a].end; ++i)
            EXPECT_EQ(
                batch.targets[static_cast<size_t>(i)],
                static_cast<int32_t>(
                    e.bytes[static_cast<size_t>(e.answers[a].begin + i - batch.answers[a].begin)]));
    for (const auto& [begin, end] : e.planted)
        for (int64_t i = begin; i < end; ++i)
            EXPECT_EQ(batch.targets[static_cast<size_t>(i)], train::Ops::kNoTarget);
}

TEST_F(BatchesTest, ExercisesComeAtTheirShares) {
    Mixture mixture = mixture_;
    mixture.shares = {0.0, 0.3, 0.2, 0.1, 0.05};
    const Batches all = batches(ShortDocuments::leave_out, mixture);
    std::array<double, kTasks> rows{};
    constexpr int64_t kSteps = 250;
    for (int64_t step = 0; step < kSteps; ++step) {
        std::set<std::pair<int64_t, Task>> seen;
        for (const AnswerTokens& answer : all.at(step).answers)
            seen.insert({answer.begin / kContext, answer.task});
        for (const auto& [row, task] : seen) ++rows[static_cast<size_t>(task)];
    }
    for (size_t task = 0; task < kTasks; ++task) {
        const double share = mixture.shares[task];
        EXPECT_NEAR(rows[task] / (kSteps * kRows), share,
                    5 * std::sqrt(share * (1 - share) / (kSteps * kRows)))
            << kTaskNames[task];
    }
}

TEST_F(BatchesTest, NothingIsForetoldWhereAnExerciseIsRandom) {
    for (Task task : {Task::needle, Task::multi_key, Task::tracking, Task::recall, Task::copy}) {
        const Exercise e = make_exercise(task, mixture_.tasks, documents_.all(), 201, {}, 5);
        Sequences batch;
        batch.add(prose(50, 1));
        batch.add(e);
        EXPECT_EQ(batch.cu_seqlens, (std::vector<int64_t>{0, 49, 249}));
        std::string kinds(200, 'f');  // of byte i + 1, which is the target of token i
        for (const auto& [begin, end] : e.planted)
            for (int64_t i = std::max<int64_t>(1, begin); i < end; ++i)
                kinds[static_cast<size_t>(i - 1)] = 'p';
        for (size_t i = 0; i < kinds.size(); ++i)
            EXPECT_EQ(batch.targets[49 + i], kinds[i] == 'p'
                                                 ? train::Ops::kNoTarget
                                                 : static_cast<int32_t>(e.bytes[i + 1]));
        ASSERT_EQ(batch.answers.size(), e.answers.size());
        for (size_t a = 0; a < e.answers.size(); ++a) {
            std::string answer;
            for (int64_t i = batch.answers[a].begin; i < batch.answers[a].end; ++i)
                answer += static_cast<char>(batch.targets[static_cast<size_t>(i)]);
            EXPECT_EQ(answer,
                      e.bytes.substr(static_cast<size_t>(e.answers[a].begin), answer.size()));
            EXPECT_EQ(batch.answers[a].depth, e.answers[a].depth);
        }
    }
}

TEST_F(BatchesTest, BytesAreNeverNegative) {
    Sequences batch;
    batch.add("\xff\x80z");
    EXPECT_EQ(batch.tokens, (std::vector<int32_t>{255, 128}));
    EXPECT_EQ(batch.targets, (std::vector<int32_t>{128, 'z'}));
}

TEST_F(BatchesTest, AreTheSameOnABackend) {
    const auto backend = make_backend("cpu", {.threads = 1});
    const Sequences batch = batches(ShortDocuments::pack, mixture_).at(0);
    const Uploaded uploaded(*backend, batch);
    const train::Batch there = uploaded.batch();
    const auto same = [&](View<const int32_t, 1> view, const std::vector<int32_t>& list) {
        return std::vector<int32_t>(view.data(), view.data() + view.size()) == list;
    };
    EXPECT_TRUE(same(there.tokens, batch.tokens));
    EXPECT_TRUE(same(there.targets, batch.targets));
    EXPECT_TRUE(same(there.positions, batch.positions));
    EXPECT_TRUE(there.layout == batch.layout);
}

TEST_F(BatchesTest, RefusalsNameTheValueAndTheRule) {
    const auto of = [&](ShortDocuments how, int64_t context, const Mixture& mixture = {}) {
        return refusal([&] { Batches(documents_.all(), mixture, {how}, context, kRows, 1); });
    };
    EXPECT_EQ(of(ShortDocuments::leave_out, 2999), "");
    EXPECT_EQ(
        of(ShortDocuments::leave_out, 3000),
        "the text: the longest document has 3000 bytes, must have at least 3001: one more than the "
        "context, unless short documents are packed");
    EXPECT_EQ(of(ShortDocuments::pack, 3000), "");
    EXPECT_EQ(of(ShortDocuments::pack, 0), "the context is 0, must be at least 1");
    EXPECT_EQ(of(ShortDocuments::pack, 10, mixture_),
              "an exercise of needle takes 29 bytes without any filler, the context is 10; a "
              "longer --context holds it, and --tasks names others");
    const MadeDocuments bytes({"a", "b"});
    EXPECT_EQ(refusal([&] { Batches(bytes.all(), {}, {ShortDocuments::pack}, 5, 1, 1); }),
              "the text: the longest document has 1 bytes, must have at least 2");
    EXPECT_EQ(refusal([&] { Batches(bytes.all(), {}, {ShortDocuments::pack}, 5, 0, 1); }),
              "sequences per batch are 0, must be at least 1");
    Mixture mixture;
    mixture.shares[0] = -0.5;
    EXPECT_EQ(of(ShortDocuments::pack, 99, mixture),
              "the share of needle is -0.5, must be from 0 to 1");
    mixture.shares = {0.5, 0.5, 0.5, 0, 0};
    EXPECT_EQ(of(ShortDocuments::pack, 99, mixture),
              "the shares of all tasks sum to 1.5, must be at most 1");
}

}  // namespace
}  // namespace msa::experiments::pretrain
