// SPDX-License-Identifier: MIT
// msa-fit-indexer --every and --groups: what teaches an indexer that layers share, what the layers
// that take its ids have in indexer.h5, and what other programs make of it.
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "tests/experiments/fit_test.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

class FitShared : public Fit, public testing::WithParamInterface<const char*> {
protected:
    std::vector<std::string> with(std::vector<std::string> more) const {
        if (is_instance()) more.insert(more.end(), {"--architecture", GetParam()});
        return more;
    }
    static json rows_of(const Outcome& outcome) {
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return selector_rows(json::parse(outcome.out));
    }
    static double mean_of_rows(const json& rows, const std::string& selector, const char* name) {
        double sum = 0;
        int count = 0;
        for (const json& row : rows)
            if (row["selector"] == selector) {
                sum += row[name].get<double>();
                ++count;
            }
        return sum / count;
    }

private:
    static bool is_instance() {
        return testing::UnitTest::GetInstance()->current_test_info()->value_param() != nullptr;
    }
};
using FitSharedAll = FitShared;

std::string selector_of(const std::string& architecture) {
    return architecture == "msa" ? "index" : architecture;
}

INSTANTIATE_TEST_SUITE_P(Architectures, FitShared,
                         testing::Values("msa", "dsa", "seerattention", "qsa"));

/// The mean of a loss and of the same loss is that loss, and so are its gradients, bit for bit.
TEST_P(FitShared, ALayerLikeItTeachesNothingElse) {
    const std::string twins = write("twins.h5", {.layers = {3, 4}, .alike = true});
    const std::string one = write("one.h5");
    ASSERT_EQ(run({twins}, "two", with({"--every", "4"})).code, 0);
    ASSERT_EQ(run({one}, "one", with({})).code, 0);
    for (const char* name : {"train/kl", "held_out/kl", "held_out/mass_kept"})
        EXPECT_EQ(curve("two", name), curve("one", name)) << name;
    const io::ActivationsReader shared(path("two/indexer.h5")), own(path("one/indexer.h5"));
    for (io::Field field : io::kFields) {
        ASSERT_EQ(shared.layer(4).has(field), own.layer(3).has(field));
        if (!own.layer(3).has(field)) continue;
        const QueryRange all{0, own.info().rows(own.layer(3), field)};
        const Tensor<float, 3> a = shared.read(4, field, all), b = own.read(3, field, all);
        EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data())) << to_string(field);
    }
}

/// What the fit says are means over the layers, as msa-analyze finds them one by one; a layer that
/// takes ids pays nothing for them.
TEST_P(FitShared, OtherProgramsTakeTheIdsOfTheSource) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 192}, .layers = {3, 4, 5, 9}});
    const std::string selector = selector_of(GetParam());
    ASSERT_EQ(run({file}, "out", with({"--groups", "3-5"})).code, 0);
    const std::string indexer = path("out/indexer.h5");
    const io::ActivationsReader reader(indexer);
    EXPECT_FALSE(reader.layer(3).learned.source);
    EXPECT_EQ(reader.layer(4).learned.source, 3);
    EXPECT_EQ(reader.layer(5).learned.source, 3);
    EXPECT_FALSE(reader.layer(9).learned.source);
    const json fitted = report_of(path("out"));
    ASSERT_EQ(rows_of_table(fitted, "layers").size(), 2U);
    const json kept = row_of(fitted, "evaluations", {{"layer", 3}, {"is_kept", true}});
    const std::vector<std::string> of{
        "--selectors", selector + ",oracle", "--block-size", "8", "--queries", "144:", "--json"};
    std::vector<std::string> args{indexer, "--out", path("a"), "--layers", "3,4,5", "--top-k", "4"};
    args.insert(args.end(), of.begin(), of.end());
    const json analyzed = rows_of(kAnalyze(args));
    for (const char* name : {"block_recall", "score_recall", "mass_kept", "oracle_mass"})
        EXPECT_NEAR(mean_of_rows(analyzed, selector, name), kept[name].get<double>(), 1e-3) << name;
    args = {indexer, "--out", path("c"), "--budgets", "32"};
    args.insert(args.end(), of.begin(), of.end());
    const json compared = rows_of(kCompare(args));
    for (const json& row : compared) {
        if (row["selector"] != selector) continue;
        const bool takes = row["layer"] == 4 || row["layer"] == 5;
        EXPECT_EQ(row["index_flops"].get<double>() == 0, takes) << row;
        EXPECT_EQ(row["index_bytes"].get<double>() == 0, takes) << row;
    }
    const json inspected = json::parse(kInspect({indexer, "--json"}).out);
    EXPECT_EQ(inspected[0]["layers"][1]["index_source"], 3);
    EXPECT_FALSE(inspected[0]["layers"][0].contains("index_source"));
}

