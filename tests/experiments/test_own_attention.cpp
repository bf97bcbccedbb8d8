// SPDX-License-Identifier: MIT
// Captures of models with a window, a soft cap and sinks: what msa-analyze and msa-compare say of
// them is recomputed here in double precision from the values of the file alone.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "core/selection.h"
#include "core/tolerance.h"
#include "tests/experiments/cli.h"
#include "tests/experiments/report_of.h"

namespace msa::test {
namespace {

using nlohmann::json;

constexpr int64_t kOwnTokens = 150, kOwnHeads = 4, kOwnGroup = 2, kOwnDims = 16, kOwnBlock = 8;
constexpr int64_t kOwnWindow = 17;
constexpr double kOwnCap = 3, kOwnScale = 0.5;
const std::vector<double> kOwnSinks{0.5, -1, 2, 0};

/// What one query and head attends to.
struct Weights {
    int64_t start = 0;       // first token of its sequence
    std::vector<double> of;  // [tokens of the sequence up to the query] probabilities
    double sink = 0, lse = 0, entropy = 0;
};

class OwnAttentionOfModels : public CliTest {
protected:
    using Own = std::map<std::string, std::vector<double>>;

    void write(const Own& own) {
        own_ = own;
        file_ = make("a.h5", {.layers = {0, 3}, .own_attention = own});
        const io::ActivationsReader reader(file_);
        q_ = reader.read(3, io::Field::q, {0, kOwnTokens});
        k_ = reader.read(3, io::Field::k, {0, kOwnTokens});
        v_ = reader.read(3, io::Field::v, {0, kOwnTokens});
    }
    Outcome run(const Program& program, std::vector<std::string> more) const {
        std::vector<std::string> args{file_,       "--layers",     "3", "--out",
                                      path("out"), "--block-size", "8", "--overwrite"};
        args.insert(args.end(), more.begin(), more.end());
        return program(args);
    }
    double own(const char* name, double otherwise) const {
        const auto found = own_.find(name);
        return found == own_.end() ? otherwise : found->second.front();
    }

    /// On the blocks `ids` of the query's sequence, on all of them where that is empty.
    Weights attend(int64_t i, int64_t h, std::span<const int32_t> ids = {}) const {
        Weights w;
        w.start = i < 90 ? 0 : 90;
        const int64_t seen = i - w.start + 1;
        const double cap = own("softcap", 0);
        double sum = own_.contains("sinks") ? std::exp(kOwnSinks[static_cast<size_t>(h)]) : 0;
        std::vector<double> logits;
        for (int64_t j = 0; j < seen; ++j) {
            double dot = 0;
            for (int64_t d = 0; d < kOwnDims; ++d)
                dot += double{q_(i, h, d)} * double{k_(w.start + j, h / kOwnGroup, d)};
            logits.push_back(cap > 0 ? cap * std::tanh(kOwnScale * dot / cap) : kOwnScale * dot);
            const bool kept =
                ids.empty() || std::find(ids.begin(), ids.end(), j / kOwnBlock) != ids.end();
            const bool shown =
                static_cast<double>(j) > static_cast<double>(seen - 1) - own("sliding_window", 1e9);
            w.of.push_back(kept && shown ? std::exp(logits.back()) : 0);
            sum += w.of.back();
        }
        for (double& weight : w.of) {
            weight /= sum;
            if (weight > 0) w.entropy -= weight * std::log(weight);
        }
        w.lse = std::log(sum);
        if (own_.contains("sinks")) w.sink = std::exp(kOwnSinks[static_cast<size_t>(h)]) / sum;
        if (w.sink > 0) w.entropy -= w.sink * std::log(w.sink);
        return w;
    }
    double output(const Weights& w, int64_t h, int64_t d) const {
        double sum = 0;
        for (size_t j = 0; j < w.of.size(); ++j)
            sum += w.of[j] * double{v_(w.start + static_cast<int64_t>(j), h / kOwnGroup, d)};
        return sum;
    }

    Problem problem() const {
        const io::ActivationsReader reader(file_);
        return io::layer_problem(reader.info(), reader.layer(3), kOwnBlock);
    }
    double largest_v() const {
        double largest = 0;
        for (int64_t at = 0; at < v_.size(); ++at)
            largest = std::max(largest, std::abs(double{v_.data()[at]}));
        return largest;
    }

