// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>

#include "analysis/block_cache.h"
#include "core/error.h"

namespace msa::analysis {
namespace {

using Blocks = std::vector<int32_t>;

constexpr CachePolicy kPolicies[] = {CachePolicy::lru, CachePolicy::lfu, CachePolicy::belady};

DecodeSteps steps_of(int64_t first_position, int64_t block_size, const std::vector<Blocks>& all) {
    DecodeSteps steps(first_position, block_size);
    for (const Blocks& step : all) steps.add(step);
    return steps;
}

/// Blocks of 2 tokens behind 8 cached ones: blocks 0 to 3 are old, the steps write 4 and 5.
DecodeSteps by_hand() { return steps_of(8, 2, {{0, 1, 4}, {0, 2, 4}, {1, 2, 5}, {0, 3, 5}}); }

/// Steps of one block each, all of which were there before.
DecodeSteps singles(const Blocks& blocks) {
    DecodeSteps steps(1000, 1);
    for (const int32_t& block : blocks) steps.add({&block, 1});
    return steps;
}

/// Own block, and further ones of which the low ids are the more likely; 1 to `top_k` in all.
DecodeSteps random_steps(uint64_t seed, int64_t first_position, int64_t count, int64_t block_size,
                         size_t top_k) {
    std::mt19937_64 generator(seed);
    DecodeSteps steps(first_position, block_size);
    for (int64_t step = 0; step < count; ++step) {
        const int64_t own = (first_position + step) / block_size;
        std::vector<bool> chosen(static_cast<size_t>(own + 1));
        chosen.back() = true;
        for (size_t more = generator() % top_k; more > 0; --more) {
            const uint64_t bound = 1 + generator() % chosen.size();
            chosen[generator() % bound] = true;
        }
        Blocks blocks;
        for (size_t block = 0; block < chosen.size(); ++block)
            if (chosen[block]) blocks.push_back(static_cast<int32_t>(block));
        steps.add(blocks);
    }
    return steps;
}

int64_t all_reuses(const StackDistances& distances) {
    return std::accumulate(distances.reuses.begin(), distances.reuses.end(), int64_t{0});
}

/// The fewest misses of any cache that holds the blocks of each step: every set of blocks that can
/// be kept after it is tried.
int64_t fewest_misses(const DecodeSteps& steps, int size) {
    constexpr int64_t kImpossible = 1 << 20;
    const auto blocks = static_cast<unsigned>(steps.blocks());
    std::vector<int64_t> fewest(1U << blocks, kImpossible);
    fewest[0] = 0;
    for (int64_t step = 0; step < steps.count(); ++step) {
        unsigned used = 0, written = 0, seen = 0;
        for (int64_t before = 0; before < step; ++before)
            for (int32_t block : steps[before]) seen |= 1U << block;
        for (int32_t block : steps[step]) {
            used |= 1U << block;
            if (steps.writes(step, block) && (seen >> block & 1U) == 0) written |= 1U << block;
        }
        std::vector<int64_t> after(fewest.size(), kImpossible);
        for (unsigned held = 0; held < fewest.size(); ++held) {
            const int64_t misses = fewest[held] + std::popcount(used & ~held & ~written);
            for (unsigned kept = 0; kept < after.size(); ++kept)
                if ((kept & used) == used && (kept & ~(held | used)) == 0 &&
                    std::popcount(kept) <= size)
                    after[kept] = std::min(after[kept], misses);
        }
        fewest = after;
    }
    return *std::min_element(fewest.begin(), fewest.end());
}

TEST(BlockCache, StackDistancesByHand) {
    // The stack before each step, the most recent first: -; 4 1 0; 4 2 0 1; 5 2 1 4 0.
    const Reuse found = reuse(by_hand());
    EXPECT_EQ(found.uses, 12);
    EXPECT_EQ(found.written, 2);         // 4 and 5
    EXPECT_EQ(found.distances.cold, 4);  // 0 to 3
    EXPECT_EQ(found.distances.reuses, (std::vector<int64_t>{2, 1, 1, 1, 1}));
    EXPECT_EQ(found.distances.misses(3), 6);
    EXPECT_EQ(found.distances.misses(4), 5);
    EXPECT_EQ(found.distances.misses(5), 4);
    EXPECT_EQ(found.distances.misses(1000), 4);
}

TEST(BlockCache, MissesByHand) {
    EXPECT_EQ(cache_misses(by_hand(), CachePolicy::lfu, 3), 6);
    EXPECT_EQ(cache_misses(by_hand(), CachePolicy::lfu, 4), 5);     // drops 0 for 5, not 4
    EXPECT_EQ(cache_misses(by_hand(), CachePolicy::belady, 4), 4);  // drops 4, which is done with
    const DecodeSteps often = singles({0, 0, 1, 2, 0}), round = singles({0, 1, 2, 0, 1, 2});
    EXPECT_EQ(cache_misses(often, CachePolicy::lru, 2), 4);
    EXPECT_EQ(cache_misses(often, CachePolicy::lfu, 2), 3);
    EXPECT_EQ(cache_misses(round, CachePolicy::lru, 2), 6);
    EXPECT_EQ(cache_misses(round, CachePolicy::lfu, 2), 6);
    EXPECT_EQ(cache_misses(round, CachePolicy::belady, 2), 4);
}

TEST(BlockCache, ABlockIsWrittenOnlyWhereTheStepsBeganIt) {
    // Position 9 is the second of block 4: the first token was there before, block 5 is begun.
    EXPECT_EQ(reuse(steps_of(9, 2, {{4}, {5}})).distances.cold, 1);
    EXPECT_EQ(reuse(steps_of(9, 2, {{4}, {5}})).written, 1);
    // Block 4 first asked for when 5 is written: it has left the GPU.
    EXPECT_EQ(reuse(steps_of(8, 2, {{0}, {0}, {4, 5}})).distances.cold, 2);
    EXPECT_EQ(cache_misses(steps_of(8, 2, {{0}, {0}, {4, 5}}), CachePolicy::lru, 2), 2);
}

TEST(BlockCache, StackDistancesAnswerForEveryLruCache) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        const DecodeSteps steps = random_steps(seed, 37, 150, 4, 9);
        const Reuse found = reuse(steps);
        EXPECT_EQ(found.uses, steps.uses());
        EXPECT_EQ(found.uses, found.written + found.distances.cold + all_reuses(found.distances));
        for (int64_t size = steps.largest(); size <= steps.blocks(); ++size)
            EXPECT_EQ(found.distances.misses(size), cache_misses(steps, CachePolicy::lru, size))
                << "seed " << seed << ", size " << size;
    }
}

