// SPDX-License-Identifier: MIT
// A short run of what the fuzzer does for long: random decisions of tests/fuzz/builder.h.
#include <gtest/gtest.h>

#include <random>

#include "core/io/activations.h"
#include "core/io/results.h"
#include "tests/fuzz/builder.h"
#include "tests/fuzz/consume.h"
#include "tests/support/random.h"

namespace msa::fuzz {
namespace {

TEST(Hostile, WithoutABadDecisionTheFileIsValid) {
    const io::ActivationsReader reader("a.h5", build_activations(nullptr, 0));
    EXPECT_EQ(reader.layer(3).query_heads, 4);
    EXPECT_EQ(reader.read(3, io::Field::k, {0, 40}).shape(), (Shape<3>{40, 2, 16}));
    const io::ResultsReader results("r.h5", build_results(nullptr, 0));
    EXPECT_EQ(results.done().size(), 2U);
    EXPECT_EQ(results.datasets("/").size(), 4U);
}

TEST(Hostile, RandomDecisionsGiveDataOrAnInputError) {
    std::mt19937_64 generator(test::seed());
    for (int n = 0; n < 400; ++n) {
        std::vector<uint8_t> bytes(generator() % 200);
        // Mostly valid decisions, so that the later ones are reached.
        for (uint8_t& byte : bytes)
            byte = generator() % 4 == 0 ? static_cast<uint8_t>(generator()) : uint8_t{0};
        SCOPED_TRACE(testing::Message() << "seed " << test::seed() << ", file " << n);
        consume_activations(build_activations(bytes.data(), bytes.size()));
        consume_results(build_results(bytes.data(), bytes.size()));
    }
}

TEST(Hostile, DamagedRunsGoOnOrAreRefused) {
    std::mt19937_64 generator(test::seed());
    consume_run(nullptr, 0);
    for (int n = 0; n < 100; ++n) {
        std::vector<uint8_t> bytes(4 * (1 + generator() % 3));
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
        SCOPED_TRACE(testing::Message() << "seed " << test::seed() << ", run " << n);
        consume_run(bytes.data(), bytes.size());
    }
}

TEST(Hostile, RandomBytesAreShownAndSorted) {
    std::mt19937_64 generator(test::seed());
    for (int n = 0; n < 20000; ++n) {
        std::vector<uint8_t> bytes(generator() % 64);
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(generator());
        SCOPED_TRACE(testing::Message() << "seed " << test::seed() << ", text " << n);
        consume_words({bytes.begin(), bytes.end()});
        const auto middle = bytes.begin() + static_cast<std::ptrdiff_t>(bytes.size() / 2);
        consume_names({bytes.begin(), middle}, {middle, bytes.end()});
    }
}

TEST(Hostile, EveryTruncationIsRefused) {
    const std::vector<uint8_t> whole = build_activations(nullptr, 0);
    for (size_t size = 0; size < whole.size(); size += 1 + size / 16)
        EXPECT_THROW(io::ActivationsReader("a.h5", std::span(whole).first(size)), InputError)
            << size;
}

}  // namespace
}  // namespace msa::fuzz
