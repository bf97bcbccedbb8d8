// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "analysis/selection_cost.h"
#include "analysis/stage_cost.h"
#include "core/random.h"
#include "core/selection.h"

namespace msa::analysis {
namespace {

Hardware chip(double cache_bytes) {
    return {"chip", {{Element::bf16, 1e12}}, 1e9, cache_bytes, {}};
}

/// k distinct visible blocks for every query and group, fewer where fewer are visible.
Tensor<int32_t, 3> random_ids(const Problem& p, int64_t k, uint64_t seed) {
    Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, k});
    const std::vector<KeyRange> visible = visible_keys(p);
    int64_t draw = 0;
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            std::set<int32_t> row;
            while (static_cast<int64_t>(row.size()) < std::min(k, blocks))
                row.insert(static_cast<int32_t>(mix(seed, draw++) % static_cast<uint64_t>(blocks)));
            std::fill_n(&ids(i, r, 0), k, kNoBlock);
            std::copy(row.begin(), row.end(), &ids(i, r, 0));
        }
    return ids;
}

/// The definition, read by read: a queue of the distinct blocks seen last.
TileReads slow_tile_reads(const Problem& p, View<const int32_t, 3> ids, int64_t tile,
                          size_t capacity) {
    TileReads sum;
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        std::deque<std::pair<int64_t, int32_t>> newest;
        for (int64_t s = 0; s < p.sequences(); ++s) {
            const int64_t end = p.batch.cu_seqlens_q()[static_cast<size_t>(s) + 1];
            for (int64_t i = p.batch.cu_seqlens_q()[static_cast<size_t>(s)]; i < end; i += tile) {
                std::set<int32_t> blocks;
                for (int64_t j = i; j < std::min(i + tile, end); ++j)
                    for (int32_t b : selected(ids, j, r)) blocks.insert(b);
                for (int32_t b : blocks) {
                    const std::pair<int64_t, int32_t> key{s, b};
                    const auto at = std::find(newest.begin(), newest.end(), key);
                    if (at == newest.end()) ++sum.misses;
                    if (at != newest.end()) newest.erase(at);
                    newest.push_front(key);
                    if (newest.size() > capacity) newest.pop_back();
                }
                ++sum.tiles;
                sum.reads += static_cast<int64_t>(blocks.size());
            }
        }
    }
    return sum;
}

TEST(SelectionCost, TilesOfACaseDoneByHand) {
    const Problem p = square_problem(32, 1, 1, 16, 16, 8);
    Tensor<int32_t, 3> ids({32, 1, 2});
    const int32_t pattern[4][2] = {{0, -1}, {0, 1}, {1, 2}, {0, 3}};  // by block of the query
    for (int64_t i = 0; i < 32; ++i)
        for (int64_t slot = 0; slot < 2; ++slot) ids(i, 0, slot) = pattern[i / 8][slot];
    const TileReads one = tile_reads(p, ids, 1, 2);
    EXPECT_EQ(one.tiles, 32);
    EXPECT_EQ(one.reads, 8 + 3 * 16);
    EXPECT_EQ(one.misses, 1 + 1 + 1 + 2);  // 0; 1; 2 in place of 0; 0 and 3 anew
    const TileReads two_blocks = tile_reads(p, ids, 16, 100);
    EXPECT_EQ(two_blocks.mean_union(), (2 + 4) / 2.0);
    EXPECT_EQ(two_blocks.misses, 4);
}

TEST(SelectionCost, TileReadsAreThoseOfTheDefinition) {
    Problem p = square_problem(0, 4, 2, 16, 16, 8);
    p.batch = PackedBatch({0, 150, 150, 233}, {0, 150, 150, 233});
    const Tensor<int32_t, 3> ids = random_ids(p, 4, 7);
    for (int64_t tile : {1, 3, 8, 64})
        for (int64_t capacity : {0, 1, 3, 9, 100}) {
            const TileReads fast = tile_reads(p, ids, tile, capacity);
            const TileReads slow = slow_tile_reads(p, ids, tile, static_cast<size_t>(capacity));
            EXPECT_EQ(fast.tiles, slow.tiles);
            EXPECT_EQ(fast.reads, slow.reads) << "tile " << tile;
            EXPECT_EQ(fast.misses, slow.misses) << "tile " << tile << ", cache of " << capacity;
        }
}

