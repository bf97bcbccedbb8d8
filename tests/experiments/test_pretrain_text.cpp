// SPDX-License-Identifier: MIT
// Documents, and which of them are held out.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "experiments/pretrain/text.h"
#include "tests/experiments/pretrain_text.h"
#include "tests/support/refusal.h"

namespace msa::experiments::pretrain {
namespace {

using test::prose;
using test::refusal;

class TextTest : public test::CliTest {
protected:
    std::filesystem::path write(const std::string& name, const std::string& bytes) const {
        std::ofstream(path(name), std::ios::binary) << bytes;
        return path(name);
    }
};

std::set<std::string> all_of(const Documents& documents) {
    std::set<std::string> all;
    for (int64_t i = 0; i < documents.count(); ++i) all.emplace(documents[i]);
    return all;
}

/// `count` documents, all different.
std::string corpus(int64_t count, int64_t seed) {
    std::string bytes;
    for (int64_t i = 0; i < count; ++i)
        bytes += std::to_string(i) + prose(20 + i % 7, 1000 * seed + i) + kSeparator;
    return bytes;
}

TEST_F(TextTest, AFileIsOneDocumentOrThoseBetweenSeparators) {
    const Text text({write("one", "first"), write("three", std::string("\0a\0\0bc\0def", 10))},
                    0.0);
    const Documents& train = text.train();
    ASSERT_EQ(train.count(), 4);
    EXPECT_EQ(train[0], "first");
    EXPECT_EQ(train[1], "a");
    EXPECT_EQ(train[2], "bc");
    EXPECT_EQ(train[3], "def");
    EXPECT_EQ(train.bytes(), 11);
    EXPECT_EQ(train.longest(), 5);
    EXPECT_EQ(text.held_out().count(), 0);
}

TEST_F(TextTest, MoreFilesAndAnotherOrderMoveNoDocument) {
    const auto a = write("a", corpus(400, 1)), b = write("b", corpus(300, 2));
    const Text alone({a}, 0.2), both({b, a}, 0.2);
    const std::set<std::string> train = all_of(both.train()), held_out = all_of(both.held_out());
    for (const std::string& document : all_of(alone.train())) EXPECT_TRUE(train.contains(document));
    for (const std::string& document : all_of(alone.held_out()))
        EXPECT_TRUE(held_out.contains(document));
    EXPECT_EQ(train.size() + held_out.size(), 700);
    EXPECT_NE(alone.train().fingerprint(), both.train().fingerprint());
    EXPECT_EQ(alone.train().fingerprint(), Text({a}, 0.2).train().fingerprint());
}

/// The number held out of 4000 is binomial: 0.1 +- 5 standard deviations of 0.0047.
TEST_F(TextTest, TheShareHeldOutIsTheOneAskedFor) {
    const Text text({write("a", corpus(4000, 3))}, 0.1);
    EXPECT_NEAR(static_cast<double>(text.held_out().count()) / 4000, 0.1, 0.024);
}

TEST_F(TextTest, EveryByteOfADocumentCountsInItsHash) {
    std::string document = prose(37, 1);
    std::set<uint64_t> hashes{document_hash(document), document_hash(document + kSeparator)};
    for (char& byte : document) {
        ++byte;
        hashes.insert(document_hash(document));
    }
    EXPECT_EQ(hashes.size(), 2 + document.size());
}

TEST_F(TextTest, WhatIsHeldOutByFileDoesNotTrain) {
    const std::string both = "in both files";
    const Text text({write("a", "trains" + std::string(1, kSeparator) + both)},
                    std::vector<std::filesystem::path>{write("b", both)});
    EXPECT_EQ(all_of(text.train()), std::set<std::string>{"trains"});
    EXPECT_EQ(all_of(text.held_out()), std::set<std::string>{both});
    EXPECT_EQ(refusal([&] { Text({path("b")}, std::vector{std::filesystem::path(path("b"))}); }),
              path("b") + ": has no document that is not held out, too");
}

TEST_F(TextTest, MovedItsDocumentsStayWhereTheyAre) {
    Text text({write("a", "short")}, 0.0);
    const Text moved = std::move(text);
    EXPECT_EQ(moved.train()[0], "short");
}

TEST_F(TextTest, RefusalsNameTheFileAndTheRule) {
    const auto of = [&](const std::filesystem::path& file, double share = 0.0) {
        return refusal([&] { Text({file}, share); });
    };
    EXPECT_EQ(of(path("none")), path("none") + ": there is no such file");
    EXPECT_EQ(of(path("")), path("") + ": is not a file");
    ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);  // nobody writes into it
    EXPECT_EQ(of(path("pipe")), path("pipe") + ": is not a file");
    EXPECT_EQ(of(write("empty", "")), path("empty") + ": is empty, must hold text");
    EXPECT_EQ(of(write("zeros", std::string(3, kSeparator))),
              path("zeros") + ": is empty, must hold text");
    EXPECT_EQ(of(write("one", "a document"), 0.01),
              path("one") +
                  ": of 1 documents none is held out at a share of 0.01; give more "
                  "documents, or files to hold out");
    EXPECT_EQ(of(path("one"), 0.999),
              path("one") + ": of 1 documents none is left to train at a held-out share of 0.999");
    EXPECT_EQ(refusal([&] {
                  Text({path("one"), path("one")}, 0.001);
              }),
              path("one") +
                  " and 1 more: of 2 documents none is held out at a share of 0.001; give more "
                  "documents, or files to hold out");
    EXPECT_EQ(of(path("one"), 1.5), "the held-out share is 1.5, must be from 0 to 1");
    EXPECT_EQ(refusal([] { Text({}, 0.0); }), "no file with text is given");
}

TEST(Documents, CutsAreDrawnByBytesAndLieInOneDocument) {
    const test::MadeDocuments documents({prose(100, 1), prose(300, 2)});
    int64_t of_the_second = 0;
    std::set<std::string> cuts;
    constexpr int kDraws = 2000;
    for (uint64_t draw = 0; draw < kDraws; ++draw) {
        const std::string_view cut = documents.all().cut(200, mix(draw));
        const bool second = cut.size() == 200;
        ASSERT_TRUE(second || cut == documents.all()[0]);
        of_the_second += second ? 1 : 0;
        cuts.emplace(cut);
    }
    // Binomial with 3/4: 5 standard deviations are 0.048.
    EXPECT_NEAR(static_cast<double>(of_the_second) / kDraws, 0.75, 0.05);
    EXPECT_EQ(cuts.size(), 1 + 101);  // every place of the second
}

}  // namespace
}  // namespace msa::experiments::pretrain
