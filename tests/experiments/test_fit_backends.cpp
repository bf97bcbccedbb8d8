// SPDX-License-Identifier: MIT
// msa-fit-indexer on every backend, and it and msa-compare on one whose memory the host cannot
// touch. (msa-analyze gives a device bf16, which cpu does not compute.)
#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/io/activations.h"
#include "core/io/results.h"
#include "core/select/selector.h"
#include "core/select/token_selector.h"
#include "core/tolerance.h"
#include "tests/experiments/fit_test.h"
#include "tests/experiments/report_of.h"
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
    for (const std::string backend : {"cpu", "far"}) {
        const Outcome outcome = run({file}, backend, {"--backend", backend});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
    }
    EXPECT_TRUE(same_data(path("far/results.h5"), path("cpu/results.h5")));
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
        const std::string file = make("a.h5", {.rotary_dim = 8});
        for (const std::string backend : {"cpu", "far"}) {
            const Outcome outcome =
                kCompare({file, "--out", path(backend), "--backend", backend, "--block-size", "8",
                          "--budgets", "32,64", "--threads", "1", "--selectors", names});
            ASSERT_EQ(outcome.code, 0) << outcome.err;
        }
    }
    /// How far |o - o_dense| of so many rows of a group may differ between the two forms of o.
    double distance(const std::string& layer, int64_t rows) const {
        const io::ActivationsReader file(path("a.h5"));
        const auto norm = [&](io::Field field) {
            return largest_norm<3>(
                file.read(std::stoll(layer), field, {0, file.info().tokens()}).view());
        };
        const Problem p = io::layer_problem(file.info(), file.layer(std::stoll(layer)), 8);
        const double q = norm(io::Field::q), k = norm(io::Field::k), v = norm(io::Field::v);
        const double keys = 90, logit = main_logit_bound(p, q, k);
        const double lse = p.softmax_scale() * q * k + std::log(keys);
        const double channel = joined_bound(logit, keys, lse, v) +
                               attention_bound(logit, keys, v, Element::f32, Element::f32);
        return channel * std::sqrt(static_cast<double>(rows * p.group_size() * p.head_dim));
    }
    /// The same of the output error of a group of a layer.
    double relative_distance(const io::ResultsReader& results, const std::string& config,
                             const std::string& layer, int64_t group) const {
        const auto rows = results.read<int64_t, 1>("/query_blocks/" + layer + "/rows");
        const auto errors =
            results.read<double, 2>("/sums/" + layer + "/" + config + "/group_output_error/sums");
        double sum = 0;
        for (int64_t m = 0; m < errors.extent(0); ++m)
            sum += errors(m, errors.extent(1) / 2 + group);
        return distance(layer,
                        std::accumulate(rows.data(), rows.data() + rows.size(), int64_t{0})) /
               std::sqrt(sum);
    }
};

/// A column of the outputs' errors or of sinks, or of its intervals.
static bool is_rounded_column(const std::string& path) {
    return path.starts_with("/tables/") &&
           std::ranges::any_of(std::array{"output_error", "sink", "largest_difference_from_dense"},
                               [&](const char* of) { return path.find(of) != path.npos; });
}

// Far away the backend attends to one choice after the other; on the host attention over a choice
// is put together from attention to single blocks. Of all that is written, the distance from dense
// attention alone shows it.
TEST_F(FarComparison, OfBlocksIsTheSameButForRoundingsOfOutputs) {
    std::vector<std::string> selectors;
    for (const std::string& name : list_selectors())
        if (const Policy::Needs needs = make_selector(name)->needs();
            needs.phases != Phases::decode && !needs.previous_layer && !needs.gate)
            selectors.push_back(name);
    compare(selectors);
    const std::string here = path("cpu/results.h5"), there = path("far/results.h5");
    const auto of_blocks = [](const std::string& path) {
        return path.ends_with("/group_output_error/sums");
    };
    const auto of_groups = [](const std::string& path) {
        return path.starts_with("/metrics/") && path.ends_with("/group_output_error");
    };
    const auto of_sinks = [](const std::string& path) {  // by the lse over a choice
        return path.ends_with("/sink/sums") || path.ends_with("/sink_mass_sparse");
    };
    EXPECT_TRUE(same_data(there, here, [&](const std::string& path) {
        return of_blocks(path) || of_groups(path) || of_sinks(path) || is_rounded_column(path);
    }));

    const io::ResultsReader near(here), far(there);
    size_t compared = 0;
    for (const io::DatasetInfo& dataset : near.datasets("/")) {
        const std::string& at = dataset.path;
        if (of_blocks(at)) {  // "/sums/<l>/..."
            const std::string layer = at.substr(6, 1);
            const Tensor<double, 2> got = far.read<double, 2>(at), want = near.read<double, 2>(at);
            const auto rows = near.read<int64_t, 1>("/query_blocks/" + layer + "/rows");
            const int64_t groups = want.extent(1) / 2;
            for (int64_t m = 0; m < want.extent(0); ++m)
                for (int64_t r = 0; r < groups; ++r) {
                    EXPECT_EQ(got(m, groups + r), want(m, groups + r)) << at;
                    EXPECT_NEAR(std::sqrt(got(m, r)), std::sqrt(want(m, r)),
                                distance(layer, rows(m)))
                        << at << ", block " << m << ", group " << r;
                }
        } else if (at.ends_with("/sink/sums")) {
            const Tensor<double, 2> got = far.read<double, 2>(at), want = near.read<double, 2>(at);
            for (int64_t n = 0; n < want.size(); ++n)
                EXPECT_NEAR(got.data()[n], want.data()[n], 1e-5 * std::abs(want.data()[n])) << at;
            continue;
        } else if (of_groups(at)) {  // "/metrics/<c>/<l>/group_output_error"
            const std::filesystem::path parts(at);
            const std::string layer = parts.parent_path().filename().string();
            const std::string config = parts.parent_path().parent_path().filename().string();
            const Tensor<double, 1> got = far.read<double, 1>(at), want = near.read<double, 1>(at);
            for (int64_t r = 0; r < want.extent(0); ++r)
                EXPECT_NEAR(got(r), want(r), relative_distance(near, config, layer, r)) << at;
        } else {
            continue;
        }
        ++compared;
    }
    EXPECT_EQ(compared, size_t{8} * selectors.size());  // two of each layer and budget
}

