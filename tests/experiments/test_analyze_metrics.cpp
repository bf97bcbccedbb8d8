// SPDX-License-Identifier: MIT
// Every number of msa-analyze is made of the operands and the options that its name promises:
// recomputed here from the file, the stored ids and the reference backend.
#include <cmath>
#include <numeric>

#include "analysis/entropy.h"
#include "analysis/popularity.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "core/io/results.h"
#include "tests/experiments/cli.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

class AnalyzeMetrics : public CliTest {
protected:
    void SetUp() override {
        const std::string file = make("a.h5");
        const Outcome outcome = kAnalyze({file, "--out", path("out"), "--backend", "reference",
                                          "--layers", "3", "--block-size", "8", "--top-k", "4",
                                          "--oracle", "max-logit", "--oracle-local", "excluded",
                                          "--sink-tokens", "3", "--selectors", "index,window"});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        const io::ActivationsReader reader(file);
        problem_ = io::layer_problem(reader.info(), reader.layer(3), 8);
        const auto read = [&](io::Field field) { return reader.read(3, field, {0, 150}); };
        o_ = {read(io::Field::q), read(io::Field::k), read(io::Field::v), {}, {}};
        results_ = std::make_unique<io::ResultsReader>(path("out/results.h5"));
    }
    Tensor<double, 1> metric(const std::string& selector, const std::string& name) const {
        return results_->read<double, 1>("/metrics/" + selector + "/3/" + name);
    }
    void expect(const std::string& selector, const std::string& name,
                const std::vector<double>& want) const {
        const Tensor<double, 1> got = metric(selector, name);
        // The program sums block by block: two orders of the additions, of 16 channels at most.
        constexpr double kOff = 2.0 * 150 * 16 * 0x1p-53;
        ASSERT_EQ(got.size(), std::ssize(want));
        for (size_t n = 0; n < want.size(); ++n)
            EXPECT_NEAR(got(static_cast<int64_t>(n)), want[n], kOff * std::abs(want[n]))
                << selector << ' ' << name;
    }
    /// The same attention with v := k, as the entropy wants it.
    Operands mean_keys() const {
        Operands o = with_queries(o_, {0, 150});
        std::copy_n(o.k.data(), o.k.size(), o.v.data());
        return o;
    }

    Problem problem_;
    Operands o_;
    std::unique_ptr<io::ResultsReader> results_;
    Runner reference_{{"reference", Element::f32}};
};

TEST_F(AnalyzeMetrics, OfDenseAttention) {
    const Attention dense = reference_.dense_attention(problem_, mean_keys());
    analysis::SinkMass sink(4, 3);
    sink.add(problem_, sink.logits(problem_, o_.q, o_.k), dense.lse, {},
             analysis::row_kinds(problem_, 4, false));
    expect("dense", "sink_mass", sink.first_token());
    expect("dense", "sink_mass_first_tokens", sink.first_tokens());
    analysis::Entropy entropy(4);
    entropy.add(problem_, o_.q, dense.out, dense.lse);
    expect("dense", "entropy", entropy.nats());
    const BlockMass mass = reference_.block_mass(problem_, o_);
    std::vector<analysis::Mean> first_block(2);
    for (int64_t i = 0; i < 150; ++i)
        for (int64_t r = 0; r < 2; ++r)
            first_block[static_cast<size_t>(r)].add(double{mass.mass(i, r, 0)});
    expect("dense", "sink_mass_first_block", analysis::values(first_block));
}