TEST(SelectionCost, AgreesWithTheClosedFormsWhenEveryRowIsFull) {
    // Queries that all see at least k blocks, no cache: each block read comes from memory.
    Problem p = square_problem(0, 32, 2, 64, 64, 16);
    p.batch = PackedBatch({0, 1024}, {0, 2048});
    const Tensor<int32_t, 3> ids = random_ids(p, 8, 3);
    const SelectionCost cost = selection_cost(p, ids, Element::bf16, chip(0));
    const LayerSizes sizes{1024, 32, 2, 64, 64, 16, 8};
    EXPECT_EQ(cost.pairs, 1024 * 2 * 8);
    EXPECT_EQ(cost.used_slots, 1);
    EXPECT_EQ(cost.orders[0].name, "q_outer");
    EXPECT_EQ(cost.orders[0].memory_bytes, q_outer_cost(sizes).bytes);
    EXPECT_EQ(cost.orders[0].executed_flops, q_outer_cost(sizes).flops);  // G = 16 fills its rows
    // The closed form reads the keys and values of N tokens, this one those that are selected.
    const double kv_bytes = 2 * 2 * 2 * 1024 * 64, block_bytes = 2 * 2 * 16 * 64;
    EXPECT_EQ(cost.orders[1].name, "kv_outer");
    EXPECT_EQ(cost.orders[1].memory_bytes, kv_outer_cost(sizes).bytes - kv_bytes +
                                               static_cast<double>(cost.used_blocks) * block_bytes);
    EXPECT_NEAR(cost.orders[1].executed_flops * cost.mma_fill, kv_outer_cost(sizes).flops,
                1e-9 * kv_outer_cost(sizes).flops);
    EXPECT_EQ(cost.gathered_q_bytes, 2.0 * 1024 * 2 * 8 * 16 * 64);
    EXPECT_LE(cost.useful_flops, q_outer_cost(sizes).flops);
}

TEST(SelectionCost, NeighboursThatAgreeMakeTheUnionCheap) {
    const Problem p = square_problem(1024, 32, 2, 64, 64, 16);
    Tensor<int32_t, 3> same({1024, 2, 3});
    for (int64_t i = 0; i < 1024; ++i)
        for (int64_t r = 0; r < 2; ++r) {
            std::set<int32_t> row{0, static_cast<int32_t>(i / 16)};
            std::fill_n(&same(i, r, 0), 3, kNoBlock);
            std::copy(row.begin(), row.end(), &same(i, r, 0));
        }
    const auto seconds = [&](View<const int32_t, 3> ids) {
        const SelectionCost cost = selection_cost(p, ids, Element::bf16, chip(1 << 16));
        EXPECT_EQ(cost.unions.back().first, 8);  // ceil(128 / 16)
        // Where the mean union is the break-even one, both take as long.
        EXPECT_EQ(cost.unions.back().second.mean_union() < cost.break_even_union,
                  cost.orders[2].executed_flops / 1e12 <
                      std::min(cost.orders[0].seconds, cost.orders[1].seconds));
        return std::array{cost.orders[0].seconds, cost.orders[1].seconds, cost.orders[2].seconds};
    };
    const auto agreed = seconds(same), random = seconds(random_ids(p, 3, 5));
    EXPECT_LT(agreed[2], agreed[1]);
    EXPECT_LT(agreed[2] / agreed[1], random[2] / random[1]);
}

TEST(SelectionCost, CountsPopularity) {
    const Problem p = square_problem(64, 16, 1, 16, 16, 8);
    Tensor<int32_t, 3> ids({64, 1, 1});  // all select block 0
    const SelectionCost cost = selection_cost(p, ids, Element::bf16, chip(1e6));
    EXPECT_EQ(cost.pairs, 64);
    EXPECT_EQ(cost.used_blocks, 1);
    EXPECT_EQ(cost.most_queries, 64);
    EXPECT_EQ(cost.mean_queries, 64);
    EXPECT_EQ(cost.chunks, 4);  // 64 queries in pieces of 2 * 1 * 8
    EXPECT_EQ(cost.mma_fill, 1);
    EXPECT_EQ(cost.unions.front().second.misses, 1);
}

TEST(SelectionCost, TheCachesBandwidthLimitsQOuter) {
    const Problem p = square_problem(64, 16, 1, 16, 16, 8);
    const Tensor<int32_t, 3> ids = random_ids(p, 4, 1);
    Hardware fast = chip(1e6), slow = chip(1e6);
    slow.cache_bytes_per_second = 1e6;
    EXPECT_EQ(selection_cost(p, ids, Element::bf16, slow).orders[0].seconds,
              selection_cost(p, ids, Element::bf16, fast).orders[0].cache_bytes / 1e6);
    fast.cache_bytes.reset();
    EXPECT_THROW(selection_cost(p, ids, Element::bf16, fast), InputError);
}

}  // namespace
}  // namespace msa::analysis