/// A layer's own ids are those of its source, which msa-reuse tries on it; another indexer's are
/// not.
TEST_F(FitSharedAll, TheIdsOfTheSourceAreItsOwn) {
    const std::string file = write("a.h5", {.layers = {3, 4, 5, 6}});
    ASSERT_EQ(run({file}, "out", {"--every", "2"}).code, 0);
    const Outcome reuse = kReuse(
        {path("out/indexer.h5"), "--out", path("r"), "--every", "2", "--lose", "0.9", "--json"});
    ASSERT_EQ(reuse.code, 0) << reuse.err;
    int same = 0;
    const json pairs = json::parse(reuse.out)["tables"]["pairs"]["rows"];
    for (const json& pair : pairs) {
        const bool shared =
            (pair["target"].get<int>() - 3) / 2 == (pair["source"].get<int>() - 3) / 2;
        same += shared ? 1 : 0;
        EXPECT_EQ(pair["own_recall"].get<double>() == 1, shared) << pair;
        EXPECT_EQ(pair["mass_lost"].get<double>() == 0, shared) << pair;
    }
    EXPECT_EQ(same, 6);  // each with itself, and two with their sources
}

/// With all training queries in a step, the same first weights and the same x, the first loss is
/// the mean of those that each layer has alone.
TEST_F(FitSharedAll, TheLossIsTheMeanOverTheLayers) {
    const std::string file = write("a.h5", {.layers = {3, 4}});
    const std::vector<std::string> how{"--init", "normal", "--queries-per-step", "144"};
    const auto first = [&](const std::string& out, std::vector<std::string> more, int layer) {
        more.insert(more.end(), how.begin(), how.end());
        EXPECT_EQ(run({file}, out, more).code, 0);
        return io::ResultsReader(path(out + "/results.h5"))
            .read<double, 1>(concat("/fit/", layer, "/train/kl"))(0);
    };
    const double of_3 = first("three", {"--layers", "3"}, 3),
                 of_4 = first("four", {"--layers", "4"}, 4);
    EXPECT_GT(std::fabs(of_3 - of_4), 1e-3);
    EXPECT_NEAR(first("all", {"--every", "2"}, 3), (of_3 + of_4) / 2, 1e-6);
    EXPECT_EQ(first("own", {"--every", "2", "--taught-by", "own"}, 3), of_3);
}

/// Taught by its own layer alone it becomes the one that the layer has alone, whatever takes its
/// ids; taught by all it serves them better.
TEST_F(FitSharedAll, ItIsTaughtByThoseThatAreAsked) {
    const std::string file =
        write("a.h5", {.layers = {3, 4}, .query_heads = 1, .kv_heads = 1, .rotary_dim = 8});
    const std::vector<std::string> how{"--init",       "normal", "--steps",        "150",
                                       "--lr",         "3e-2",   "--warmup-steps", "150",
                                       "--eval-every", "150"};
    const auto fit = [&](const std::string& out, std::vector<std::string> more) {
        more.insert(more.end(), how.begin(), how.end());
        ASSERT_EQ(run({file}, out, more).code, 0);
    };
    fit("alone", {"--layers", "3"});
    fit("own", {"--every", "2", "--taught-by", "own"});
    fit("all", {"--every", "2"});
    EXPECT_EQ(curve("own", "train/kl"), curve("alone", "train/kl"));
    // The seed is fixed.
    EXPECT_LT(curve("all", "held_out/kl").back(), 0.8 * curve("own", "held_out/kl").back());
    EXPECT_LT(curve("alone", "held_out/kl").back(), curve("all", "held_out/kl").back());
}