TEST(BlockCache, LargerCachesOfStackPoliciesMissNoMore) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
        const DecodeSteps steps = random_steps(seed, 21, 120, 4, 7);
        for (CachePolicy policy : {CachePolicy::lru, CachePolicy::belady})
            for (int64_t size = steps.largest(); size < steps.blocks(); ++size)
                EXPECT_GE(cache_misses(steps, policy, size), cache_misses(steps, policy, size + 1));
    }
}

TEST(BlockCache, NoPolicyMissesLessThanBeladys) {
    int64_t gains = 0;
    for (uint64_t seed = 0; seed < 20; ++seed) {
        const DecodeSteps steps = random_steps(seed, 37, 150, 4, 9);
        for (int64_t size = steps.largest(); size <= steps.blocks(); ++size)
            for (CachePolicy policy : kPolicies) {
                const int64_t more = cache_misses(steps, policy, size) -
                                     cache_misses(steps, CachePolicy::belady, size);
                EXPECT_GE(more, 0);
                gains += more;
            }
    }
    EXPECT_GT(gains, 1000);  // and much less as a rule
}

TEST(BlockCache, BeladysMissesAreTheFewestOfAllCaches) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
        const DecodeSteps steps = random_steps(seed, 8, 9, 3, 3);  // 6 blocks
        for (int size = static_cast<int>(steps.largest()); size <= steps.blocks(); ++size)
            EXPECT_EQ(cache_misses(steps, CachePolicy::belady, size), fewest_misses(steps, size))
                << "seed " << seed << ", size " << size;
    }
}