    Own own_;
    std::string file_;
    Tensor<float, 3> q_, k_, v_;
};

const std::map<std::string, std::vector<double>> kOwnAttention{
    {"sliding_window", {double{kOwnWindow}}}, {"softcap", {kOwnCap}}, {"sinks", kOwnSinks}};

TEST_F(OwnAttentionOfModels, IsWhatAnalyzeComputes) {
    write(kOwnAttention);
    const Outcome outcome = run(kAnalyze, {"--top-k", "4", "--sink-tokens", "3", "--selectors",
                                           "oracle,index", "--dump", "outputs,mass", "--all-rows"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("warning"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("layer 3 caps its logits"), std::string::npos) << outcome.err;

    const io::ResultsReader results(path("out/results.h5"));
    EXPECT_EQ(results.number("/layers/3", "window"), kOwnWindow);
    EXPECT_EQ(results.number("/layers/3", "softcap"), kOwnCap);
    EXPECT_EQ((results.read<float, 1>("/layers/3/sinks")(2)), 2.0F);
    EXPECT_TRUE(std::isnan(results.number("/metrics/dense/3", "entropy")));

    const double logit = main_logit_bound(problem(), largest_norm<3>(q_), largest_norm<3>(k_));
    const double lse_off = lse_bound(logit, 90, 10) + sink_lse_bound();
    const double out_off = attention_bound(logit, 90, largest_v(), Element::f32, Element::f32) +
                           sink_output_bound(lse_off, Element::f32, largest_v());
    const double mass_off = mass_bound(logit, 91);
    const auto check = [&](const std::string& name) {
        const auto out = results.read<float, 3>("/outputs/" + name + "/3/out");
        const auto lse = results.read<float, 2>("/outputs/" + name + "/3/lse");
        Tensor<int32_t, 3> ids;
        if (name != "dense") ids = results.read<int32_t, 3>("/select/" + name + "/3/ids");
        for (int64_t i = 0; i < kOwnTokens; ++i)
            for (int64_t h = 0; h < kOwnHeads; ++h) {
                const Weights w =
                    name == "dense" ? attend(i, h) : attend(i, h, selected(ids, i, h / kOwnGroup));
                ASSERT_NEAR(lse(i, h), w.lse, lse_off) << name << ' ' << i << ' ' << h;
                for (int64_t d = 0; d < kOwnDims; ++d)
                    ASSERT_NEAR(out(i, h, d), output(w, h, d), out_off) << name << ' ' << i;
            }
    };
    for (const std::string name : {"dense", "oracle", "index"}) check(name);

    const auto mass = results.read<float, 3>("/mass/3");
    std::vector<double> sink(kOwnHeads, 0.0), first_tokens(kOwnHeads, 0.0);
    for (int64_t i = 0; i < kOwnTokens; ++i)
        for (int64_t r = 0; r < kOwnHeads / kOwnGroup; ++r) {
            std::vector<double> want(12, 0.0);
            for (int64_t h = r * kOwnGroup; h < (r + 1) * kOwnGroup; ++h) {
                const Weights w = attend(i, h);
                for (size_t j = 0; j < w.of.size(); ++j) {
                    want[j / kOwnBlock] += w.of[j] / kOwnGroup;
                    if (j < 3) first_tokens[static_cast<size_t>(h)] += w.of[j] / kOwnTokens;
                }
                sink[static_cast<size_t>(h)] += w.of[0] / kOwnTokens;
            }
            for (int64_t b = 0; b < 12; ++b)
                ASSERT_NEAR(mass(i, r, b), want[static_cast<size_t>(b)], mass_off) << i << ' ' << b;
        }
    const auto sink_mass = results.read<double, 1>("/metrics/dense/3/sink_mass");
    const auto of_first = results.read<double, 1>("/metrics/dense/3/sink_mass_first_tokens");
    for (int64_t h = 0; h < kOwnHeads; ++h) {
        EXPECT_NEAR(sink_mass(h), sink[static_cast<size_t>(h)], std::expm1(lse_off));
        EXPECT_NEAR(of_first(h), first_tokens[static_cast<size_t>(h)], 3 * std::expm1(lse_off));
    }
}

TEST_F(OwnAttentionOfModels, EntropyCountsTheSink) {
    write({{"sliding_window", {double{kOwnWindow}}}, {"sinks", kOwnSinks}});
    const Outcome outcome = run(kAnalyze, {"--top-k", "4", "--selectors", "oracle"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const io::ResultsReader results(path("out/results.h5"));
    const auto entropy = results.read<double, 1>("/metrics/dense/3/entropy");
    const auto sparse = results.read<double, 1>("/metrics/oracle/3/entropy_sparse");
    const auto ids = results.read<int32_t, 3>("/select/oracle/3/ids");
    // lse and the mean key, and exp(sink - lse) times the sink, are rounded to float.
    const double q = largest_norm<3>(q_), k = largest_norm<3>(k_);
    const double logit = main_logit_bound(problem(), q, k);
    const double lse_off = lse_bound(logit, 90, 10) + sink_lse_bound();
    const double off =
        entropy_bound(10, kOwnScale, q, k) + lse_off + 2 * std::expm1(lse_off) +
        kOwnScale * q * (weight_bound(logit, 90) + gamma(92) + std::expm1(lse_off)) * k;
    for (int64_t h = 0; h < kOwnHeads; ++h) {
        double want = 0, want_sparse = 0;
        for (int64_t i = 0; i < kOwnTokens; ++i) {
            want += attend(i, h).entropy / kOwnTokens;
            want_sparse += attend(i, h, selected(ids, i, h / kOwnGroup)).entropy / kOwnTokens;
        }
        EXPECT_NEAR(entropy(h), want, off);
        EXPECT_NEAR(sparse(h), want_sparse, off);
    }
}

TEST_F(OwnAttentionOfModels, IsWhatCompareComputes) {
    write(kOwnAttention);
    // A budget of 32 holds more of the newest tokens than the window: all that the sinks leave.
    double left = 0;
    int64_t rows = 0;
    for (int64_t i = 0; i < kOwnTokens; ++i) {
        if ((i < 90 ? i : i - 90) < 32) continue;  // sees no more than the budget
        ++rows;
        for (int64_t h = 0; h < kOwnHeads; ++h) left += (1 - attend(i, h).sink) / kOwnHeads;
    }
    left /= static_cast<double>(rows);
    const double logit = main_logit_bound(problem(), largest_norm<3>(q_), largest_norm<3>(k_));
    const double off = token_mass_bound(logit, 90, 10) + sink_lse_bound();
    std::map<std::string, double> oracle;
    for (const std::string share : {"group", "head"}) {
        const Outcome outcome = run(
            kCompare, {"--budgets", "32", "--share", share, "--selectors",
                       "oracle,mean-key,previous-layer,snapkv,nsa,streaming-llm,window-tokens"});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        EXPECT_EQ(outcome.err.find("warning"), std::string::npos) << outcome.err;
        const json all = json::parse(file_text(path("out/summary.json")));
        for (const json& row : selector_rows(all)) {
            const std::string name = row["selector"];
            EXPECT_LE(row["mass_kept"], left + off) << name;
            if (name == "oracle") oracle[share] = row["mass_kept"];
            if (name != "window-tokens") continue;
            EXPECT_NEAR(row["mass_kept"], left, off) << share;
            EXPECT_LT(row["group_output_error"], 1e-5) << share;
        }
        const io::ResultsReader results(path("out/results.h5"));
        EXPECT_EQ(results.number("/layers/3", "window"), kOwnWindow);
    }
    EXPECT_GE(oracle["head"], oracle["group"] - off);  // a choice for each head keeps more
}

TEST_F(OwnAttentionOfModels, WhatIsNotComputedIsStillSaid) {
    write({{"attention_chunk", {40}}, {"softcap", {kOwnCap}}});
    const Outcome outcome = run(kAnalyze, {"--top-k", "4", "--selectors", "oracle"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("/layers/3 has attention_chunk: the model's own attention is not "
                               "the attention computed here"),
              std::string::npos)
        << outcome.err;
    write(kOwnAttention);
    const Outcome bench = kBench({"--input", file_, "--out", path("b.json"), "--stages",
                                  "dense_attention", "--samples", "1"});
    EXPECT_NE(bench.err.find("/layers/3 has sinks, sliding_window, softcap: the model's own "
                             "attention is not the plain causal attention computed here"),
              std::string::npos)
        << bench.err;
}

}  // namespace
}  // namespace msa::test
