// SPDX-License-Identifier: MIT
// index_select where rows see hundreds of blocks, so that their lists take in many: scores that
// rise, fall, repeat or come in any order, as whole numbers, which every type has exactly.
#include <random>

#include "tests/support/compare.h"
#include "tests/support/runner.h"
#include "tests/support/truth.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

constexpr int kBlocks = 200, kDigits = 3;  // of a score, to base 8

/// Scores from 0 to 511, of which later blocks follow in the order that the name says.
std::vector<int> block_scores(const std::string& order) {
    std::mt19937 random(20);
    std::vector<int> scores;
    for (int b = 0; b < kBlocks; ++b) {
        const auto any = static_cast<int>(random() % 512);
        scores.push_back(order == "rising"    ? b
                         : order == "falling" ? kBlocks - b
                         : order == "equal"   ? 7
                         : order == "few"     ? any % 3
                                              : any);
    }
    return scores;
}

/// Even rows score a block so, odd rows 511 less it.
Operands with_scores(const Problem& p, const std::vector<int>& scores) {
    Operands o = make_operands({"lists", p, {}}, Element::f32);
    std::fill_n(o.index_q.data(), o.index_q.size(), 0.0F);
    std::fill_n(o.index_k.data(), o.index_k.size(), 0.0F);
    for (int64_t digit = 0; digit < kDigits; ++digit) {
        for (int64_t row = 0; row < o.index_q.size() / p.index_dim; ++row)
            o.index_q.data()[row * p.index_dim + row % 2 * kDigits + digit] =
                static_cast<float>(1 << 3 * digit);
        for (int64_t b = 0; b < kBlocks; ++b) {
            const int value = scores[static_cast<size_t>(b)] >> 3 * digit & 7;
            const int64_t key = b * p.block_size + b % p.block_size;
            o.index_k(key, digit) = static_cast<float>(value);
            o.index_k(key, kDigits + digit) = static_cast<float>(7 - value);
        }
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
                                                          "random")),
                         list_name);

TEST_P(IndexLists, AreTheReferenceSelection) {
    const auto& [subject, order] = GetParam();
    Runner runner(subject);
    // Alone, a tile's keys are split over the SMs of a GPU, and few of them meet in one list.
    for (const auto& [top_k, others] : {std::pair{16, 0}, {16, 200}, {32, 0}, {32, 200}}) {
        SCOPED_TRACE("k " + std::to_string(top_k) + ", others " + std::to_string(others));
        Problem p = square_problem(0, 4, 2, 64, 64, top_k == 16 ? 64 : 32);
        p.batch = tile_among(others, p.block_size);
        const SelectionRule rule{.top_k = top_k};
        const Operands o = with_scores(p, block_scores(order));
        const Tensor<int32_t, 3> want = reference().index_select(p, rule, o);
        EXPECT_TRUE(identical(runner.index_select(p, rule, o), want));
        if (subject.backend != "cuda") continue;
        Backend& backend = runner.backend();
        const Uploaded<3> index_q(backend, Element::e4m3, o.index_q);
        const Uploaded<2> index_k(backend, Element::e4m3, o.index_k);
        Tensor<int32_t, 3> ids = backend.make<int32_t, 3>(want.shape());
        backend.index_select(p, rule, {index_q, index_k}, ids);
        EXPECT_TRUE(identical(backend.download(ids.view()), want)) << "e4m3";
    }
}

}  // namespace
}  // namespace msa::test
