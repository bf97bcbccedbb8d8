// SPDX-License-Identifier: MIT
// index_select where rows see hundreds of blocks, so that their lists take in many: scores that
// rise, fall, repeat or come in any order, as whole numbers, which every type has exactly, or of
// which some or nearly all are NaN. In some orders even rows have negative scores alone, or but a
// few others.
#include <cmath>
#include <limits>
#include <random>

#include "tests/support/compare.h"
#include "tests/support/runner.h"
#include "tests/support/scaled.h"
#include "tests/support/truth.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

constexpr int kBlocks = 200, kDigits = 3;  // of a score, to base 8

constexpr int kNoScore = -1;  // NaN
constexpr int kAbove = 448;  // by which scores of "negative" and "mixed" are less; the most of e4m3

/// Scores from 0 to 511, of which later blocks follow in the order that the name says.
std::vector<int> block_scores(const std::string& order) {
    std::mt19937 random(20);
    std::vector<int> scores;
    for (int b = 0; b < kBlocks; ++b) {
        const auto any = static_cast<int>(random() % 512);
        scores.push_back(order == "rising"     ? b
                         : order == "falling"  ? kBlocks - b
                         : order == "equal"    ? 7
                         : order == "few"      ? any % 3
                         : order == "gaps"     ? (any % 3 == 0 ? kNoScore : any)
                         : order == "rare"     ? (b % 20 != 0 ? kNoScore : any)
                         : order == "negative" ? any % kAbove
                         : order == "mixed"    ? (b % 20 != 10 ? any % kAbove : any | kAbove)
                                               : any);
    }
    return scores;
}

/// Even rows score a block as the order says, odd rows 511 less it, in some orders kAbove less than
/// that. Blocks of later sequences have the same scores from the first on.
Operands with_scores(const Problem& p, const std::string& order) {
    const std::vector<int> scores = block_scores(order);
    Operands o = make_operands({"lists", p, {}}, Element::f32);
    std::fill_n(o.index_q.data(), o.index_q.size(), 0.0F);
    std::fill_n(o.index_k.data(), o.index_k.size(), 0.0F);
    for (int64_t digit = 0; digit < kDigits; ++digit) {
        for (int64_t row = 0; row < o.index_q.size() / p.index_dim; ++row)
            o.index_q.data()[row * p.index_dim + row % 2 * kDigits + digit] =
                static_cast<float>(1 << 3 * digit);
        for (int64_t b = 0; b < o.index_k.extent(0) / p.block_size; ++b) {
            const int score = scores[static_cast<size_t>(b % kBlocks)];
            const int value = score >> 3 * digit & 7;
            const int64_t key = b * p.block_size + b % p.block_size;
            o.index_k(key, digit) = static_cast<float>(value);
            o.index_k(key, kDigits + digit) = static_cast<float>(7 - value);
            if (score == kNoScore)
                o.index_k(key, 0) = std::copysign(std::numeric_limits<float>::quiet_NaN(),
                                                  b % 2 == 0 ? 1.0F : -1.0F);
        }
    }
    if (order == "negative" || order == "mixed") {
        for (int64_t row = 0; row < o.index_q.size() / p.index_dim; ++row)
            o.index_q.data()[row * p.index_dim + 2 * kDigits] = 1;
        for (int64_t key = 0; key < o.index_k.extent(0); ++key)
            o.index_k(key, 2 * kDigits) = -kAbove;
    }
    return o;
}

/// A tile of queries that see all blocks, and as many short sequences behind it.
PackedBatch tile_among(int64_t others, int64_t block_size) {
    std::vector<int64_t> queries{0, 33}, keys{0, kBlocks * block_size};
    for (int64_t n = 0; n < others; ++n) {
        queries.push_back(queries.back() + 1);
        keys.push_back(keys.back() + 1);
    }
    return {std::move(queries), std::move(keys)};
}