// Far away the backend attends to the tokens, as blocks of one; cpu has a form of its own.
TEST_F(FarComparison, OfTokensIsTheSameButForRoundings) {
    compare(list_token_selectors());
    const auto rows = [&](const std::string& of) {
        return nlohmann::json(selector_rows(report_of(path(of))));
    };
    const nlohmann::json far = rows("far"), near = rows("cpu");
    ASSERT_EQ(far.size(), near.size());
    ASSERT_GE(near.size(), list_token_selectors().size());
    // lse, of some hundred keys and logits below 8, is a float: the mass is off by as much.
    const double bound = 4 * lse_bound(logit_bound(0.25, 6, 6, 16), 200, 16);
    for (size_t n = 0; n < near.size(); ++n) {
        EXPECT_EQ(far[n]["selector"], near[n]["selector"]);
        EXPECT_EQ(far[n]["tokens_read"], near[n]["tokens_read"]);
        for (const char* metric : {"mass_kept", "group_output_error"})
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

/// A backend, a teacher, and the layers that share the indexer.
using BackendParam = std::tuple<std::string, std::string, int>;
class FitBackend : public Fit, public testing::WithParamInterface<BackendParam> {};

TEST_P(FitBackend, FollowsTheReference) {
    const auto& [backend, teacher, layers] = GetParam();
    MSA_SKIP_UNLESS_USABLE(backend);
    Linear spec;
    if (layers == 2) spec.layers = {3, 4};
    const std::string file = write("a.h5", spec);
    const auto fit = [&, by = teacher, every = std::to_string(layers)](const std::string& on) {
        return run({file}, on, {"--backend", on, "--teacher", by, "--every", every});
    };
    ASSERT_EQ(fit("reference").code, 0);
    const Outcome outcome = fit(backend);
    ASSERT_EQ(outcome.code, 0) << outcome.err;

    // Of two layers a curve is the mean: it is off by no more than the farther one of both may be.
    double loss = 0, kl = 0, mass = 0;
    for (const int64_t layer : std::vector<int64_t>(spec.layers)) {
        spec.layers = {layer};
        const FitBounds bound =
            bounds_of("reference", spec, teacher == "max" ? Teacher::max : Teacher::mean);
        loss = std::max(loss, bound.loss);
        kl = std::max(kl, bound.step.kl);
        mass = std::max(mass, bound.step.mass);
    }
    const auto near = [&, on = backend](const std::string& name, double most) {
        const std::vector<double> got = curve(on, name), want = curve("reference", name);
        ASSERT_EQ(got.size(), want.size());
        for (size_t n = 0; n < got.size(); ++n)
            EXPECT_NEAR(got[n], want[n], most) << name << ' ' << n;
    };
    near("train/kl", loss);
    near("held_out/kl", loss);
    near("held_out/entropy_teacher", kl);
    near("held_out/oracle_mass", mass);
    near("held_out/mass_kept", mass);
    near("held_out/block_recall", 0);
}

INSTANTIATE_TEST_SUITE_P(All, FitBackend,
                         testing::Combine(testing::Values("cpu", "cuda"),
                                          testing::Values("mean", "max"), testing::Values(1, 2)),
                         [](const testing::TestParamInfo<BackendParam>& of) {
                             return std::get<0>(of.param) + "_" + std::get<1>(of.param) +
                                    (std::get<2>(of.param) == 2 ? "_shared" : "");
                         });

}  // namespace
}  // namespace msa::test
