// SPDX-License-Identifier: MIT
// The element types of operands: no program rounds what nobody asked it to round, and the same file
// gives the same selections on every backend.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "core/number/convert.h"
#include "core/select/selector.h"
#include "core/tolerance.h"
#include "experiments/driver/operands.h"
#include "tests/experiments/cli.h"
#include "tests/support/far_backend.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

using nlohmann::json;

std::vector<std::string> backends_and_far() {
    register_far_backend();
    std::vector<std::string> names;  // far among them
    for (const BackendInfo& info : known_backends()) names.push_back(info.name);
    return names;
}

class EveryBackend : public CliTest, public testing::WithParamInterface<std::string> {
protected:
    Outcome analyze(const std::string& file, const std::string& backend, const std::string& out,
                    std::vector<std::string> more) const {
        more.insert(more.end(), {file, "--out", path(out), "--backend", backend, "--block-size",
                                 "32", "--top-k", "8", "--dump", "mass,scores"});
        return kAnalyze(more);
    }
    io::ResultsReader results(const std::string& out) const {
        return io::ResultsReader(path(out + "/results.h5"));
    }
    /// The analysed queries of a layer.
    static Problem problem(const std::string& file, const io::ResultsReader& of, int64_t layer) {
        const io::ActivationsReader reader(file);
        const auto tokens = of.read<int64_t, 1>(concat("/queries/", layer, "/token"));
        return io::layer_problem(reader.info(), reader.layer(layer), 32)
            .with_query_rows({tokens.data(), static_cast<size_t>(tokens.size())});
    }
    static double norm(const std::string& file, int64_t layer, io::Field field) {
        const io::ActivationsReader reader(file);
        const Tensor<float, 3> all = reader.read(layer, field, {0, reader.info().tokens()});
        return largest_norm(all.view());
    }
    /// Selections of one backend by the scores of another; both are off by at most `bound`.
    static void expect_same(const Problem& p, const io::ResultsReader& scores_of,
                            const io::ResultsReader& ids_of, const std::string& at, double bound) {
        const auto scores = scores_of.read<float, 3>("/scores" + at);
        const auto ids = ids_of.read<int32_t, 3>("/select" + at + "/ids");
        EXPECT_EQ(selection_fault(p, {.top_k = 8}, scores.view(), ids.view(), 2 * bound), "") << at;
    }
};

/// The bound of a block's mass between queries and keys of a layer.
double bound_of_mass(const Problem& p, double q_norm, double k_norm) {
    return mass_bound(logit_bound(p.softmax_scale(), q_norm, k_norm, p.head_dim),
                      static_cast<double>(p.keys()));
}

TEST_P(EveryBackend, SelectsTheSameOnOneRealFile) {
    MSA_SKIP_UNLESS_USABLE(GetParam());
    const std::string file = std::string(MSA_SOURCE_DIR) + "/data/sample.h5";  // stored in bf16
    const std::vector<std::string> options{"--selectors", "oracle",   "--sample-queries",
                                           "160",         "--layers", "20"};
    for (const std::string element : {"", "f16"}) {
        std::vector<std::string> more = options;
        if (!element.empty()) more.insert(more.end(), {"--element", element});
        ASSERT_EQ(analyze(file, "cpu", "cpu" + element, more).code, 0);
        const Outcome outcome = analyze(file, GetParam(), "other" + element, more);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        const io::ResultsReader cpu = results("cpu" + element), other = results("other" + element);
        EXPECT_EQ(other.run().element, element.empty() ? "bf16" : "f16");
        const Problem p = problem(file, cpu, 20);
        // Rounded values are no longer than twice the stored ones.
        const double grown = element.empty() ? 1 : 1 + 0x1p-8;
        const double bound = bound_of_mass(p, grown * norm(file, 20, io::Field::q),
                                           grown * norm(file, 20, io::Field::k));
        expect_same(p, cpu, other, "/oracle/20", bound);
    }
}

