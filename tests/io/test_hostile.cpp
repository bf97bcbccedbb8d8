// SPDX-License-Identifier: MIT
// A short run of what the fuzzer does for long: random decisions of tests/fuzz/builder.h.
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "core/io/activations.h"
#include "tests/fuzz/builder.h"
#include "tests/fuzz/consume.h"
#include "tests/support/random.h"

namespace msa::fuzz {
namespace {

TEST(Hostile, WithoutABadDecisionTheFileIsValid) {
    const TemporaryFile file;
    build_activations(file.path(), nullptr, 0);
    const io::ActivationsReader reader(file.path());
    EXPECT_EQ(reader.layer(3).query_heads, 4);
    EXPECT_EQ(reader.read(3, io::Field::k, {0, 40}).shape(), (Shape<3>{40, 2, 16}));
}

TEST(Hostile, RandomDecisionsGiveDataOrAnInputError) {
    std::mt19937_64 generator(test::seed());
    for (int n = 0; n < 400; ++n) {
        std::vector<uint8_t> bytes(generator() % 200);
        // Mostly valid decisions, so that the later ones are reached.
        for (uint8_t& byte : bytes)
            byte = generator() % 4 == 0 ? static_cast<uint8_t>(generator()) : uint8_t{0};
        const TemporaryFile file;
        build_activations(file.path(), bytes.data(), bytes.size());
        SCOPED_TRACE(testing::Message() << "seed " << test::seed() << ", file " << n);
        consume_activations(file.path());
    }
}

TEST(Hostile, EveryTruncationIsRefused) {
    const TemporaryFile whole;
    build_activations(whole.path(), nullptr, 0);
    std::ifstream stream(whole.path(), std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(stream)), {});
    const std::string cut = whole.path().string() + ".cut";
    for (size_t size = 0; size < bytes.size(); size += 1 + size / 16) {
        std::ofstream(cut, std::ios::binary)
            .write(bytes.data(), static_cast<std::streamsize>(size));
        EXPECT_THROW(io::ActivationsReader{cut}, InputError) << size;
    }
    std::filesystem::remove(cut);
}

}  // namespace
}  // namespace msa::fuzz
