// SPDX-License-Identifier: MIT
// msa-fit-indexer on every backend, and it and msa-compare on one whose memory the host cannot
// touch. (msa-analyze gives a device bf16, which cpu does not compute.)
#include <nlohmann/json.hpp>

#include "core/io/activations.h"
#include "core/select/selector.h"
#include "core/select/token_selector.h"
#include "core/tolerance.h"
#include "tests/experiments/fit_test.h"
#include "tests/support/far_backend.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

class FarAway : public Fit {
protected:
    FarAway() { register_far_backend(); }
};

TEST_F(FarAway, AFitIsTheSameBitForBit) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 150, 192}, .layers = {3, 5}});
    for (const std::string jobs : {"1", "2"}) {
        for (const std::string backend : {"cpu", "far"}) {
            const Outcome outcome =
                run({file}, backend, {"--jobs", jobs, "--overwrite", "--backend", backend});
            ASSERT_EQ(outcome.code, 0) << outcome.err;
        }
        EXPECT_TRUE(same_data(path("far/results.h5"), path("cpu/results.h5")));
    }
    const auto index_k = [&](const std::string& of) {
        return io::ActivationsReader(path(of + "/indexer.h5"))
            .read(3, io::Field::index_k, {0, 192});
    };
    const Tensor<float, 3> far = index_k("far"), near = index_k("cpu");
    EXPECT_TRUE(std::equal(far.data(), far.data() + far.size(), near.data()));
}

class FarComparison : public FarAway {
protected:
    void compare(const std::vector<std::string>& selectors) {
        std::string names;
        for (const std::string& name : selectors) names += (names.empty() ? "" : ",") + name;
        const std::string file = make("a.h5");
        for (const std::string backend : {"cpu", "far"}) {
            const Outcome outcome =
                kCompare({file, "--out", path(backend), "--backend", backend, "--block-size", "8",
                          "--budgets", "32,64", "--threads", "1", "--selectors", names});
            ASSERT_EQ(outcome.code, 0) << outcome.err;
        }
    }
};

TEST_F(FarComparison, OfBlocksIsTheSameBitForBit) {
    std::vector<std::string> selectors;
    for (const std::string& name : list_selectors())
        if (const Policy::Needs needs = make_selector(name)->needs();
            needs.phases != Phases::decode && !needs.previous_layer)
            selectors.push_back(name);
    compare(selectors);
    EXPECT_TRUE(same_data(path("far/results.h5"), path("cpu/results.h5")));
}

// Far away the backend attends to the tokens, as blocks of one; cpu has a form of its own.
TEST_F(FarComparison, OfTokensIsTheSameButForRoundings) {
    compare(list_token_selectors());
    const auto rows = [&](const std::string& of) {
        return nlohmann::json::parse(file_text(path(of + "/summary.json")))["rows"];
    };
    const nlohmann::json far = rows("far"), near = rows("cpu");
    ASSERT_EQ(far.size(), near.size());
    ASSERT_GE(near.size(), list_token_selectors().size());
    // lse, of some hundred keys and logits below 8, is a float: the mass is off by as much.
    const double bound = 4 * lse_bound(logit_bound(0.25, 6, 6, 16), 200, 16);
    for (size_t n = 0; n < near.size(); ++n) {
        EXPECT_EQ(far[n]["selector"], near[n]["selector"]);
        EXPECT_EQ(far[n]["tokens_read"], near[n]["tokens_read"]);
        for (const char* metric : {"mass_kept", "output_error"})
            EXPECT_NEAR(far[n][metric].get<double>(), near[n][metric].get<double>(), bound)
                << near[n]["selector"] << " " << metric;
    }
}

TEST_F(FarAway, ATeacherThatTheBackendLacksIsRefused) {
    const Outcome outcome = run({write("a.h5")}, "out", {"--backend", "far", "--teacher", "max"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("--teacher is max, which --backend far cannot: it takes the mean"),
              std::string::npos)
        << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(path("out")));
}

/// A backend and a teacher.
using BackendParam = std::tuple<std::string, std::string>;
class FitBackend : public Fit, public testing::WithParamInterface<BackendParam> {};

TEST_P(FitBackend, FollowsTheReference) {
    const auto& [backend, teacher] = GetParam();
    MSA_SKIP_UNLESS_USABLE(backend);
    const Linear spec;
    const std::string file = write("a.h5", spec);
    const auto fit = [&, by = teacher](const std::string& on) {
        return run({file}, on, {"--backend", on, "--teacher", by});
    };
    ASSERT_EQ(fit("reference").code, 0);
    const Outcome outcome = fit(backend);
    ASSERT_EQ(outcome.code, 0) << outcome.err;

    const FitBounds bound =
        bounds_of("reference", spec, teacher == "max" ? Teacher::max : Teacher::mean);
    const auto near = [&, on = backend](const std::string& name, double most) {
        const std::vector<double> got = curve(on, name), want = curve("reference", name);
        ASSERT_EQ(got.size(), want.size());
        for (size_t n = 0; n < got.size(); ++n)
            EXPECT_NEAR(got[n], want[n], most) << name << ' ' << n;
    };
    near("train/kl", bound.loss);
    near("held_out/kl", bound.loss);
    near("held_out/entropy_teacher", bound.step.kl);
    near("held_out/oracle_mass", bound.step.mass);
    near("held_out/mass_kept", bound.step.mass);
    near("held_out/block_recall", 0);
}

INSTANTIATE_TEST_SUITE_P(All, FitBackend,
                         testing::Combine(testing::Values("cpu", "cuda"),
                                          testing::Values("mean", "max")),
                         [](const testing::TestParamInfo<BackendParam>& of) {
                             return std::get<0>(of.param) + "_" + std::get<1>(of.param);
                         });

}  // namespace
}  // namespace msa::test