TEST_P(EveryBackend, SelectsTheSameOnAFileOfFloats) {
    MSA_SKIP_UNLESS_USABLE(GetParam());
    const std::string file = make("f32.h5", {.cu_seqlens = {0, 700, 1200}, .layers = {0}});
    const std::vector<std::string> options{"--selectors", "oracle,index"};
    ASSERT_EQ(analyze(file, "cpu", "cpu", options).code, 0);
    const Outcome outcome = analyze(file, GetParam(), "other", options);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const io::ResultsReader cpu = results("cpu"), other = results("other");
    EXPECT_EQ(other.run().element, "f32");
    EXPECT_EQ(other.run().index_element, "f32");
    EXPECT_EQ(other.run().computed_in, "f32");
    const Problem p = problem(file, cpu, 0);
    expect_same(p, cpu, other, "/oracle/0",
                bound_of_mass(p, norm(file, 0, io::Field::q), norm(file, 0, io::Field::k)));
    expect_same(p, cpu, other, "/index/0",
                logit_bound(p.index_scale(), norm(file, 0, io::Field::index_q),
                            norm(file, 0, io::Field::index_k), p.index_dim));
}

INSTANTIATE_TEST_SUITE_P(All, EveryBackend, testing::ValuesIn(backends_and_far()),
                         [](const auto& test) { return identifier(test.param); });

class Elements : public CliTest {
protected:
    Outcome run(const Program& program, const std::string& file, const std::string& out,
                std::vector<std::string> more) const {
        more.insert(more.end(), {file, "--out", path(out)});
        return program(more);
    }
};

/// The same file with layers stored in `element`.
void store_in(Element element, const std::string& exact, const std::string& rounded) {
    const io::ActivationsReader from(exact);
    io::ActivationsInfo info = from.info();
    for (io::LayerInfo& layer : info.layers) layer.element = element;
    io::ActivationsWriter to(rounded, info, false);
    for (const io::LayerInfo& layer : info.layers)
        for (io::Field field :
             {io::Field::q, io::Field::k, io::Field::v, io::Field::index_q, io::Field::index_k}) {
            const Tensor<float, 3> all = from.read(layer.layer, field, {0, info.tokens()});
            to.write(layer.layer, field, 0, 0, all);
        }
    to.finish();
}

TEST_F(Elements, ARoundedRunIsTheRunOfARoundedFile) {
    const std::string exact = make("exact.h5");
    register_far_backend();
    for (const Element element : {Element::bf16, Element::f16}) {
        const std::string name = to_string(element), rounded = path(name + ".h5");
        store_in(element, exact, rounded);
        for (const std::string backend : {"cpu", "far"}) {
            const std::vector<std::string> sizes{"--block-size", "8",    "--top-k", "4",
                                                 "--backend",    backend};
            std::vector<std::string> asked = sizes;
            asked.insert(asked.end(), {"--element", name, "--index-element", name});
            const std::string out = name + backend;
            ASSERT_EQ(run(kAnalyze, exact, out + "-asked", asked).code, 0);
            ASSERT_EQ(run(kAnalyze, exact, out + "-exact", sizes).code, 0);
            ASSERT_EQ(run(kAnalyze, rounded, out + "-stored", sizes).code, 0);
            const auto file = [&](const char* of) { return path(out + of + "/results.h5"); };
            EXPECT_TRUE(same_data(file("-asked"), file("-stored")));
            EXPECT_FALSE(same_data(file("-asked"), file("-exact")));
            const io::ResultsReader results(file("-asked"));
            EXPECT_EQ(results.run().element, name);
            EXPECT_EQ(results.run().index_element, name);
            EXPECT_EQ(results.run().computed_in,
                      backend == "cpu"
                          ? "f32"
                          : name + "; attention outputs on " + name + " operands in " + name);
        }
    }
}

TEST(ElementRecord, SaysWhereAttentionOutputsAreRounded) {
    using experiments::ElementPair, experiments::LayerElements, experiments::record_elements;
    constexpr ElementPair kFloat{}, kHalf{Element::bf16, Element::bf16},
        kF16{Element::f16, Element::f16};
    io::RunRecord record;
    record_elements(std::vector<LayerElements>{{kFloat, kFloat}}, record);
    EXPECT_EQ(record.computed_in, "f32");
    record_elements(std::vector<LayerElements>{{kHalf, kHalf}}, record);
    EXPECT_EQ(record.computed_in, "bf16; attention outputs on bf16 operands in bf16");
    record_elements(std::vector<LayerElements>{{kF16, kF16}, {kFloat, kFloat}}, record);
    EXPECT_EQ(record.computed_in, "f16, f32; attention outputs on f16 operands in f16");
}

