// SPDX-License-Identifier: MIT
// Attention to e4m3 operands, with the layouts that the PTX ISA gives to the registers of wgmma and
// mma.sync and to swizzled operands, run on the host: which byte is which value needs no GPU to be
// known.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "core/number/e4m3.h"
#include "gpu/e4m3_layout.h"
#include "tests/support/random.h"

namespace msa::test {
namespace {

constexpr int kThreads = 128, kRows = 64;

/// Row and column of a thread's sum d[n] of wgmma's [64, N] (PTX ISA, wgmma, "D fragment").
std::pair<int, int> place_of_sum(int thread, int n) {
    const int lane = thread % 32, side = n / 2 % 2;
    return {thread / 32 * 16 + lane / 4 + 8 * side, n / 4 * 8 + lane % 4 * 2 + n % 2};
}
/// Row and column of byte `b` of a thread's word a[n] of an 8-bit [64, 32] ("A fragment").
std::pair<int, int> place_of_operand(int thread, int n, int b) {
    const int lane = thread % 32;
    return {thread / 32 * 16 + lane / 4 + n % 2 * 8, lane % 4 * 4 + n / 2 * 16 + b};
}
/// Address of a byte of an operand whose rows run along N, before the swizzle: rows of `row_bytes`,
/// groups of 8 rows 8 row_bytes apart; then the swizzle of 128, 64 or 32 bytes exchanges the
/// address bits from 4 on with those from 7 on ("Swizzling Modes").
int swizzled(int row, int byte, int row_bytes) {
    const int plain = row / 8 * (8 * row_bytes) + row % 8 * row_bytes + byte;
    const int mask = row_bytes / 16 - 1;
    return plain ^ ((plain >> 7 & mask) << 4);
}

struct Sizes {
    int channels, keys;
};
class E4m3Layout : public testing::TestWithParam<Sizes> {};
INSTANTIATE_TEST_SUITE_P(All, E4m3Layout,
                         testing::Values(Sizes{128, 128}, Sizes{64, 128}, Sizes{128, 64},
                                         Sizes{64, 64}, Sizes{128, 32}, Sizes{64, 32}),
                         [](const auto& of) {
                             return "channels_" + std::to_string(of.param.channels) + "_keys_" +
                                    std::to_string(of.param.keys);
                         });

/// What the kernel that transposes values writes: a tile of a block.
std::vector<uint8_t> transposed(const std::vector<uint8_t>& values, Sizes of) {
    std::vector<uint8_t> tile(values.size());
    for (int channel = 0; channel < of.channels; ++channel)
        for (int chunk = 0; chunk < of.keys / 16; ++chunk)
            for (int place = 0; place < 16; ++place)
                tile[static_cast<size_t>(cuda::swizzled_chunk(channel, chunk, of.keys) + place)] =
                    values[static_cast<size_t>((16 * chunk + cuda::key_at(place)) * of.channels +
                                               channel)];
    return tile;
}

float value_of(uint8_t bits) {
    e4m3 x;
    x.bits = bits;
    return static_cast<float>(x);
}

/// Weights [kRows, keys] and values [keys, channels], small integers: their sums are exact.
struct Factors {
    Sizes of;
    std::vector<float> weights;
    std::vector<uint8_t> values;

