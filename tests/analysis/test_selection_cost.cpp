// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <set>

#include "analysis/selection_cost.h"
#include "analysis/stage_cost.h"
#include "core/kernel_sizes.h"
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
    EXPECT_EQ(two_blocks.union_blocks(), (2 + 4) / 2.0);
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

TEST(SelectionCost, ThePapersOrdersAreItsClosedFormsWhenEveryRowIsFull) {
    // Queries that all see at least k blocks.
    Problem p = square_problem(0, 32, 2, 64, 64, 16);
    p.batch = PackedBatch({0, 1024}, {0, 2048});
    const Tensor<int32_t, 3> ids = random_ids(p, 8, 3);
    const SelectionCost cost = selection_cost(p, ids, Element::bf16, chip(1 << 20));
    const LayerSizes sizes{1024, 32, 2, 64, 64, 16, 8};
    EXPECT_EQ(cost.pairs, 1024 * 2 * 8);
    EXPECT_EQ(cost.used_slots, 1);
    EXPECT_EQ(cost.paper_orders[0].name, "q_outer");
    EXPECT_EQ(cost.paper_orders[0].memory_bytes, paper_q_outer_cost(sizes).bytes);
    EXPECT_EQ(cost.paper_orders[0].executed_flops,
              paper_q_outer_cost(sizes).flops);  // G = 16 fills its rows
    // The closed form reads the keys and values of N tokens, this one those that are selected.
    const double kv_bytes = 2 * 2 * 2 * 1024 * 64, block_bytes = 2 * 2 * 16 * 64;
    EXPECT_EQ(cost.paper_orders[1].name, "kv_outer");
    EXPECT_EQ(cost.paper_orders[1].memory_bytes,
              paper_kv_outer_cost(sizes).bytes - kv_bytes +
                  static_cast<double>(cost.used_blocks) * block_bytes);
    EXPECT_NEAR(cost.paper_orders[1].executed_flops * cost.paper_mma_fill,
                paper_kv_outer_cost(sizes).flops, 1e-9 * paper_kv_outer_cost(sizes).flops);
    EXPECT_EQ(cost.gathered_q_bytes, 2.0 * 1024 * 2 * 8 * 16 * 64);
    EXPECT_LE(cost.useful_flops, paper_q_outer_cost(sizes).flops);
}

/// 8 queries of one group of 16 heads, a tile, behind 9 blocks of 8 keys; k 2. Block 8 is shared by
/// all, block 0 by three, block 1 by two, blocks 2, 3 and 4 have a query each.
struct OneTile {
    Problem p;
    Tensor<int32_t, 3> ids{{8, 1, 2}};
    OneTile() : p(square_problem(0, 16, 1, 16, 16, 8)) {
        p.batch = PackedBatch({0, 8}, {0, 136});  // more than 8 k blocks
        const int32_t other[8] = {0, 0, 0, 1, 1, 2, 3, 4};
        for (int64_t i = 0; i < 8; ++i) ids(i, 0, 0) = other[i], ids(i, 0, 1) = 8;
    }
};

