// SPDX-License-Identifier: MIT
// How the keys of index_select's tiles are cut: arithmetic, on any machine; and what a batch of
// unlike lengths selects, on a GPU.
#include <algorithm>

#include "gpu/tile_parts.h"
#include "tests/support/compare.h"
#include "tests/support/runner.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

constexpr int kSms = 132;

/// Tiles of one query each, over so many keys.
cuda::TileParts cut(const std::vector<int64_t>& keys, int64_t least_parts = 1,
                    int64_t thread_blocks = 2 * kSms) {
    std::vector<cuda::QueryTile> tiles;
    for (int64_t n : keys)
        tiles.push_back({std::ssize(tiles), 0, 1, static_cast<int32_t>(n), 0,
                         static_cast<int32_t>(std::ssize(tiles))});
    return cuda::cut_tiles(tiles, std::ssize(tiles),
                           {.thread_blocks = thread_blocks,
                            .least_keys = 2048,
                            .most_parts = 512,
                            .least_parts = least_parts});
}

TEST(TileParts, LikeTilesHaveAsManyAsFillTheChipOnce) {
    constexpr int64_t kTokens = 32768;
    for (const auto& [tiles, parts] : {std::pair{1, 16}, {8, 16}, {32, 8}, {64, 4}, {128, 2}}) {
        const cuda::TileParts made = cut(std::vector<int64_t>(static_cast<size_t>(tiles), kTokens));
        EXPECT_EQ(made.most, parts) << tiles;
        EXPECT_EQ(std::ssize(made.parts), tiles * parts);
        EXPECT_EQ(made.all, tiles * parts);
        for (int n = 0; n < tiles; ++n) {
            EXPECT_EQ(made.of_query[static_cast<size_t>(n)].before, n * parts);
            EXPECT_EQ(made.of_query[static_cast<size_t>(n)].parts, parts);
        }
    }
    const cuda::TileParts whole = cut(std::vector<int64_t>(200, kTokens));
    EXPECT_EQ(whole.most, 1);
    EXPECT_EQ(std::ssize(whole.parts), 200);
    EXPECT_TRUE(whole.of_query.empty());
    EXPECT_EQ(cut({100, 100}, 2).most, 2);  // of ranks, who exchange lists
}

TEST(TileParts, NoListsNeedNoPlaces) {
    const std::vector<cuda::QueryTile> tile{{0, 0, 1, kSms * 4096, 0, 0}};
    const cuda::TileParts made =
        cuda::cut_tiles(tile, 0, {.thread_blocks = kSms, .least_keys = 2048, .most_parts = 512});
    EXPECT_EQ(made.most, kSms);
    EXPECT_EQ(std::ssize(made.parts), kSms);
    EXPECT_TRUE(made.of_query.empty());
}

TEST(TileParts, ALongSequenceHasThemInProportion) {
    std::vector<int64_t> keys(64, 8192);
    keys[5] = 1 << 20;
    const cuda::TileParts made = cut(keys);
    EXPECT_EQ(made.most, 176);
    EXPECT_EQ(std::ssize(made.parts), 176 + 63);
    EXPECT_EQ(made.all, 176);  // the others write their ids at once
    EXPECT_EQ(made.of_query[4].parts, 1);
    EXPECT_EQ(made.of_query[5].parts, 176);
    EXPECT_EQ(made.of_query[6].before, 176);
    EXPECT_EQ(made.parts.front().parts, 1);  // the longest first
    EXPECT_EQ(made.parts.back().parts, 176);
}

/// Of 128 tiles of 64 queries, the last ones would keep their processors twice as long as the mean.
TEST(TileParts, ASquareOfFewTilesIsCutWhereTilesAreLong) {
    const auto square = [](int64_t tiles) {
        std::vector<int64_t> keys;
        for (int64_t n = 1; n <= tiles; ++n) keys.push_back(64 * n);
        return cut(keys, 1, kSms);
    };
    const cuda::TileParts made = square(128);
    EXPECT_EQ(made.most, 2);
    for (const cuda::TilePart& part : made.parts)
        EXPECT_EQ(part.parts, part.tile.most_visible > 4500 ? 2 : 1) << part.tile.most_visible;
    EXPECT_EQ(square(512).most, 1);
}

/// One long sequence among short ones, which selects what it selects alone.
class UnlikeLengths : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(UnlikeLengths);

TEST_P(UnlikeLengths, SelectAsAlone) {
    const std::vector<int64_t> lengths{300, 90000, 0, 1, 4096, 700};
    for (const int64_t queries : {1, 5, 70}) {
        std::vector<int64_t> cu_q{0}, cu_k{0};
        for (const int64_t n : lengths) {
            cu_q.push_back(cu_q.back() + std::min(n, queries));
            cu_k.push_back(cu_k.back() + n);
        }
        Case c = make_case("unlike", {16, 2, 64, 64, 128}, cu_q, cu_k, {.top_k = 8});
        c.values = Values::ternary;
        const Operands o = make_operands(c, GetParam().element);
        Runner runner(GetParam());
        const Tensor<int32_t, 3> all = runner.index_select(c.problem, c.rule, o);
        for (size_t s = 0; s < lengths.size(); ++s) {
            if (lengths[s] == 0) continue;
            const Case one = make_case("one", {16, 2, 64, 64, 128}, {0, cu_q[s + 1] - cu_q[s]},
                                       {0, lengths[s]}, {.top_k = 8});
            Operands own = with_queries(o, {cu_q[s], cu_q[s + 1]});
            own.index_k = Tensor<float, 2>({lengths[s], 64});
            std::copy_n(o.index_k.data() + cu_k[s] * 64, lengths[s] * 64, own.index_k.data());
            const Tensor<int32_t, 3> want = runner.index_select(one.problem, one.rule, own);
            EXPECT_TRUE(
                std::equal(want.data(), want.data() + want.size(), all.view()[cu_q[s]].data()))
                << lengths[s] << " keys, " << queries << " queries";
        }
    }
}

}  // namespace
}  // namespace msa::test