    explicit Factors(Sizes sizes)
        : of(sizes),
          weights(static_cast<size_t>(kRows * of.keys)),
          values(static_cast<size_t>(of.keys * of.channels)) {
        const Tensor<float, 2> noise = normal<2>({kRows + of.channels, of.keys}, 31, 3);
        const auto integer = [&](size_t i) {
            return std::clamp(std::nearbyint(noise.data()[i]), -8.0F, 8.0F);
        };
        for (size_t i = 0; i < weights.size(); ++i) weights[i] = integer(i);
        for (size_t i = 0; i < values.size(); ++i)
            values[i] = e4m3(integer(i + weights.size())).bits;
    }
    float product(int row, int channel) const {
        float sum = 0;
        for (int key = 0; key < of.keys; ++key)
            sum += weights[static_cast<size_t>(row * of.keys + key)] *
                   value_of(values[static_cast<size_t>(key * of.channels + channel)]);
        return sum;
    }
};

TEST_P(E4m3Layout, WeightsTimesTransposedValuesIsTheProduct) {
    const auto [channels, keys] = GetParam();
    const Factors factors(GetParam());
    const std::vector<float>& weights = factors.weights;
    const std::vector<uint8_t> tile = transposed(factors.values, GetParam());

    // Words as keep_weights() packs them, from sums that lie as the product before leaves them.
    std::vector<float> operand(static_cast<size_t>(kRows * keys));  // A, as wgmma reads the words
    for (int thread = 0; thread < kThreads; ++thread)
        for (int n = 0; n < keys / 8; ++n)
            for (int b = 0; b < 4; ++b) {
                const int sum = 8 * (n / 2) + 2 * (n % 2) + (b < 2 ? b : b + 2);
                const auto [row, key] = place_of_sum(thread, sum);
                const auto [operand_row, place] = place_of_operand(thread, n % 4, b);
                ASSERT_EQ(row, operand_row);
                operand[static_cast<size_t>(row * keys + n / 4 * 32 + place)] =
                    weights[static_cast<size_t>(row * keys + key)];
            }
    for (int row = 0; row < kRows; ++row)
        for (int channel = 0; channel < channels; ++channel) {
            float got = 0;
            for (int key = 0; key < keys; ++key)
                got += operand[static_cast<size_t>(row * keys + key)] *
                       value_of(tile[static_cast<size_t>(swizzled(channel, key, keys))]);
            ASSERT_EQ(got, factors.product(row, channel))
                << "row " << row << ", channel " << channel;
        }
}

// The kernels in mma.sync, as gpu/device/attend_mma.cuh multiplies: a step of 64 keys of a warp's
// 16 rows. Values lie in a tile of the whole block (KV-outer), or in one that has the step's alone
// (unions).
constexpr int kStep = 64, kWarpRows = 16, kLanes = 32, kDepth = 32;

/// The part of a block's tile from key `first` on, as warp_copy_transposed() copies it.
std::vector<uint8_t> part_of(const std::vector<uint8_t>& block, Sizes of, int first) {
    std::vector<uint8_t> tile(static_cast<size_t>(of.channels * kStep));
    for (int channel = 0; channel < of.channels; ++channel)
        for (int chunk = 0; chunk < kStep / 16; ++chunk) {
            const int from = cuda::swizzled_chunk(channel, first / 16 + chunk, of.keys);
            const int to = cuda::swizzled_chunk(channel, chunk, kStep);
            std::copy_n(&block[static_cast<size_t>(from)], 16, &tile[static_cast<size_t>(to)]);
        }
    return tile;
}

/// A of m16n8k32, [16, 32]: the words 4 step to 4 step + 3 that keep_weights() packs.
std::vector<float> operand_a(const Factors& factors, int first, int step) {
    std::vector<float> a(static_cast<size_t>(kWarpRows * kDepth));
    for (int lane = 0; lane < kLanes; ++lane)
        for (int n = 0; n < 4; ++n)
            for (int byte = 0; byte < 4; ++byte) {
                const int word = 4 * step + n;
                const int sum = 8 * (word / 2) + 2 * (word % 2) + (byte < 2 ? byte : byte + 2);
                const auto [row, key] = place_of_sum(lane, sum);
                const auto [to, depth] = place_of_operand(lane, n, byte);
                EXPECT_EQ(row, to);
                a[static_cast<size_t>(to * kDepth + depth)] =
                    factors.weights[static_cast<size_t>(row * factors.of.keys + first + key)];
            }
    return a;
}

/// B of the same product, [32, 8], of the channels from 8 j on. Byte `byte` of a lane's word i is
/// row 4 (lane % 4) + byte + 16 i of column lane / 4. The words come by ldmatrix: lanes 8 m to
/// 8 m + 7 give the addresses of the rows of matrix m, and a lane gets 4 bytes of row lane / 4.
std::vector<float> operand_b(const std::vector<uint8_t>& tile, int tile_keys, int first, int step,
                             int j) {
    std::vector<float> b(static_cast<size_t>(kDepth * 8));
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 2; ++i) {
            const int giver = 8 * (2 * step + i) + lane / 4;
            const int row =
                (cuda::swizzled_chunk(giver % 8, giver / 8, tile_keys) ^ first) + j * 8 * tile_keys;
            for (int byte = 0; byte < 4; ++byte)
                b[static_cast<size_t>((lane % 4 * 4 + byte + 16 * i) * 8 + lane / 4)] =
                    value_of(tile[static_cast<size_t>(row + lane % 4 * 4 + byte)]);
        }
    return b;
}

TEST_P(E4m3Layout, StepsOf64KeysSumUpToTheProduct) {
    const auto [channels, keys] = GetParam();
    if (keys < kStep) GTEST_SKIP() << "the kernels in mma.sync have no blocks of 32";
    const Factors factors(GetParam());
    const std::vector<uint8_t> block = transposed(factors.values, GetParam());
    for (const bool whole : {false, true})
        for (int j = 0; j < channels / 8; ++j) {
            std::vector<float> out(static_cast<size_t>(kWarpRows * 8));
            for (int first = 0; first < keys; first += kStep)
                for (int step = 0; step < kStep / kDepth; ++step) {
                    const std::vector<float> a = operand_a(factors, first, step);
                    const std::vector<float> b =
                        whole ? operand_b(block, keys, first, step, j)
                              : operand_b(part_of(block, GetParam(), first), kStep, 0, step, j);
                    for (size_t i = 0; i < out.size(); ++i)
                        for (size_t d = 0; d < kDepth; ++d)
                            out[i] += a[i / 8 * kDepth + d] * b[d * 8 + i % 8];
                }
            for (int i = 0; i < kWarpRows * 8; ++i)
                ASSERT_EQ(out[static_cast<size_t>(i)], factors.product(i / 8, 8 * j + i % 8))
                    << "row " << i / 8 << ", channel " << 8 * j + i % 8 << ", whole " << whole;
        }
}

TEST(E4m3Layout, LanesThatReadTogetherMeetInNoBank) {
    // ldmatrix reads 8 rows of 16 bytes at a time: one of each 16 bytes of the 128 of the banks.
    for (const int keys : {64, 128})
        for (int chunk = 0; chunk < keys / 16; ++chunk) {
            std::set<int> places;
            for (int row = 0; row < 8; ++row)
                places.insert(cuda::swizzled_chunk(row, chunk, keys) % 128 / 16);
            EXPECT_EQ(places.size(), 8U);
        }
}

TEST(E4m3Layout, AStepAlongKeysIsAStepOf32Bytes) {
    // The hardware swizzles addresses, so a descriptor may begin 32 bytes on, or 64 rows on, in a
    // tile that is aligned to 1024 bytes.
    for (int row_bytes : {64, 128})
        for (int row = 0; row < 64; ++row)
            for (int byte = 0; byte < 32; ++byte) {
                EXPECT_EQ(swizzled(row, byte + 32, row_bytes), swizzled(row, byte, row_bytes) ^ 32);
                EXPECT_EQ(swizzled(row + 64, byte, row_bytes),
                          swizzled(row, byte, row_bytes) + 64 * row_bytes);
            }
}

TEST(E4m3Layout, EveryKeyHasOnePlace) {
    std::set<int> keys;
    for (int place = 0; place < 128; ++place) {
        keys.insert(cuda::key_at(place));
        EXPECT_EQ(cuda::key_at(place) / 16, place / 16);
    }
    EXPECT_EQ(keys.size(), 128U);
}

// Decode. mma.m16n8k16 (PTX ISA): B of [16, 8] in thread t holds rows 2 (t % 4) + i and 8 more of
// column t / 4; its sum is column 2 (t % 4) + i. ldmatrix.trans gives a thread the 2-byte elements
// [2 (t % 4) + i][t / 4] of an 8 x 8 matrix whose rows are 16 bytes of a key each.
TEST(E4m3Layout, DecodesValuesInOrder) {
    constexpr int kKeys = 16, kChannels = 16;
    for (int lane = 0; lane < 32; ++lane)
        for (int odd = 0; odd < 2; ++odd) {
            // Which (key, channel) each f16 of the operand is, by add_values_e4m3().
            for (int half = 0; half < 2; ++half) {
                std::array<std::pair<int, int>, 4> word;  // bytes of ldmatrix's word
                for (int i = 0; i < 2; ++i)
                    for (int c = 0; c < 2; ++c)
                        word[static_cast<size_t>(2 * i + c)] = {8 * half + 2 * (lane % 4) + i,
                                                                2 * (lane / 4) + c};
                const std::array<int, 4> permuted{0, 2, 1, 3};  // __byte_perm, 0x3120
                for (int i = 0; i < 2; ++i) {
                    const auto [key, channel] =
                        word[static_cast<size_t>(permuted[static_cast<size_t>(2 * odd + i)])];
                    EXPECT_EQ(key, 2 * (lane % 4) + i + 8 * half);  // B's row
                    EXPECT_EQ(channel, 2 * (lane / 4) + odd);       // of column lane / 4
                    EXPECT_LT(key, kKeys);
                    EXPECT_LT(channel, kChannels);
                }
            }
            // Column 2 quad + i of the sum is channel 2 (2 quad + i) + odd = 4 quad + 2 i + odd.
            for (int i = 0; i < 2; ++i)
                EXPECT_EQ(2 * (2 * (lane % 4) + i) + odd, 4 * (lane % 4) + 2 * i + odd);
        }
}

}  // namespace
}  // namespace msa::test