TEST_F(Elements, EveryProgramPrintsAndStoresThem) {
    const std::string file = make("a.h5");
    for (const Program& program : {kAnalyze, kCompare}) {
        const Outcome outcome =
            run(program, file, program.name,
                {"--block-size", "8", program.name == "msa-compare" ? "--budgets" : "--top-k",
                 program.name == "msa-compare" ? "32" : "4", "--index-element", "e4m3"});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        EXPECT_NE(outcome.out.find("Operands in f32, index operands in e4m3; computed in f32."),
                  std::string::npos)
            << outcome.out;
        EXPECT_EQ(io::ResultsReader(path(program.name + "/results.h5")).run().index_element,
                  "e4m3");
        const Outcome resumed =
            run(program, file, program.name, {"--block-size", "8", "--element", "bf16"});
        EXPECT_EQ(resumed.code, 2);
    }
}

TEST_F(Elements, NoIndexerHasNoTypeToChoose) {
    const std::string file = make("a.h5", {.index_dim = 0});
    for (const Program& program : {kAnalyze, kCompare}) {
        std::vector<std::string> options{"--block-size", "8", "--index-element", "e4m3"};
        if (program.name == kAnalyze.name) options.insert(options.end(), {"--top-k", "2"});
        const Outcome outcome = run(program, file, program.name, options);
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find("--index-element rounds operands of an indexer, and the layers "
                                   "have none; msa-fit-indexer makes them"),
                  std::string::npos)
            << outcome.err;
    }
}

TEST_F(Elements, AValueBeyondTheTypeIsRefused) {
    const std::string file = make("a.h5");
    poke(file, "/layers/3/k", {7, 1, 2}, 1e6F);
    const Outcome outcome = run(kAnalyze, file, "out", {"--element", "f16"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("/layers/3/k holds 1e+06, which is beyond the 65504 that --element "
                               "f16 can hold"),
              std::string::npos)
        << outcome.err;
}

TEST_F(Elements, AFloatBeyondBfloat16IsRefusedNotMadeInfinite) {
    const std::string file = make("a.h5");
    poke(file, "/layers/3/k", {7, 1, 2}, 3.4e38F);
    const Outcome outcome = run(kAnalyze, file, "out", {"--element", "bf16"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("/layers/3/k holds 3.4e+38, which is beyond the 3.38953e+38 that "
                               "--element bf16 can hold"),
              std::string::npos)
        << outcome.err;
}

TEST(Convert, KnowsTheLargestValueOfEveryElement) {
    EXPECT_EQ(largest_value(Element::e4m3), 448);
    EXPECT_EQ(largest_value(Element::f16), 65504);
    EXPECT_EQ(largest_value(Element::bf16), 0x1.FEp127);
    EXPECT_EQ(largest_value(Element::f32), double{std::numeric_limits<float>::max()});
}

TEST(Convert, RoundsToTheNearestOfEveryElement) {
    const std::vector<float> values{1.0F, 1.0F + 0x1p-8F, -3.14159F, 0x1p-20F, 300.0F};
    for (Element element : {Element::f32, Element::f16, Element::bf16, Element::e4m3}) {
        const double unit = element == Element::f32 ? 0 : storage_roundoff(element);
        std::vector<float> rounded = values, back(values.size());
        round_to(element, rounded);
        std::vector<char> stored(values.size() * static_cast<size_t>(element_bytes(element)));
        encode(values, element, stored.data());
        decode(stored.data(), element, back);
        EXPECT_EQ(rounded, back);
        for (size_t n = 0; n < values.size(); ++n) {
            EXPECT_LE(std::fabs(rounded[n] - values[n]),
                      std::max(unit * std::fabs(values[n]), storage_floor(element)))
                << to_string(element) << values[n];
        }
    }
}

TEST(Convert, StaysWithinTheBoundsOfStorageDownToTheirFloor) {
    for (Element element : {Element::f16, Element::bf16, Element::e4m3}) {
        double most = 0, most_below = 0;  // errors, as shares of the bound that counts
        for (double value = 0x1p-140; value < 400; value *= 1.037) {
            const auto wanted = static_cast<float>(value);
            std::vector<float> stored{wanted};
            round_to(element, stored);
            const double error = std::fabs(double{stored[0]} - double{wanted});
            const double relative = storage_roundoff(element) * value;
            const bool below = relative < storage_floor(element);
            EXPECT_LE(error, below ? storage_floor(element) : relative) << value;
            EXPECT_LE(error, stored_bound(element, value)) << value;
            double& share = below ? most_below : most;
            share = std::max(share, error / (below ? storage_floor(element) : relative));
        }
        EXPECT_GT(most, 0.9) << to_string(element);  // neither bound is loose
        EXPECT_GT(most_below, 0.9) << to_string(element);
    }
}

}  // namespace
}  // namespace msa::test