TEST_F(FitSharedAll, ThreadsChangeNoBit) {
    const std::string file = write("a.h5", {.layers = {3, 4, 5}});
    ASSERT_EQ(run({file}, "one", {"--every", "2", "--threads", "1"}).code, 0);
    ASSERT_EQ(run({file}, "three", {"--every", "2", "--threads", "3"}).code, 0);
    EXPECT_TRUE(same_results(path("one/results.h5"), path("three/results.h5")));
}

TEST_F(FitSharedAll, ProcessesOfOneSharingGiveTheBytesOfOne) {
    const std::string file = write("a.h5", {.layers = {3, 4, 5}});
    ASSERT_EQ(run({file}, "whole", {"--every", "2"}).code, 0);
    run_together("msa-fit-indexer", args({file}, "out", {"--every", "2"}), 2);
    EXPECT_TRUE(same_data(path("out/results.h5"), path("whole/results.h5")));
    EXPECT_TRUE(file_text(path("out/indexer.h5")) == file_text(path("whole/indexer.h5")));

    const Outcome refused = run({file}, "out", {"--every", "1"});
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find(path("out/results.h5") + ": is of another run, "), std::string::npos)
        << refused.err;
    EXPECT_NE(refused.err.find("every"), std::string::npos) << refused.err;
}

/// Captures whose layers take the ids of different layers are no data set.
TEST_F(FitSharedAll, CapturesOfOtherSourcesAreRefused) {
    const std::string file = write("a.h5", {.layers = {3, 4, 5}});
    for (const auto& [out, groups] : {std::pair{"all", "3-5"}, {"two", "3-4"}, {"late", "4-5"}})
        ASSERT_EQ(run({file}, out, {"--groups", groups}).code, 0);
    const auto refusal = [&](const char* first, const char* second) {
        const Outcome outcome =
            kAnalyze({path(concat(first, "/indexer.h5")), path(concat(second, "/indexer.h5")),
                      "--out", path("out"), "--block-size", "8", "--top-k", "4"});
        EXPECT_EQ(outcome.code, 2);
        return outcome.err;
    };
    const auto says = [&](const char* first, const char* second, int layer, const char* found,
                          const char* wanted) {
        const std::string said = refusal(first, second);
        EXPECT_NE(said.find(concat(path(second), "/indexer.h5: /layers/", layer,
                                   " attribute index_source is ", found, ", in ", path(first),
                                   "/indexer.h5 it is ", wanted,
                                   "; captures that are read as one data set must agree in it")),
                  std::string::npos)
            << said;
    };
    says("all", "two", 5, "missing", "3");
    says("two", "all", 5, "3", "missing");
    says("all", "late", 4, "missing", "3");
}

TEST_F(FitSharedAll, RefusesLayersThatCannotShare) {
    const auto refused = [&](const std::string& file, const std::vector<std::string>& more) {
        const Outcome outcome = run({file}, "out", more);
        EXPECT_EQ(outcome.code, 2);
        return outcome.err;
    };
    const std::string file = write("a.h5", {.layers = {3, 4}});
    EXPECT_NE(refused(file, {"--every", "2", "--groups", "3-4"}).find("exclude each other"),
              std::string::npos);
    EXPECT_NE(refused(file, {"--groups", "2-4"})
                  .find("--groups has 2-4, whose first layer is not among those chosen"),
              std::string::npos);
    EXPECT_NE(refused(file, {"--every", "0"}).find("--every is 0, must be at least 1"),
              std::string::npos);
    const std::string windows = write("windows.h5", {.layers = {3, 4}, .window_of = 4});
    EXPECT_NE(
        refused(windows, {"--every", "2", "--layers", "3,4"})
            .find("layer 3 has sliding_window none, layer 4 has 64: an indexer can be shared"),
        std::string::npos);
    EXPECT_EQ(run({windows}, "alone").code, 0);
}

}  // namespace
}  // namespace msa::test