TEST_F(AnalyzeMetrics, OfSelections) {
    const BlockMass mass = reference_.block_mass(problem_, o_);
    const Tensor<int32_t, 3> oracle =
        reference_.select_blocks(problem_, {.top_k = 4}, mass.max_logit);
    const std::vector<analysis::RowKind> kinds = analysis::row_kinds(problem_, 4, false);
    for (const std::string selector : {"index", "window"}) {
        const auto ids = results_->read<int32_t, 3>("/select/" + selector + "/3/ids");
        const Attention sparse = reference_.sparse_attention(problem_, mean_keys(), ids);
        analysis::SinkMass sink(4, 1);
        sink.add(problem_, sink.logits(problem_, o_.q, o_.k), sparse.lse, ids, kinds);
        expect(selector, "sink_mass_sparse", sink.first_token());
        analysis::Entropy entropy(4);
        entropy.add(problem_, o_.q, sparse.out, sparse.lse);
        expect(selector, "entropy_sparse", entropy.nats());
        analysis::Recall recall(2, {.exclude_local = true});
        recall.add(problem_, kinds, ids, oracle, mass.mass);
        expect(selector, "block_recall", recall.block_recall());
        expect(selector, "score_recall", recall.score_recall());
        expect(selector, "mass_kept", recall.mass_kept());
        expect(selector, "oracle_mass", recall.oracle_mass());

        analysis::Popularity popularity(problem_);
        popularity.add(problem_, ids);
        const View<const int64_t, 2> want = popularity.queries_per_block();
        const std::string at = "/popularity/" + selector + "/3/queries_per_block";
        const Tensor<int64_t, 2> got = results_->read<int64_t, 2>(at);
        EXPECT_TRUE(std::equal(got.data(), got.data() + got.size(), want.data())) << selector;
        EXPECT_EQ(results_->number(at, "chunks"),
                  analysis::chunks(want[0], 4, 8) + analysis::chunks(want[1], 4, 8));
    }
}

TEST_F(AnalyzeMetrics, CurvesCountTheSameRows) {
    const double at_k = results_->number("/metrics/index/3", "mass_kept");
    const Tensor<int64_t, 1> k = results_->read<int64_t, 1>("/curves/index/3/k");
    const Tensor<double, 1> kept = results_->read<double, 1>("/curves/index/3/mass_kept");
    const int64_t* at = std::find(k.data(), k.data() + k.size(), 4);
    ASSERT_NE(at, k.data() + k.size());
    EXPECT_NEAR(kept(at - k.data()), at_k, 1e-12);  // sums of doubles in two orders
}

TEST_F(AnalyzeMetrics, CurvesOfRecallAreThoseOfRunsWithTheirK) {
    const auto run = [&](const std::string& out, const std::string& k) {
        const Outcome outcome =
            kAnalyze({path("a.h5"), "--out", path(out), "--layers", "3", "--block-size", "8",
                      "--top-k", k, "--all-rows", "--selectors", "index,window"});
        EXPECT_EQ(outcome.code, 0) << outcome.err;
    };
    run("two", "2");
    run("eight", "8");
    const io::ResultsReader two(path("two/results.h5")), eight(path("eight/results.h5"));
    for (const std::string selector : {"index", "window"}) {
        const std::string curve = "/curves/" + selector + "/3/",
                          metrics = "/metrics/" + selector + "/3";
        const Tensor<int64_t, 1> k = two.read<int64_t, 1>(curve + "k");
        for (const std::string name : {"mass_kept", "block_recall", "score_recall"}) {
            const Tensor<double, 1> found = two.read<double, 1>(curve + name);
            ASSERT_EQ(found.size(), k.size());
            for (int64_t n = 0; n < k.size(); ++n) {
                if (k(n) != 2 && k(n) != 8) continue;
                const io::ResultsReader& results = k(n) == 2 ? two : eight;
                EXPECT_NEAR(found(n), results.number(metrics, name), 1e-12) << name;
            }
            EXPECT_NEAR(found(k.size() - 1), 1, 1e-6) << name;  // all blocks
        }
    }
}

TEST_F(AnalyzeMetrics, WindowIsTheFirstBlockAndTheNewest) {
    const auto ids = results_->read<int32_t, 3>("/select/window/3/ids");
    EXPECT_EQ(std::vector<int32_t>(&ids(89, 1, 0), &ids(89, 1, 0) + 4),
              (std::vector<int32_t>{0, 9, 10, 11}));
    const Tensor<int64_t, 1> position = results_->read<int64_t, 1>("/queries/3/position");
    const Tensor<int64_t, 1> sequence = results_->read<int64_t, 1>("/queries/3/sequence");
    EXPECT_EQ(position(89), 89);
    EXPECT_EQ(position(90), 0);
    EXPECT_EQ(sequence(90), 1);
}

}  // namespace
}  // namespace msa::test