/// Sequences of 1, 1 + step and more blocks up to `most`, each with 64 queries at its end.
PackedBatch ends_anywhere(int64_t most, int64_t step, int64_t block_size) {
    std::vector<int64_t> queries{0}, keys{0};
    for (int64_t blocks = 1; blocks <= most; blocks += step) {
        queries.push_back(queries.back() + 64);
        keys.push_back(keys.back() + blocks * block_size);
    }
    return {std::move(queries), std::move(keys)};
}

/// Three sequences of equal length, each with some queries at its end.
PackedBatch three_alike(int64_t queries, int64_t keys) {
    return {{0, queries, 2 * queries, 3 * queries}, {0, keys, 2 * keys, 3 * keys}};
}

class IndexLists : public testing::TestWithParam<std::tuple<Subject, std::string>> {};

std::vector<Subject> compared_subjects() {
    std::vector<Subject> all = subjects();
    std::erase_if(all, [](const Subject& subject) { return subject.backend == "reference"; });
    return all;
}
std::string list_name(const testing::TestParamInfo<IndexLists::ParamType>& info) {
    return subject_name({std::get<0>(info.param), info.index}) + "_" + std::get<1>(info.param);
}
INSTANTIATE_TEST_SUITE_P(All, IndexLists,
                         testing::Combine(testing::ValuesIn(compared_subjects()),
                                          testing::Values("rising", "falling", "equal", "few",
                                                          "gaps", "rare", "negative", "mixed",
                                                          "random")),
                         list_name);

/// The selection of a subject, and of its e4m3 and int8 kernels, is the reference's.
void expect_reference_selection(const Subject& subject, Runner& runner, const Problem& p,
                                const SelectionRule& rule, const Operands& o) {
    const Tensor<int32_t, 3> want = reference().index_select(p, rule, o);
    EXPECT_TRUE(identical(runner.index_select(p, rule, o), want));
    if (subject.backend != "cuda") return;
    Backend& backend = runner.backend();
    const Uploaded<3> index_q(backend, Element::e4m3, o.index_q);
    const Uploaded<2> index_k(backend, Element::e4m3, o.index_k);
    Tensor<int32_t, 3> ids = backend.make<int32_t, 3>(want.shape());
    backend.index_select(p, rule, {index_q, index_k}, ids);
    EXPECT_TRUE(identical(backend.download(ids.view()), want)) << "e4m3";
    const ScaledIndex scaled = store_index(p, o);
    Runner truth = reference();
    EXPECT_TRUE(identical(index_select(backend, p, rule, scaled),
                          index_select(truth.backend(), p, rule, scaled)))
        << "int8";
}

/// Only kernels of a GPU differ from those of 128 channels, and the reference takes long.
bool has_width(const Subject& subject, int dim) {
    return dim <= 128 || subject.backend.starts_with("cuda");
}

TEST_P(IndexLists, AreTheReferenceSelection) {
    const auto& [subject, order] = GetParam();
    Runner runner(subject);
    // Alone, a tile's keys are split over the SMs of a GPU, and few of them meet in one list.
    // Warps of a GPU merge in one turn or, with 128 channels or more, in four. Hopper keeps scores,
    // no lists, of as few blocks.
    for (const auto& [top_k, others, block_size, dim] : {std::tuple{16, 0, 64, 64},
                                                         {16, 200, 64, 128},
                                                         {16, 200, 128, 128},
                                                         {32, 0, 32, 64},
                                                         {32, 200, 32, 64},
                                                         {16, 200, 128, 256},
                                                         {32, 0, 32, 256}}) {
        if (!has_width(subject, dim)) continue;
        SCOPED_TRACE("k " + std::to_string(top_k) + ", others " + std::to_string(others) +
                     ", blocks of " + std::to_string(block_size));
        Problem p = square_problem(0, 4, 2, 64, dim, block_size);
        p.batch = tile_among(others, p.block_size);
        const Operands o = with_scores(p, order);
        expect_reference_selection(subject, runner, p, {.top_k = top_k}, o);
    }
}