TEST(BlockCache, ACacheOfAllBlocksHasColdMissesAlone) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        const DecodeSteps steps = random_steps(seed, 37, 150, 4, 9);
        const int64_t cold = reuse(steps).distances.cold;
        EXPECT_GT(cold, 0);
        for (CachePolicy policy : kPolicies)
            for (int64_t size : {steps.blocks(), steps.blocks() + 5})
                EXPECT_EQ(cache_misses(steps, policy, size), cold);
    }
}

TEST(BlockCache, ACacheThatCannotHoldAStepIsRefused) {
    EXPECT_THROW(cache_misses(by_hand(), CachePolicy::lru, 2), InputError);
}

TEST(BlockCache, PrefetchByThePreviousStepByHand) {
    const DecodeSteps guesses = previous_steps(by_hand());
    EXPECT_EQ(guesses.count(), 4);
    EXPECT_TRUE(guesses[0].empty());
    const Prefetch found = prefetch(by_hand(), guesses);
    EXPECT_EQ(found.hits, 4);                                             // 0 and 4; 2; 5
    EXPECT_EQ(found.left.cold, 4);                                        // 0 and 1; 2; 3
    EXPECT_EQ(found.left.reuses, (std::vector<int64_t>{0, 0, 0, 1, 1}));  // 1; 0
    EXPECT_EQ(found.in_vain.cold, 0);
    EXPECT_EQ(found.in_vain.reuses, (std::vector<int64_t>{1, 2, 2}));  // 1; 0 and 4; 1 and 2
}

TEST(BlockCache, PrefetchOfNothingOrOfEverything) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
        const DecodeSteps steps = random_steps(seed, 37, 150, 4, 9);
        DecodeSteps nothing = steps.without_blocks();
        for (int64_t step = 0; step < steps.count(); ++step) nothing.add({});
        const Prefetch none = prefetch(steps, nothing), all = prefetch(steps, steps);
        EXPECT_EQ(none.hits, 0);
        EXPECT_EQ(none.left.reuses, reuse(steps).distances.reuses);
        EXPECT_EQ(none.left.cold, reuse(steps).distances.cold);
        EXPECT_EQ(all.hits, steps.uses());
        for (const StackDistances& distances : {none.in_vain, all.left, all.in_vain})
            EXPECT_EQ(all_reuses(distances) + distances.cold, 0);
        // A cache that holds a step holds all that the previous step can guess.
        const Prefetch previous = prefetch(steps, previous_steps(steps));
        EXPECT_GT(previous.hits, 0);
        EXPECT_EQ(previous.left.misses(steps.largest()),
                  reuse(steps).distances.misses(steps.largest()));
        EXPECT_EQ(previous.in_vain.misses(steps.largest()), 0);
    }
}

TEST(BlockCache, SumsOverSequences) {
    Reuse sum;
    Prefetch guessed;
    for (const DecodeSteps& steps : {by_hand(), singles({0, 1, 0, 2, 3, 4, 5, 0})}) {
        sum += reuse(steps);
        guessed += prefetch(steps, previous_steps(steps));
    }
    EXPECT_EQ(sum.uses, 20);
    EXPECT_EQ(sum.written, 2);
    EXPECT_EQ(sum.distances.cold, 4 + 6);
    EXPECT_EQ(sum.distances.reuses, (std::vector<int64_t>{2, 2, 1, 1, 1 + 1}));
    EXPECT_EQ(guessed.hits, 4);
    EXPECT_EQ(guessed.left.cold, 4 + 6);
    // Each single block is guessed in vain once, when it is the most recent one.
    EXPECT_EQ(guessed.in_vain.reuses, (std::vector<int64_t>{1 + 7, 2, 2}));
}

}  // namespace
}  // namespace msa::analysis
