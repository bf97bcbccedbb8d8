// SPDX-License-Identifier: MIT
// msa-synth: what it plants is there. Without noise the index branch holds the planted gains
// exactly, so that they are compared with the definitions in experiments/driver/pattern.h.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>

#include "core/io/results.h"
#include "core/selection.h"
#include "core/tolerance.h"
#include "experiments/driver/pattern.h"
#include "tests/experiments/cli.h"
#include "tests/support/compare.h"

namespace msa::test {
namespace {

using io::Field;

constexpr int64_t kSynthTokens = 512, kBlock = 16;

class Synth : public CliTest {
protected:
    using Words = std::vector<std::string>;

    /// A small float32 file, by the defaults but for `more`.
    std::string make(const std::string& name, const Words& more) const {
        Words args{"--out", path(name)};
        for (const auto& [option, value] : {std::pair{"--tokens", "512"},
                                            {"--query-heads", "4"},
                                            {"--kv-heads", "2"},
                                            {"--element", "f32"},
                                            {"--seed", "5"}})
            if (std::find(more.begin(), more.end(), option) == more.end())
                args.insert(args.end(), {option, value});
        args.insert(args.end(), more.begin(), more.end());
        const Outcome outcome = kSynth(args);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return path(name);
    }
    /// A file with the given gains alone.
    std::string only(const std::string& gain, const std::string& nats, const Words& more) const {
        Words args{"--stripes", "1", "--needles", "1"};
        for (const std::string name : {"sink", "diagonal", "stripe", "needle"})
            args.insert(args.end(), {"--" + name + "-gain", name == gain ? nats : "0"});
        args.insert(args.end(), more.begin(), more.end());
        return make(gain + nats + ".h5", args);
    }
    io::ResultsReader analyse(const std::string& file, const std::string& selectors) const {
        const Words args{file,          "--out",  path("out"),    "--overwrite",
                         "--threads",   "1",      "--dump",       "mass",
                         "--top-k",     "5",      "--block-size", std::to_string(kBlock),
                         "--selectors", selectors};
        const Outcome outcome = kAnalyze(args);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return io::ResultsReader(path("out/results.h5"));
    }
};

/// The scores index_q . index_k / sqrt(didx) of a file, by token.
class IndexScores {
public:
    explicit IndexScores(const std::string& file) {
        const io::ActivationsReader reader(file);
        const QueryRange all{0, reader.info().tokens()};
        q_ = reader.read(0, Field::index_q, all);
        k_ = reader.read(0, Field::index_k, all);
        bound_ = logit_bound(scale(), largest_norm<3>(q_), largest_norm<3>(k_), q_.extent(2));
    }
    double operator()(int64_t i, int64_t group, int64_t j) const {
        double dot = 0;
        for (int64_t d = 0; d < q_.extent(2); ++d)
            dot += double{q_(i, group, d)} * double{k_(j, 0, d)};
        return scale() * dot;
    }
    /// The key that (i, group) scores highest.
    int64_t best(int64_t i, int64_t group) const {
        int64_t top = 0;
        for (int64_t j = 1; j < k_.extent(0); ++j)
            if ((*this)(i, group, j) > (*this)(i, group, top)) top = j;
        return top;
    }
    double bound() const { return bound_; }

private:
    double scale() const { return 1 / std::sqrt(static_cast<double>(q_.extent(2))); }
    Tensor<float, 3> q_, k_;
    double bound_ = 0;
};

TEST_F(Synth, SinkIsAGainOnTheFirstTokenOfEverySequence) {
    const IndexScores score(only("sink", "13", {"--index-noise", "0", "--sequences", "2"}));
    for (int64_t i = 0; i < kSynthTokens; i += 7)
        for (int64_t j = 0; j < kSynthTokens; ++j)
            ASSERT_NEAR(score(i, 1, j), j == 0 || j == kSynthTokens / 2 ? 13 : 0, score.bound());
}

TEST_F(Synth, DiagonalPeaksAtTheQueryAndFallsOff) {
    const IndexScores score(only("diagonal", "10", {"--index-noise", "0"}));
    for (int64_t i = 0; i < kSynthTokens; i += 7) {
        ASSERT_NEAR(score(i, 0, i), 10, score.bound());
        ASSERT_EQ(score.best(i, 0), i);
        for (int64_t j = 0; j < kSynthTokens; ++j)
            ASSERT_LE(score(i, 0, j), std::abs(i - j) < 24 ? 10 + score.bound() : 8);
    }
}

TEST_F(Synth, AStripePointsAtAFixedShareOfThePosition) {
    const IndexScores score(only("stripe", "9", {"--index-noise", "0"}));
    std::vector<double> shares;
    for (int64_t group : {0, 1}) {
        const double share =
            static_cast<double>(score.best(kSynthTokens - 1, group)) / (kSynthTokens - 1);
        EXPECT_TRUE(0.09 < share && share < 0.9) << share;
        for (int64_t i = 0; i < kSynthTokens; i += 5) {
            const int64_t target = score.best(i, group);
            ASSERT_LE(std::fabs(static_cast<double>(target) - share * static_cast<double>(i)), 2);
            ASSERT_NEAR(score(i, group, target), 9, score.bound());
        }
        shares.push_back(share);
    }
    EXPECT_GT(std::fabs(shares[0] - shares[1]), 0.02);
}

TEST_F(Synth, ANeedleIsOneEarlyTokenForARunOfLateQueries) {
    const IndexScores score(only("needle", "12", {"--index-noise", "0"}));
    std::vector<int64_t> keys, queries;
    for (int64_t i = 0; i < kSynthTokens; ++i)
        for (int64_t j = 0; j < kSynthTokens; ++j) {
            if (std::fabs(score(i, 0, j)) <= score.bound()) continue;
            ASSERT_NEAR(score(i, 0, j), 12, score.bound());
            keys.push_back(j);
            queries.push_back(i);
        }
    ASSERT_EQ(queries.size(), 16U);
    EXPECT_EQ(queries.back() - queries.front(), 15);
    EXPECT_EQ(keys.front(), keys.back());
    EXPECT_LT(keys.front(), kSynthTokens / 2);
    EXPECT_GE(queries.front(), kSynthTokens / 2);
}

TEST_F(Synth, NoiseHasUnitVarianceWhateverTheWidth) {
    for (const std::string width : {"16", "64", "256"}) {
        const std::string file =
            only(width, "0", {"--head-dim", width, "--index-dim", width, "--index-noise", "3"});
        const io::ActivationsReader reader(file);
        const auto q = reader.read(0, Field::q, {0, kSynthTokens});
        const auto k = reader.read(0, Field::k, {0, kSynthTokens});
        const IndexScores index(file);
        double main = 0, branch = 0;
        for (int64_t i = 0; i < kSynthTokens; ++i) {
            const int64_t j = (i + 1) % kSynthTokens;
            double logit = 0;
            for (int64_t d = 0; d < q.extent(2); ++d)
                logit += double{q(i, 0, d)} * double{k(j, 0, d)};
            main += logit * logit / static_cast<double>(q.extent(2)) / kSynthTokens;
            branch += std::pow(index(i, 0, j) / 3, 2) / kSynthTokens;
        }
        // Of a sum of w >= 4 products of normals: E x^4 = 3 + 6 / w.
        EXPECT_NEAR(main, 1, sampling_bound(2 + 6.0 / 4, kSynthTokens)) << width;
        EXPECT_NEAR(branch, 1, sampling_bound(2 + 6.0 / 4, kSynthTokens)) << width;
    }
}

double mean(const Tensor<double, 1>& values) {
    double sum = 0;
    for (int64_t n = 0; n < values.size(); ++n) sum += values(n);
    return sum / static_cast<double>(values.size());
}

TEST_F(Synth, DenseAttentionSeesTheSink) {
    const auto sink = [&](const std::string& nats) {
        return mean(analyse(only("sink", nats, {}), "oracle")
                        .read<double, 1>("/metrics/dense/0/sink_mass"));
    };
    // At least 0.8 * 14 nats against 512 keys of unit noise; without it, a harmonic mean.
    EXPECT_GT(sink("14"), 0.9);
    EXPECT_LT(sink("0"), 0.05);
}

TEST_F(Synth, DenseAttentionSeesTheDiagonal) {
    const auto local = [&](const std::string& nats) {
        const auto mass = analyse(only("diagonal", nats, {}), "oracle").read<float, 3>("/mass/0");
        double sum = 0;
        for (int64_t i = 64; i < kSynthTokens; ++i)  // its own block and the one before
            sum += double{mass(i, 1, i / kBlock)} + double{mass(i, 1, i / kBlock - 1)};
        return sum / (kSynthTokens - 64);
    };
    EXPECT_GT(local("40"), 0.9);
    EXPECT_LT(local("0"), 0.3);
}

TEST_F(Synth, TheOracleAndTheIndexFindTheNeedles) {
    const std::string file =
        make("all.h5", {"--tokens", "2K", "--needles", "4", "--sequences", "2", "--stripes", "0"});
    const io::ActivationsReader reader(file);
    experiments::Pattern pattern;
    pattern.seed = 5;
    pattern.needles = 4;
    const experiments::Synthesizer planted(reader.info(), pattern);
    const io::ResultsReader results = analyse(file, "oracle,index,window");
    int64_t looks = 0;
    std::map<std::string, int64_t> found;
    for (size_t s : {0U, 1U})
        for (const experiments::Needle& needle :
             planted.needles(reader.layer(0), static_cast<int64_t>(s))) {
            EXPECT_LT(needle.key, needle.first_query);
            for (int64_t n = 0; n < experiments::kNeedleQueries; ++n)
                for (int64_t r : {0, 1}) {
                    ++looks;
                    for (const std::string name : {"oracle", "index", "window"}) {
                        const auto ids = results.read_rows<int32_t, 3>(
                            "/select/" + name + "/0/ids",
                            reader.info().cu_seqlens[s] + needle.first_query + n, 1);
                        const auto kept = selected(ids, 0, r);
                        found[name] += std::count(kept.begin(), kept.end(), needle.key / kBlock);
                    }
                }
        }
    ASSERT_EQ(looks, 2 * 4 * 16 * 2);
    EXPECT_EQ(found["oracle"], looks);
    EXPECT_EQ(found["index"], looks);
    EXPECT_LT(found["window"], looks);
}

TEST_F(Synth, SeedAndCoordinatesDecideEveryValue) {
    const io::ActivationsReader a(make("a.h5", {})), b(make("b.h5", {})),
        other(make("other.h5", {"--seed", "6"}));
    experiments::Pattern pattern;
    pattern.seed = 5;
    const experiments::Synthesizer planted(a.info(), pattern);
    for (Field field : {Field::q, Field::k, Field::v, Field::index_q, Field::index_k}) {
        const Tensor<float, 3> whole = a.read(0, field, {0, kSynthTokens});
        EXPECT_TRUE(identical(b.read(0, field, {0, kSynthTokens}), whole));
        EXPECT_FALSE(identical(other.read(0, field, {0, kSynthTokens}), whole));
        const Tensor<float, 3> part = planted.make(a.layer(0), field, {100, 137});
        EXPECT_TRUE(identical(part, a.read(0, field, {100, 137}))) << io::to_string(field);
    }
}

TEST_F(Synth, WritesAValidFileOfTheSizesAskedFor) {
    const std::string file = make("a.h5", {"--sequences", "3", "--model-layers", "2", "--head-dim",
                                           "32", "--index-dim", "0"});
    const Outcome shown = kInspect({file, "--stats"});
    EXPECT_EQ(shown.code, 0) << shown.err;
    const io::ActivationsReader reader(file);
    EXPECT_EQ(reader.info().cu_seqlens, (std::vector<int64_t>{0, 170, 341, 512}));
    ASSERT_EQ(reader.info().layers.size(), 2U);
    for (int64_t number : {0, 1}) {
        const io::LayerInfo& layer = reader.layer(number);
        EXPECT_EQ(layer.query_heads, 4);
        EXPECT_EQ(layer.kv_heads, 2);
        EXPECT_EQ(layer.head_dim, 32);
        EXPECT_FALSE(layer.has(Field::index_q));
        EXPECT_EQ(layer.element, Element::f32);
        EXPECT_EQ(layer.q_state, io::RopeState::none);
        EXPECT_DOUBLE_EQ(layer.softmax_scale, 1 / std::sqrt(32));
    }
    for (Field field : {Field::q, Field::k, Field::v})
        EXPECT_FALSE(identical(reader.read(0, field, {0, kSynthTokens}),
                               reader.read(1, field, {0, kSynthTokens})));
    for (const std::string element : {"f16", "bf16"})
        EXPECT_EQ(
            to_string(
                io::ActivationsReader(make(element, {"--element", element})).layer(0).element),
            element);
}

TEST_F(Synth, RefusesWithTheReasonAndWritesNothing) {
    const auto refusal = [&](const Words& more) {
        Words args{"--out", path("no.h5")};
        args.insert(args.end(), more.begin(), more.end());
        const Outcome refused = kSynth(args);
        EXPECT_EQ(refused.code, 2);
        EXPECT_EQ(refused.out, "");
        EXPECT_TRUE(std::filesystem::is_empty(path(""))) << refused.err;
        return refused.err;
    };
    const std::pair<Words, const char*> cases[] = {
        {{"--tokens", "0"}, "--tokens is 0, must be at least 1"},
        {{"--tokens", "3", "--sequences", "4"}, "--tokens is 3, must be at least 4"},
        {{"--sequences", "0"}, "--sequences is 0, must be at least 1"},
        {{"--model-layers", "0"}, "--model-layers is 0, must be from 1 to 4096"},
        {{"--kv-heads", "0"}, "--kv-heads is 0, must be at least 1"},
        {{"--query-heads", "6"},
         "--query-heads is 6, must be a positive multiple of --kv-heads = 4"},
        {{"--head-dim", "8"}, "--head-dim is 8, must be from 16 to 512"},
        {{"--index-dim", "300"}, "--index-dim is 300, must be from 16 to 256"},
        {{"--stripes", "-1"}, "--stripes is -1, must be from 0 to 256"},
        {{"--stripes", "100000"}, "--stripes is 100000, must be from 0 to 256"},
        {{"--needles", "-1"}, "--needles is -1, must be from 0 to 4096"},
        {{"--sink-gain", "101"}, "--sink-gain is 101, must be from 0 to 100"},
        {{"--diagonal-gain", "-2"}, "--diagonal-gain is -2, must be from 0 to 100"},
        {{"--index-noise", "nan"}, "--index-noise is nan, must be from 0 to 100"},
        {{"--element", "f64"}, "--element is 'f64', must be one of: f16, bf16, f32"},
        {{"--seed", "x"}, "--seed"},
        {{"--tokens", "99999999M"}, "--tokens is 104857598951424, which take 362499996.4 GiB in 1"},
        {{"--colour", "red"}, "--colour"},
        {{"stray"}, "too many positional options"},
    };
    for (const auto& [args, reason] : cases)
        EXPECT_NE(refusal(args).find(reason), std::string::npos) << refusal(args);
    EXPECT_NE(kSynth({}).err.find("no output: name a file with --out"), std::string::npos);
    const Outcome nowhere = kSynth({"--out", path("none/a.h5"), "--tokens", "8"});
    EXPECT_EQ(nowhere.code, 2);
    EXPECT_NE(nowhere.err.find(path("none/a.h5")), std::string::npos) << nowhere.err;
}

TEST_F(Synth, AnExistingFileIsKeptUnlessOverwritten) {
    std::ofstream(path("a.h5")) << "mine";
    const Outcome refused = kSynth({"--out", path("a.h5"), "--tokens", "8"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find("a.h5"), std::string::npos);
    EXPECT_EQ(file_text(path("a.h5")), "mine");
    EXPECT_EQ(kSynth({"--out", path("a.h5"), "--tokens", "8", "--overwrite"}).code, 0);
    EXPECT_EQ(io::ActivationsReader(path("a.h5")).info().tokens(), 8);
}

TEST_F(Synth, KilledAtAnyMomentLeavesNothingOrAllUnderTheName) {
    using std::chrono::microseconds;
    const Words args{"--out", path("a.h5"), "--tokens", "4K", "--kv-heads", "1"};
    int killed = 0;
    for (int64_t delay = 3000;; delay += delay / 3) {
        const int code = run_for("msa-synth", args, microseconds(delay));
        if (code == 0) break;
        ASSERT_EQ(code, -1);
        if (std::filesystem::exists(path("a.h5"))) break;  // on the way out, the file complete
        ++killed;
    }
    EXPECT_GT(killed, 2);
    EXPECT_EQ(kInspect({path("a.h5"), "--stats"}).code, 0);

    const std::string before = file_text(path("a.h5"));
    Words again = args;
    again.insert(again.end(), {"--overwrite", "--seed", "9"});
    EXPECT_EQ(run_for("msa-synth", again, microseconds(20000)), -1);
    EXPECT_EQ(file_text(path("a.h5")), before);
}

TEST_F(Synth, AnInterruptRemovesWhatWasWritten) {
    const Words args{"--out", path("a.h5"), "--tokens", "64K"};
    int code = -1;  // until the program has begun to listen
    for (int64_t delay = 10000; code == -1; delay *= 2)
        code = run_for("msa-synth", args, std::chrono::microseconds(delay), SIGINT);
    EXPECT_EQ(code, 130);
    EXPECT_FALSE(std::filesystem::exists(path("a.h5")));
    EXPECT_FALSE(std::filesystem::exists(path("a.h5.partial")));
}

TEST_F(Synth, AFullDiskLeavesNothing) {
    const std::string command = "ulimit -f 64; exec " + std::string(MSA_BIN_DIR) +
                                "/msa-synth --tokens 2K --out '" + path("a.h5") +
                                "' >/dev/null 2>'" + path("err") + "'";
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 2);
    EXPECT_NE(file_text(path("err")).find("cannot write " + path("a.h5")), std::string::npos)
        << file_text(path("err"));
    EXPECT_FALSE(std::filesystem::exists(path("a.h5")));
    EXPECT_FALSE(std::filesystem::exists(path("a.h5.partial")));
}

}  // namespace
}  // namespace msa::test