TEST_P(IndexLists, OfFewPartsAreTheReferenceSelection) {
    const auto& [subject, order] = GetParam();
    Runner runner(subject);
    // A GPU cuts a tile into parts of 512 or, of few queries, 2048 keys: mostly 2 to 4.
    for (const auto& [top_k, queries, blocks, block_size, dim] : {std::tuple{16, 33, 60, 32, 128},
                                                                  {32, 33, 16, 64, 64},
                                                                  {5, 33, 8, 128, 128},
                                                                  {16, 1, 200, 32, 64},
                                                                  {16, 8, 200, 32, 128},
                                                                  {32, 1, 150, 32, 128},
                                                                  {16, 33, 60, 32, 256},
                                                                  {5, 33, 8, 128, 256},
                                                                  {16, 8, 200, 32, 256}}) {
        if (!has_width(subject, dim)) continue;
        SCOPED_TRACE("k " + std::to_string(top_k) + ", queries " + std::to_string(queries) +
                     ", blocks " + std::to_string(blocks));
        Problem p = square_problem(0, 4, 2, 64, dim, block_size);
        p.batch = three_alike(queries, int64_t{blocks} * block_size);
        const Operands o = with_scores(p, order);
        expect_reference_selection(subject, runner, p, {.top_k = top_k, .forced_first = 1}, o);
    }
}

TEST_P(IndexLists, OfLongRowsAreTheReferenceSelection) {
    const auto& [subject, order] = GetParam();
    if (subject.backend != "cuda") GTEST_SKIP() << "only cuda keeps scores of shorter rows";
    Runner runner(subject);
    // The more sequences, the longer are the parts of each: 4 to 172 blocks.
    for (const auto& [top_k, queries, others, dim] : {std::tuple{16, 33, 0, 64},
                                                      {16, 65, 10, 64},
                                                      {32, 1, 0, 64},
                                                      {5, 8, 0, 128},
                                                      {16, 33, 0, 256}}) {
        SCOPED_TRACE("k " + std::to_string(top_k) + ", queries " + std::to_string(queries));
        Problem p = square_problem(0, 4, 2, 64, dim, 32);
        std::vector<int64_t> ends_q{0, queries}, ends_k{0, 2080 * p.block_size};
        for (int64_t n = 0; n < others; ++n) {
            ends_q.push_back(ends_q.back() + 1);
            ends_k.push_back(ends_k.back() + 2080 * p.block_size);
        }
        p.batch = PackedBatch(ends_q, ends_k);
        const Operands o = with_scores(p, order);
        expect_reference_selection(subject, runner, p, {.top_k = top_k, .forced_first = 1}, o);
    }
}

TEST_P(IndexLists, MayEndAnywhereBetweenTheirMerges) {
    const auto& [subject, order] = GetParam();
    Runner runner(subject);
    for (const auto& [top_k, block_size, dim] :
         {std::tuple{4, 64, 64}, {16, 128, 128}, {16, 128, 256}}) {
        if (!has_width(subject, dim)) continue;
        SCOPED_TRACE("k " + std::to_string(top_k) + ", channels " + std::to_string(dim));
        Problem p = square_problem(0, 4, 4, 64, dim, block_size);
        // Warps of a GPU merge after every 32 blocks, or once; elsewhere there are no merges. The
        // more sequences, the longer are the parts: 4 or 10 to 20 blocks.
        const bool cuda = subject.backend == "cuda";
        p.batch = ends_anywhere(cuda ? 71 : 16, cuda && dim >= 128 ? 2 : 5, p.block_size);
        const Operands o = with_scores(p, order);
        const SelectionRule rule{.top_k = top_k, .forced_local = 2, .forced_first = 1};
        expect_reference_selection(subject, runner, p, rule, o);
    }
}

}  // namespace
}  // namespace msa::test
