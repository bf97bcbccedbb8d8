// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <random>
#include <set>
#include <tuple>

#include "core/schedule.h"
#include "core/selection.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"

namespace msa {

// Found by GoogleTest through the argument, so beside the types.
void PrintTo(const SelectedQuery& use, std::ostream* os) {
    *os << "query " << use.query << " slot " << use.slot;
}
void PrintTo(const BlockChunk& c, std::ostream* os) {
    *os << "group " << c.group << " sequence " << c.sequence << " block " << c.block << " ["
        << c.begin << ", " << c.end << ")";
}

namespace {

using Ids = Tensor<int32_t, 3>;

Ids make_ids(const Shape<3>& shape, const std::vector<int32_t>& values) {
    Ids ids(shape);
    EXPECT_EQ(static_cast<int64_t>(values.size()), ids.size());
    std::copy(values.begin(), values.end(), ids.data());
    return ids;
}

/// Each row keeps every visible block with probability 1/2, up to top_k; some rows stay empty.
Ids random_ids(const Problem& p, int64_t top_k, uint64_t stream) {
    std::mt19937_64 generator(test::seed() * 1000003 + stream);
    const std::vector<KeyRange> visible = visible_keys(p);
    Ids ids({p.queries(), p.kv_heads, top_k});
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            int64_t slot = 0;
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            for (int64_t b = 0; b < blocks && slot < top_k; ++b)
                if (generator() % 2 == 0) ids(i, r, slot++) = static_cast<int32_t>(b);
        }
    check_selection(p, ids);
    return ids;
}

// One sequence of 20 tokens in blocks of 8; every query keeps its own block and block 0.
TEST(Schedule, LocalAndFirstBlockByHand) {
    const Problem p = square_problem(20, 2, 1, 16, 0, 8);
    Ids ids({20, 1, 2});
    for (int64_t i = 0; i < 20; ++i) {
        ids(i, 0, 0) = 0;
        ids(i, 0, 1) = i < 8 ? kNoBlock : static_cast<int32_t>(i / 8);
    }
    const KvOuterSchedule schedule = schedule_kv_outer(p, ids, 6);
    EXPECT_EQ(schedule.starts, (std::vector<int64_t>{0, 20, 28, 32}));
    std::vector<SelectedQuery> want;
    for (int64_t i = 0; i < 20; ++i) want.push_back({i, 0});
    for (int64_t i = 8; i < 20; ++i) want.push_back({i, 1});
    EXPECT_EQ(schedule.queries, want);
    EXPECT_EQ(schedule.chunks, (std::vector<BlockChunk>{{0, 0, 0, 0, 6},
                                                        {0, 0, 0, 6, 12},
                                                        {0, 0, 0, 12, 18},
                                                        {0, 0, 0, 18, 20},
                                                        {0, 1, 0, 20, 26},
                                                        {0, 1, 0, 26, 28},
                                                        {0, 2, 0, 28, 32}}));
    const std::span<const SelectedQuery> last = schedule.of(schedule.chunks.back());
    EXPECT_TRUE(std::equal(last.begin(), last.end(), want.end() - 4, want.end()));
}

// Three sequences of 20, 0 and 9 keys with 3, 0 and 2 queries: blocks 0-2 and, apart, 3-4. Two
// groups that select differently, and empty rows.
TEST(Schedule, RaggedSequencesByHand) {
    Problem p = square_problem(0, 4, 2, 16, 0, 8);
    p.batch = PackedBatch({0, 3, 3, 5}, {0, 20, 20, 29});
    p.validate();
    const Ids ids = make_ids({5, 2, 2}, {0,  2,  1,  2,   //
                                         -1, -1, 2,  -1,  //
                                         1,  2,  -1, -1,  //
                                         0,  -1, 0,  -1,  //
                                         0,  1,  1,  -1});
    check_selection(p, ids);
    const KvOuterSchedule schedule = schedule_kv_outer(p, ids, 100);
    EXPECT_EQ(schedule.starts, (std::vector<int64_t>{0, 1, 2, 4, 6, 7, 7, 8, 10, 11, 12}));
    EXPECT_EQ(schedule.queries, (std::vector<SelectedQuery>{{0, 0},
                                                            {2, 0},
                                                            {0, 1},
                                                            {2, 1},
                                                            {3, 0},
                                                            {4, 0},
                                                            {4, 1},
                                                            {0, 0},
                                                            {0, 1},
                                                            {1, 0},
                                                            {3, 0},
                                                            {4, 0}}));
    EXPECT_EQ(schedule.chunks, (std::vector<BlockChunk>{{0, 0, 0, 0, 1},
                                                        {0, 1, 0, 1, 2},
                                                        {0, 2, 0, 2, 4},
                                                        {0, 0, 2, 4, 6},
                                                        {0, 1, 2, 6, 7},
                                                        {1, 1, 0, 7, 8},
                                                        {1, 2, 0, 8, 10},
                                                        {1, 0, 2, 10, 11},
                                                        {1, 1, 2, 11, 12}}));
}

TEST(Schedule, NothingSelected) {
    const Problem p = square_problem(20, 2, 1, 16, 0, 8);
    Ids ids({20, 1, 4});
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    const KvOuterSchedule schedule = schedule_kv_outer(p, ids, 8);
    EXPECT_EQ(schedule.starts, (std::vector<int64_t>{0, 0, 0, 0}));
    EXPECT_TRUE(schedule.queries.empty());
    EXPECT_TRUE(schedule.chunks.empty());
    const KvOuterSchedule none =
        schedule_kv_outer(square_problem(0, 2, 1, 16, 0, 8), Ids({0, 1, 4}), 8);
    EXPECT_EQ(none.starts, (std::vector<int64_t>{0}));
    EXPECT_TRUE(none.chunks.empty());
}

// A chunk limit that divides the list exactly leaves no empty chunk behind.
TEST(Schedule, ExactChunks) {
    const Problem p = square_problem(8, 1, 1, 16, 0, 8);
    const KvOuterSchedule schedule = schedule_kv_outer(p, Ids({8, 1, 1}), 4);
    EXPECT_EQ(schedule.chunks, (std::vector<BlockChunk>{{0, 0, 0, 0, 4}, {0, 0, 0, 4, 8}}));
}

class ScheduleProperties : public testing::TestWithParam<test::Case> {};

TEST_P(ScheduleProperties, EveryPairOnceInItsOwnSlot) {
    const Problem& p = GetParam().problem;
    const int64_t top_k = GetParam().rule.top_k;
    const Ids ids = random_ids(p, top_k, 11);
    const std::vector<int64_t> sequences = query_sequences(p);
    std::set<std::tuple<int64_t, int64_t, int64_t>> slots;  // (query, group, slot)
    const KvOuterSchedule schedule = schedule_kv_outer(p, ids, 3);
    for (const BlockChunk& chunk : schedule.chunks) {
        SCOPED_TRACE(testing::PrintToString(chunk));
        for (const auto& [query, slot] : schedule.of(chunk)) {
            ASSERT_LT(slot, top_k);
            EXPECT_EQ(sequences[static_cast<size_t>(query)], chunk.sequence);
            EXPECT_EQ(ids(query, chunk.group, slot), chunk.block);
            EXPECT_TRUE(slots.emplace(query, chunk.group, slot).second);
        }
    }
    // Slots name the selected pairs one to one, so as many as there are pairs means all of them.
    EXPECT_EQ(static_cast<int64_t>(slots.size()),
              std::count_if(ids.data(), ids.data() + ids.size(),
                            [](int32_t b) { return b != kNoBlock; }));
}

TEST_P(ScheduleProperties, ChunksCutTheReverseIndex) {
    const Problem& p = GetParam().problem;
    const int64_t top_k = GetParam().rule.top_k;
    const Ids ids = random_ids(p, top_k, 12);
    const std::vector<int64_t> first_block = block_starts(p);
    for (int64_t limit : {int64_t{1}, int64_t{3}, 2 * top_k * p.block_size}) {
        SCOPED_TRACE(limit);
        const KvOuterSchedule schedule = schedule_kv_outer(p, ids, limit);
        ASSERT_EQ(static_cast<int64_t>(schedule.starts.size()),
                  p.kv_heads * first_block.back() + 1);
        std::vector<int64_t> chunks_of(schedule.starts.size() - 1, 0);
        int64_t end = 0;
        for (const BlockChunk& chunk : schedule.chunks) {
            SCOPED_TRACE(testing::PrintToString(chunk));
            EXPECT_EQ(chunk.begin, end);  // in order, without gap or overlap
            EXPECT_GT(chunk.end, chunk.begin);
            EXPECT_LE(chunk.end - chunk.begin, limit);
            const auto row =
                static_cast<size_t>(chunk.group * first_block.back() +
                                    first_block[static_cast<size_t>(chunk.sequence)] + chunk.block);
            EXPECT_GE(chunk.begin, schedule.starts[row]);
            EXPECT_LE(chunk.end, schedule.starts[row + 1]);
            ++chunks_of[row];
            const std::span<const SelectedQuery> uses = schedule.of(chunk);
            for (size_t n = 1; n < uses.size(); ++n) EXPECT_LT(uses[n - 1].query, uses[n].query);
            end = chunk.end;
        }
        EXPECT_EQ(end, schedule.starts.back());
        EXPECT_EQ(end, static_cast<int64_t>(schedule.queries.size()));
        for (size_t row = 0; row < chunks_of.size(); ++row)
            EXPECT_EQ(chunks_of[row],
                      ceil_div(schedule.starts[row + 1] - schedule.starts[row], limit))
                << row;
    }
}

INSTANTIATE_TEST_SUITE_P(All, ScheduleProperties, testing::ValuesIn(test::cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace msa