TEST(SelectionCost, EveryOrderByHand) {
    const OneTile one;
    const SelectionCost cost = selection_cost(one.p, one.ids, Element::bf16, chip(1e6));
    const double q = 2 * 8 * 16 * 16, lse = 4 * 8 * 16, ids = 4 * 16, mask = 4 * 8;
    const double block = 2 * 2 * 8 * 16, row = 4 * 16 * 8;  // bytes of one, FLOPs of a head with it
    const auto partial = [](double uses) { return uses * 16 * (2 * 16 + 4); };
    const auto gathered = [](double uses) { return uses * 16 * 2 * 16; };
    struct Want {
        const char* name;
        double flops, memory, cache;
    };
    // Six distinct blocks; automatic walks 8, 0 and 1, the three uses of the others go to slots.
    const Want wanted[] = {
        {"q_outer", 16 * 16 * row, 2 * q + lse + ids + 6 * block, 2 * q + lse + ids + 16 * block},
        {"union", 6 * 128 * row, ids + 6 * 8 + 2 * q + lse + 6 * 8 + 6 * block,
         ids + 6 * 8 + 2 * q + lse + 6 * 8 + 6 * block},
        {"kv_outer", 7 * 64 * row,  // 8 uses are two passes of 4 queries
         2 * ids + 16 * 16 + mask + 16 * 16 + gathered(16) + partial(16) + 6 * block + q + lse +
             mask + partial(16),
         2 * ids + 16 * 16 + mask + 16 * 16 + gathered(16) + partial(16) + 6 * block + q + lse +
             mask + partial(16)},
        {"automatic", (3 * 64 + 3 * 128) * row,
         2 * ids + 3 * 8 + 3 * 16 + mask + 3 * 16 + gathered(3) + partial(3) + 3 * block + 2 * q +
             lse + 3 * 8 + mask + partial(3) + 3 * block,
         2 * ids + 3 * 8 + 3 * 16 + mask + 3 * 16 + gathered(3) + partial(3) + 3 * block + 2 * q +
             lse + 3 * 8 + mask + partial(3) + 3 * block}};
    ASSERT_EQ(cost.orders.size(), 4U);
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(cost.orders[i].name, wanted[i].name);
        EXPECT_EQ(cost.orders[i].executed_flops, wanted[i].flops) << wanted[i].name;
        EXPECT_EQ(cost.orders[i].memory_bytes, wanted[i].memory) << wanted[i].name;
        EXPECT_EQ(cost.orders[i].cache_bytes, wanted[i].cache) << wanted[i].name;
    }
    EXPECT_EQ(cost.union_share, 13.0 / 16);
    EXPECT_EQ(cost.pass_fill, 16.0 / 28);
}

TEST(SelectionCost, BlocksAreCutIntoWorkItemsAndPasses) {
    // G = 16: items of 256 queries, passes of 4; all 1000 queries select block 0.
    const Problem p = square_problem(1000, 16, 1, 16, 16, 8);
    Tensor<int32_t, 3> ids({1000, 1, 1});
    const auto work = [&](int64_t chunk_tiles) {
        return split_work(p, ids, {8, 9, chunk_tiles}, 0).blocks;
    };
    const BlockWork whole = work(125), chunked = work(50);  // chunks of 400, 400 and 200 queries
    EXPECT_EQ(whole.uses, 1000);
    EXPECT_EQ(whole.items, 4);
    EXPECT_EQ(whole.passes, 3 * 64 + 58);
    EXPECT_EQ(whole.blocks, 1);
    EXPECT_EQ(chunked.uses, 1000);
    EXPECT_EQ(chunked.items, 2 + 2 + 1);
    EXPECT_EQ(chunked.passes, 2 * (64 + 36) + 50);
    EXPECT_EQ(chunked.blocks, 3);
}

TEST(SelectionCost, ChunksWhoseSlotsFitTogetherAreARound) {
    // Three chunks of 50 tiles. In the first two, one query of each tile leaves a slot to block 1.
    const Problem p = square_problem(1200, 16, 1, 16, 16, 8);
    Tensor<int32_t, 3> ids({1200, 1, 2});
    for (int64_t i = 0; i < 1200; ++i) ids(i, 0, 0) = 0, ids(i, 0, 1) = kNoBlock;
    const auto rounds = [&](int64_t scheduled = 16) {
        return split_work(p, ids, {8, 2, 50, scheduled}, 0).blocks.blocks;
    };
    EXPECT_EQ(rounds(), 0);
    for (int64_t i = 15; i < 800; i += 8) ids(i, 0, 1) = 1;
    EXPECT_EQ(rounds(), 1);  // 99 of 100 slots
    EXPECT_EQ(rounds(1), 2);
    for (int64_t i = 807; i < 1200; i += 8) ids(i, 0, 1) = 1;
    EXPECT_EQ(rounds(), 2);  // 99, and 50 more
}

