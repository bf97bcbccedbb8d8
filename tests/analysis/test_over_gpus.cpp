// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cmath>

#include "analysis/over_gpus.h"
#include "core/error.h"

namespace msa::analysis {
namespace {

LayerSizes layer_of(int64_t tokens) { return {tokens, 64, 4, 128, 128}; }

constexpr int64_t kMillion = 1 << 20;
constexpr double kLatency = 1e-6, kNetworkLatency = 3e-6;

/// Arithmetic is what limits it.
Hardware linked_chip(double link = 4e11, double network = 5e10) {
    Hardware on{"chip", {{Element::bf16, 8e14}, {Element::e4m3, 1.6e15}}, 1e15, {}, {}};
    on.link = {link, kLatency};
    on.network = {network, kNetworkLatency};
    on.chips_of_host = 8;
    return on;
}

double automatic_seconds(const LayerSizes& s, int64_t queries, const Hardware& on) {
    return chunk_pipelines(s, queries)[4].seconds(on);
}

TEST(OverGpus, AChunkHasThePairsOfItsQueries) {
    // Chunks of a sequence have all of its pairs together.
    const double whole = prefill_pipelines(layer_of(kMillion))[0].stages[0].cost.flops;
    double sum = 0;
    for (int64_t c = 1; c <= 8; ++c)
        sum += chunk_pipelines(layer_of(c * kMillion / 8), kMillion / 8)[0].stages[0].cost.flops;
    EXPECT_DOUBLE_EQ(sum, whole);
    EXPECT_EQ(chunk_pipelines(layer_of(kMillion), 1)[1].total(linked_chip()).bytes,
              decode_pipelines(layer_of(kMillion))[1].total(linked_chip()).bytes);
    LayerSizes windowed = layer_of(kMillion);
    windowed.window = 5000;
    const double in_window = prefill_pipelines(windowed)[0].stages[0].cost.flops;
    sum = 0;
    for (int64_t c = 1; c <= 8; ++c) {
        windowed.tokens = c * kMillion / 8;
        sum += chunk_pipelines(windowed, kMillion / 8)[0].stages[0].cost.flops;
    }
    EXPECT_DOUBLE_EQ(sum, in_window);
}

TEST(OverGpus, OneGpuIsOneCall) {
    const PrefillOverGpus one = prefill_over_gpus(layer_of(kMillion), 1, linked_chip());
    EXPECT_EQ(one.speedup(), 1);
    EXPECT_EQ(one.imbalance(), 0);
    EXPECT_EQ(one.gather_bytes, 0);
    EXPECT_EQ(one.gather_seconds, 0);
    EXPECT_EQ(one.exposed_seconds(), 0);
    const DecodeOverGpus decode = decode_over_gpus(layer_of(kMillion), 1, linked_chip());
    EXPECT_EQ(decode.speedup(), 1);
    EXPECT_EQ(decode.exchange_seconds, 0);
}

TEST(OverGpus, GathersTheOthersKeys) {
    const double row = 2 * 128 + 2 * 2 * 4 * 128, all = row * kMillion;
    for (int gpus : {2, 4, 8}) {
        const PrefillOverGpus over = prefill_over_gpus(layer_of(kMillion), gpus, linked_chip());
        EXPECT_DOUBLE_EQ(over.gather_bytes, all * (gpus - 1) / gpus);
        EXPECT_GE(over.gather_seconds, 0.999999 * over.gather_bytes / 4e11);
    }
    // Two GPUs read from each other. Of three, in parts of a chunk's time alone on a link: 1 and 2
    // share chunk 0 (0 to 2), while 0 has chunk 1 (0 to 1) and shares chunk 2 with no one (1 to 2).
    // Then 0 and 1 share the link of GPU 2 for chunks 3 and 2 (2 to 4), and 2 has chunk 1 (2 to 3)
    // and chunk 4 (3 to 4). At last 0 and 2 have chunks 4 and 5, from GPUs 1 and 0, and 1 chunk 3,
    // alone (4 to 5), and 1 chunk 5 (5 to 6).
    const double chunk_of_3 = all / 6 / 4e11;
    EXPECT_NEAR(prefill_over_gpus(layer_of(kMillion), 2, linked_chip()).gather_seconds,
                all / 2 / 4e11, 1e-9);
    EXPECT_NEAR(prefill_over_gpus(layer_of(kMillion), 3, linked_chip()).gather_seconds,
                6 * chunk_of_3, 1e-9);
    // 8 hosts of 8: 7 / 64 of all come over a GPU's network, the other 56 / 64 over its links.
    const PrefillOverGpus far = prefill_over_gpus(layer_of(kMillion), 64, linked_chip());
    EXPECT_DOUBLE_EQ(far.gather_bytes, all * 63 / 64);
    EXPECT_DOUBLE_EQ(far.gather_seconds, all * 7 / 64 / 5e10);
    EXPECT_DOUBLE_EQ(
        prefill_over_gpus(layer_of(kMillion), 64, linked_chip(1e11, 1e12)).gather_seconds,
        all * 56 / 64 / 1e11);
}

TEST(OverGpus, ZigZagIsInBalance) {
    // Neighbours that select much alike, as in captures; and by chance, where the first chunks of
    // 64 GPUs, which go by unions alone, have long ones.
    for (const std::optional<double> given_union_blocks :
         {std::optional(21.0), std::optional<double>()}) {
        LayerSizes layer = layer_of(kMillion);
        layer.given_union_blocks = given_union_blocks;
        for (int gpus : {2, 8, 64}) {
            const PrefillOverGpus over = prefill_over_gpus(layer, gpus, linked_chip(1e30, 1e30));
            ASSERT_EQ(std::ssize(over.ranks), gpus);
            const double most = gpus < 64 ? 0.01 : given_union_blocks ? 0.05 : 0.15;
            EXPECT_LT(over.imbalance(), most) << gpus;
            EXPECT_GT(over.speedup(), (gpus < 64 ? 0.97 : 1 - most) * gpus) << gpus;
            EXPECT_LE(over.exposed_seconds(), kLatency + kNetworkLatency + 1e-12) << gpus;
        }
    }
}

TEST(OverGpus, WaitsForTheKeysOfItsChunks) {
    // Two GPUs, chunks of N / 4. The first rank begins at once, the second when chunk 0 is there.
    const LayerSizes s = layer_of(kMillion);
    const auto seconds = [&](int64_t c, const Hardware& on) {
        LayerSizes prefix = s;
        prefix.tokens = c * kMillion / 4;
        return automatic_seconds(prefix, kMillion / 4, on);
    };
    const Hardware fast = linked_chip();
    const PrefillOverGpus over = prefill_over_gpus(s, 2, fast);
    EXPECT_DOUBLE_EQ(over.ranks[0].end, seconds(1, fast) + seconds(4, fast));
    EXPECT_DOUBLE_EQ(over.ranks[1].end,
                     kLatency + over.gather_seconds / 2 + seconds(2, fast) + seconds(3, fast));
    EXPECT_NEAR(over.exposed_seconds(), kLatency + over.gather_seconds / 2, 1e-12);
    // Over slow links the late chunk of the first rank waits for all keys; the second rank's needs
    // chunk 0 alone, as its early one.
    const Hardware slow = linked_chip(1e6);
    const PrefillOverGpus late = prefill_over_gpus(s, 2, slow);
    EXPECT_DOUBLE_EQ(late.ranks[0].end, kLatency + late.gather_seconds + seconds(4, slow));
    EXPECT_DOUBLE_EQ(late.ranks[1].end,
                     kLatency + late.gather_seconds / 2 + seconds(2, slow) + seconds(3, slow));
}

TEST(OverGpus, DecodeIsReadingAndTwoExchanges) {
    Hardware on = linked_chip();
    on.bytes_per_second = 3e12;  // which limits
    const DecodeOverGpus two = decode_over_gpus(layer_of(kMillion), 2, on);
    EXPECT_NEAR(two.select_seconds, 2.0 * 128 * kMillion / 2 / 3e12, 1e-9);
    EXPECT_DOUBLE_EQ(two.attend_seconds, two.attend_worst_seconds / 2);
    EXPECT_EQ(two.exchange_bytes, 8 * 4 * 16 + 64 * (4 * 128 + 8));
    EXPECT_DOUBLE_EQ(two.exchange_seconds, 2 * kLatency + two.exchange_bytes / 4e11);
    EXPECT_LT(two.worst_speedup(), two.speedup());
    EXPECT_LT(two.speedup(), 2);
    // The lists of the three others are read in turn.
    const DecodeOverGpus four = decode_over_gpus(layer_of(kMillion), 4, on);
    EXPECT_DOUBLE_EQ(four.exchange_seconds, 3 * two.exchange_seconds);
    // What a step takes beyond its bytes stands on both sides.
    on.step_seconds = 1e-5;
    const DecodeOverGpus slow = decode_over_gpus(layer_of(kMillion), 4, on);
    EXPECT_DOUBLE_EQ(slow.one_seconds, four.one_seconds + 1e-5);
    EXPECT_DOUBLE_EQ(slow.seconds(), four.seconds() + 1e-5);
    // Of 64 GPUs, 56 are on other hosts.
    const DecodeOverGpus far = decode_over_gpus(layer_of(kMillion), 64, on);
    const double candidates = 8 * 4 * 16, parts = 64 * (4 * 128 + 8);
    EXPECT_DOUBLE_EQ(far.exchange_seconds, 2 * (kLatency + kNetworkLatency) + 6 * kLatency +
                                               7 * candidates / 4e11 + 56 * parts / 5e10);
    EXPECT_LT(far.speedup(), 64);
}

TEST(OverGpus, RefusesWhatCannotBeDivided) {
    const auto refuses = [](const auto& call, const std::string& why) {
        try {
            call();
            ADD_FAILURE() << "must refuse: " << why;
        } catch (const InputError& error) {
            EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
        }
    };
    Hardware alone = linked_chip(), host = linked_chip();
    alone.link.reset();
    host.network.reset();
    refuses([&] { prefill_over_gpus(layer_of(kMillion), 2, alone); },
            "chip: has no link_gigabytes_per_second");
    refuses([&] { decode_over_gpus(layer_of(kMillion), 16, host); },
            "chip: has no network_gigabytes_per_second");
    refuses([&] { prefill_over_gpus(layer_of(kMillion), 12, linked_chip()); },
            "GPUs are 12, must be at most the 8 of a host or a multiple of them");
    refuses([&] { prefill_over_gpus(layer_of(4096), 64, linked_chip()); },
            "context is 4096, must hold 128 chunks of at least 128 tokens");
    refuses([&] { decode_over_gpus(layer_of(4096), 8, linked_chip()); },
            "context is 4096, must hold the k = 16 blocks of 128 tokens for each of 8 GPUs");
    EXPECT_NO_THROW(prefill_over_gpus(layer_of(kMillion), 8, host));
}

}  // namespace
}  // namespace msa::analysis
