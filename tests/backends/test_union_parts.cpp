// SPDX-License-Identifier: MIT
// Into how many parts the unions of few tiles are cut: arithmetic, on any machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpu/plan/sparse_attention.h"
#include "gpu/runtime.h"

namespace msa::test {
namespace {

using cuda::SparsePlan;

constexpr int kSms = 132;
const cuda::Device kHopper{0, 90, kSms};

/// `queries` new tokens behind `keys` keys, `sequences` times.
Problem chunks(int64_t sequences, int64_t queries, int64_t keys, int64_t heads = 64,
               int64_t groups = 4) {
    std::vector<int64_t> cu_q{0}, cu_k{0};
    for (int64_t s = 0; s < sequences; ++s) {
        cu_q.push_back(cu_q.back() + queries);
        cu_k.push_back(cu_k.back() + keys);
    }
    Problem p = square_problem(0, heads, groups, 128, 128, 128);
    p.batch = PackedBatch(cu_q, cu_k);
    return p;
}

TEST(UnionParts, AreOfFewUnionsOnHopper) {
    const auto plan = [](const Problem& p, LoopOrder order = LoopOrder::automatic,
                         const cuda::Device& device = kHopper, Element element = Element::bf16) {
        return SparsePlan(p, 16, element, order, device).schedule;
    };
    // Short chunks: as many parts as there is room for, in whole turns of the SMs.
    for (const int64_t keys : {18 << 10, 132 << 10})
        for (const int64_t queries : {171, 347}) {
            const cuda::SparseSchedule of = plan(chunks(1, queries, keys));
            EXPECT_EQ(of.least_sharing, 1) << queries;
            EXPECT_EQ(of.parts, 3) << queries;
        }
    EXPECT_EQ(plan(chunks(8, 8, 32 << 10)).parts, 4);
    EXPECT_EQ(plan(chunks(32, 8, 32 << 10)).parts, 1);  // they fill the chip
    EXPECT_EQ(plan(chunks(32, 8, 32 << 10), LoopOrder::automatic, kHopper, Element::e4m3).parts, 1);
    // Results do not depend on the lengths of sequences.
    EXPECT_EQ(plan(chunks(8, 8, 100)).parts, 4);
    // Of more than two unions for each SM there are slots, as on GPUs that do not cut unions.
    EXPECT_EQ(plan(chunks(1, 528, 18 << 10)).least_sharing, 1);
    const cuda::SparseSchedule many = plan(chunks(1, 529, 18 << 10));
    EXPECT_EQ(many.least_sharing, 3);
    EXPECT_EQ(many.parts, 1);
    EXPECT_EQ(plan(chunks(1, 171, 18 << 10), LoopOrder::kv_outer).parts, 1);
    const cuda::SparseSchedule older =
        plan(chunks(1, 171, 18 << 10), LoopOrder::automatic, {.capability = 80, .sms = 108});
    EXPECT_EQ(older.least_sharing, 3);
    EXPECT_EQ(older.parts, 1);
    // Larger tiles keep their slots, and are cut where they have none; 256 unions fill the chip.
    for (const auto& [queries, parts] : {std::pair{200, 2}, {1000, 1}}) {
        const Problem p = chunks(1, queries, 18 << 10, 32, 8);
        EXPECT_GT(plan(p).least_sharing, 1);
        EXPECT_EQ(plan(p).parts, 1);
        EXPECT_EQ(plan(p, LoopOrder::tile_union).parts, parts);
    }
    // A thread block of two teams has no parts.
    Problem narrow = chunks(1, 40, 18 << 10);
    narrow.head_dim = narrow.block_size = 64;
    EXPECT_EQ(plan(narrow, LoopOrder::tile_union).parts, 1);
    EXPECT_EQ(plan(narrow, LoopOrder::tile_union, kHopper, Element::e4m3).parts, 6);
    // Every part of every tile and group has a slot.
    const SparsePlan cut(chunks(1, 171, 18 << 10), 16, Element::bf16, LoopOrder::automatic,
                         kHopper);
    EXPECT_EQ(cuda::SparseWorkspaceSize(cut.schedule, cut.chunks_at_once).slot_rows,
              22 * 4 * 3 * 128);
}

TEST(UnionParts, EndSooner) {
    for (int64_t unions = 1; unions <= cuda::kFewUnions * kSms; ++unions)
        for (const int64_t keys : {32, 128, 500, 1024, 2048, 4096}) {
            const int64_t parts = cuda::union_parts(unions, keys, kSms);
            ASSERT_GE(parts, 1);
            ASSERT_LE(parts,
                      std::min<int64_t>(cuda::kMostUnionParts, std::max<int64_t>(1, keys / 128)));
            if (parts > 1) {
                EXPECT_LT(ceil_div(unions * parts, kSms) * ceil_div(keys, parts),
                          ceil_div(unions, kSms) * keys)
                    << unions << ", " << keys;
            }
        }
    EXPECT_EQ(cuda::union_parts(1, 2048, kSms), 8);
    EXPECT_EQ(cuda::union_parts(16, 2048, kSms), 8);
    EXPECT_EQ(cuda::union_parts(64, 2048, kSms), 2);
    EXPECT_EQ(cuda::union_parts(132, 2048, kSms), 1);
    EXPECT_EQ(cuda::union_parts(20, 128, kSms), 1);  // a step
}

}  // namespace
}  // namespace msa::test