TEST(SelectionCost, ASplitLosesNoPair) {
    Problem p = square_problem(0, 12, 2, 16, 16, 8);  // G = 6
    p.batch = PackedBatch({0, 150, 150, 233}, {0, 150, 150, 233});
    const Tensor<int32_t, 3> ids = random_ids(p, 4, 7);
    int64_t pairs = 0;
    for (int64_t i = 0; i < ids.size(); ++i) pairs += ids.data()[i] != kNoBlock;
    const int64_t tile = 21;  // floor(128 / 6)
    int64_t before = -1;
    for (int64_t least = 1; least <= tile + 1; ++least) {
        const SplitWork work = split_work(p, ids, {tile, least, 3}, 0);
        EXPECT_GE(work.blocks.uses, before);
        before = work.blocks.uses;
        EXPECT_EQ(work.blocks.uses == 0, least == 1);
    }
    EXPECT_EQ(before, pairs);
    const SelectionCost cost = selection_cost(p, ids, Element::bf16, chip(1e6));
    EXPECT_EQ(cost.unions.back().first, tile);
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
        EXPECT_EQ(cost.unions.back().first, 8);  // 128 / 16
        // Where the mean union is the break-even one, both take as long.
        EXPECT_EQ(cost.unions.back().second.union_blocks() < cost.break_even_union_blocks,
                  cost.orders[1].executed_flops / 1e12 <
                      std::min(cost.orders[0].seconds, cost.orders[2].seconds));
        return std::array{cost.orders[0].seconds, cost.orders[1].seconds, cost.orders[2].seconds};
    };
    const auto agreed = seconds(same), random = seconds(random_ids(p, 3, 5));
    EXPECT_LT(agreed[1], agreed[2]);
    EXPECT_LT(agreed[1] / agreed[2], random[1] / random[2]);
}

TEST(SelectionCost, CountsPopularity) {
    const Problem p = square_problem(64, 16, 1, 16, 16, 8);
    Tensor<int32_t, 3> ids({64, 1, 1});  // all select block 0
    const SelectionCost cost = selection_cost(p, ids, Element::bf16, chip(1e6));
    EXPECT_EQ(cost.pairs, 64);
    EXPECT_EQ(cost.used_blocks, 1);
    EXPECT_EQ(cost.most_queries, 64);
    EXPECT_EQ(cost.mean_queries, 64);
    EXPECT_EQ(cost.work_items, 1);
    EXPECT_EQ(cost.pass_fill, 1);
    EXPECT_EQ(cost.paper_chunks, 4);  // 64 queries in pieces of 2 * 1 * 8
    EXPECT_EQ(cost.paper_mma_fill, 1);
    EXPECT_EQ(cost.unions.front().second.misses, 1);
}

TEST(SelectionCost, SizesAreThoseOfTheKernels) {
    // What the kernels' own headers assert of their structs, gpu/kernels/sparse_attention_sm90.h.
    EXPECT_EQ(cuda::kBlockUseBytes, 16);
    EXPECT_EQ(cuda::kUnionBlockBytes, 8);
    EXPECT_EQ(cuda::sparse_tile_queries(16), 8);
    EXPECT_EQ(cuda::sparse_tile_queries(1), 32);
    EXPECT_EQ(cuda::sparse_pass_queries(16), 4);
    EXPECT_EQ(cuda::sparse_pass_queries(1), 32);
    EXPECT_EQ(cuda::sparse_item_queries(16), 256);
    EXPECT_EQ(cuda::sparse_least_sharing(16, 128, 2, 65, 16), 3);
    EXPECT_EQ(cuda::sparse_least_sharing(64, 128, 2, 65, 16), 2);
    EXPECT_EQ(cuda::sparse_least_sharing(16, 128, 1, 65, 16), 2);
    EXPECT_EQ(cuda::sparse_least_sharing(16, 128, 2, 64, 16), 1);
    EXPECT_EQ(cuda::sparse_least_sharing(4, 64, 2, 129, 16), 6);
    EXPECT_EQ(cuda::sparse_least_sharing(4, 64, 2, 128, 16), 1);
    EXPECT_EQ(cuda::sparse_chunk_tiles(64, 16, 128, 16, 2), 1024);  // 8192 queries
    EXPECT_EQ(cuda::sparse_chunk_tiles(64, 16, 128, 16, 1), 1024);  // partial outputs are bf16
    EXPECT_EQ(cuda::sparse_tile_queries(71), 1);                    // no kernel has it
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
