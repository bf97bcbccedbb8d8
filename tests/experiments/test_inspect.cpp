// SPDX-License-Identifier: MIT
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/io/h5.h"
#include "core/io/results.h"
#include "core/utf8.h"
#include "tests/experiments/cli.h"

namespace msa::test {
namespace {

using Inspect = CliTest;
using nlohmann::json;

/// Some queries of layer 3 in blocks of 8 tokens, of which msa-analyze chooses 2: its default keeps
/// all that small files have.
Outcome on_layer_3(const Program& program, const std::string& file, const std::string& out) {
    std::vector<std::string> arguments{
        file, "--out", out, "--layers", "3", "--block-size", "8", "--sample-queries", "8"};
    if (&program == &kAnalyze) arguments.insert(arguments.end(), {"--top-k", "2"});
    return program(arguments);
}

TEST_F(Inspect, SaysThatThereIsNoSuchFile) {
    const Outcome outcome = kInspect({path("nosuch")});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.err, "msa-inspect: " + path("nosuch") + ": there is no such file\n");
}

TEST_F(Inspect, ShowsTheLayersOfActivations) {
    const Outcome shown = kInspect({make("a.h5")});
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_NE(shown.out.find("a.h5: valid msa-activations version 1"), std::string::npos);
    EXPECT_NE(shown.out.find("150 in 2 sequences"), std::string::npos);
    EXPECT_EQ(shown.err, "");
}

TEST_F(Inspect, NamesTheLayersWithoutAttention) {
    const Outcome plain = kInspect({make("a.h5")});
    EXPECT_EQ(plain.out.find("softmax attention"), std::string::npos) << plain.out;
    const std::string file =
        make("b.h5", {.layers = {1, 3},
                      .model_config = R"({"text_config": {"layer_types": ["conv", "full_attention",
                          "linear_attention", "full_attention", "conv"]}})"});
    const Outcome shown = kInspect({file});
    EXPECT_EQ(shown.code, 0) << shown.err;
    for (const char* line :
         {"  Without softmax attention (conv), left as they are: layers 0, 4\n",
          "  Without softmax attention (linear_attention), left as it is: layer 2\n"})
        EXPECT_NE(shown.out.find(line), std::string::npos) << shown.out;
    EXPECT_EQ(json::parse(kInspect({file, "--json"}).out)[0]["without_attention"],
              json({{"conv", {0, 4}}, {"linear_attention", {2}}}));
}

TEST_F(Inspect, AndOthersWarnOfAnAttentionThatIsNotComputedHere) {
    const std::string file = make("a.h5");
    {
        const io::h5::Handle h5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        const auto layer = io::h5::open_object(h5, {file, "/layers/3"});
        io::h5::set_attribute(layer, "softcap", 50.0);  // is computed
        io::h5::set_attribute(layer, "attention_chunk", int64_t{40});
    }
    const std::string warning =
        "/layers/3 has attention_chunk: the model's own attention is not the";
    const Outcome shown = kInspect({file, "--json"});
    EXPECT_NE(shown.err.find(warning), std::string::npos) << shown.err;
    EXPECT_EQ(json::parse(shown.out)[0]["layers"][1]["softcap"], 50);
    for (const Program* program : {&kAnalyze, &kCompare}) {
        const Outcome outcome = on_layer_3(*program, file, path(program->name));
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        EXPECT_NE(outcome.err.find(warning), std::string::npos) << outcome.err;
    }
}

TEST_F(Inspect, StatsAreThoseOfTheValues) {
    const std::string file = make("a.h5");
    const Outcome shown = kInspect({file, "--stats", "--json"});
    ASSERT_EQ(shown.code, 0) << shown.err;
    const json layers = json::parse(shown.out).at(0).at("layers");
    ASSERT_EQ(layers.size(), 2U);
    const json k = layers[1]["stats"]["k"];

    const io::ActivationsReader reader(file);
    const Tensor<float, 3> values = reader.read(3, io::Field::k, {0, 150});
    double low = values(0, 0, 0), high = low, sum = 0, squares = 0, norms = 0;
    for (int64_t t = 0; t < 150; ++t) {
        double norm = 0;
        for (int64_t h = 0; h < 2; ++h)
            for (int64_t d = 0; d < 16; ++d) {
                const double value = values(t, h, d);
                low = std::min(low, value);
                high = std::max(high, value);
                sum += value;
                squares += value * value;
                if (h == 1) norm += value * value;
            }
        norms += std::sqrt(norm);
    }
    const double count = 150 * 2 * 16, mean = sum / count;
    EXPECT_EQ(k["values"], 150 * 2 * 16);
    EXPECT_EQ(k["min"], low);
    EXPECT_EQ(k["max"], high);
    EXPECT_DOUBLE_EQ(k["mean"].get<double>() + 1, mean + 1);
    EXPECT_NEAR(k["std"].get<double>(), std::sqrt(squares / count - mean * mean), 1e-12);
    EXPECT_EQ(k["norm_mean"].size(), 2U);
    // Both sums are in double, in another order: 166 terms of about 4 are off by 1e-13 at most.
    EXPECT_NEAR(k["norm_mean"][1].get<double>(), norms / 150, 1e-12);
}

TEST_F(Inspect, ShowsResults) {
    ASSERT_EQ(kAnalyze({make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4",
                        "--backend", "reference", "--selectors", "oracle"})
                  .code,
              0);
    const Outcome shown = kInspect({path("out/results.h5"), "--stats"});
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_NE(shown.out.find("valid msa-results version 3"), std::string::npos);
    EXPECT_NE(shown.out.find("/select/oracle/3/ids"), std::string::npos);
    EXPECT_NE(kInspect({path("out/results.h5")}).out.find("/select/<selector>/<layer>/ids"),
              std::string::npos);
    const json about =
        json::parse(kInspect({path("out/results.h5"), "--stats", "--json"}).out).at(0);
    for (const json& dataset : about["datasets"]) {
        const std::string path = dataset["path"];
        if (path == "/done") continue;
        EXPECT_NE(dataset["description"], "") << dataset;
        if (path.starts_with("/tables/")) continue;  // may have no rows, or text
        EXPECT_GT(dataset["stats"]["values"], 0) << dataset;
    }
}

TEST_F(Inspect, SeveralFilesAtOnce) {
    const json all =
        json::parse(kInspect({make("a.h5"), make("b.h5", {.layers = {7}}), "--json"}).out);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_EQ(all[1]["layers"][0]["layer"], 7);
}

TEST_F(Inspect, RefusesWithTheReason) {
    const auto refusal = [](const std::vector<std::string>& args) {
        const Outcome refused = kInspect(args);
        EXPECT_EQ(refused.code, 2);
        EXPECT_EQ(refused.out, "");
        return refused.err;
    };
    EXPECT_NE(refusal({}).find("no file: name one or more to look at"), std::string::npos);
    EXPECT_NE(refusal({path("none.h5")}).find("none.h5"), std::string::npos);
    std::ofstream(path("text.h5")) << "no HDF5 at all";
    EXPECT_NE(refusal({path("text.h5")}).find("text.h5"), std::string::npos);

    std::ofstream(path("q.npz")) << "an archive";
    EXPECT_NE(refusal({path("q.npz")}).find("msalab convert " + path("q.npz")), std::string::npos);

    const std::string bad = make("bad.h5");
    poke(bad, "/layers/3/v", {7, 1, 2}, NAN);
    EXPECT_EQ(kInspect({bad}).code, 0);  // sizes alone are fine
    EXPECT_NE(refusal({bad, "--stats"})
                  .find("/layers/3/v holds 1 values that are NaN or Inf, must hold none; the "
                        "first: token 7, head 1, channel 2 is nan"),
              std::string::npos);
}

TEST_F(Inspect, EscapesWhatATerminalObeysAndWhatIsNoUtf8) {
    const std::string file = make("a\xff.h5");
    {
        const io::h5::Handle h5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        const io::h5::Handle root = io::h5::open_object(h5, {file, "/"});
        io::h5::set_attribute(root, "model_id",
                              std::string("red \x1b[31m \xff \xc2\x9b"
                                          "1m"));
    }
    const Outcome shown = kInspect({file});
    EXPECT_EQ(shown.code, 0) << shown.err;
    EXPECT_NE(shown.out.find("a\\xff.h5: valid"), std::string::npos) << shown.out;
    EXPECT_NE(shown.out.find("red \\x1b[31m \\xff \\xc2\\x9b1m"), std::string::npos) << shown.out;
    const Outcome as_json = kInspect({file, "--json"});
    EXPECT_EQ(as_json.code, 0) << as_json.err;
    EXPECT_EQ(json::parse(as_json.out)[0]["model_id"],
              "red \x1b[31m \\xff \xc2\x9b"
              "1m");
    EXPECT_EQ(as_json.out.find('\x1b'), std::string::npos);
    EXPECT_EQ(as_json.out.find('\x9b'), std::string::npos);
    {
        const io::h5::Handle h5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        io::h5::set_attribute(io::h5::open_object(h5, {file, "/"}), "format",
                              std::string("\x1b[2J"));
    }
    EXPECT_NE(kInspect({file}).err.find("format is '\\x1b[2J'"), std::string::npos);
}

TEST_F(Inspect, NamesOfAnyBytesAreRecorded) {
    const std::string file = make("a\xff.h5");
    for (const Program* program : {&kAnalyze, &kCompare}) {
        const std::string out = path(program->name + "o\xfe");
        const Outcome outcome = on_layer_3(*program, file, out);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        const io::ResultsReader results(out + "/results.h5");
        EXPECT_EQ(results.run().inputs.begin()->first, "a\\xff.h5");
        EXPECT_NE(file_text(out + "/run.json").find("o\\\\xfe"), std::string::npos);
        EXPECT_EQ(kInspect({out + "/results.h5", "--json"}).code, 0);
    }
    const Outcome made = kSynth({"--out", path("s\xff.h5"), "--tokens", "8"});
    EXPECT_EQ(made.code, 0) << made.err;
    EXPECT_NE(made.out.find("s\\xff.h5: 8 tokens"), std::string::npos);
}

TEST_F(Inspect, NamesWrongIds) {
    ASSERT_EQ(kAnalyze({make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4",
                        "--backend", "reference", "--selectors", "oracle"})
                  .code,
              0);
    const std::string file = path("out/results.h5");
    const auto after = [&](std::vector<int32_t> slots) {
        {
            const io::h5::Handle h5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
            const io::h5::Handle ids = io::h5::open_object(h5, {file, "/select/oracle/3/ids"});
            io::h5::write(ids, H5T_NATIVE_INT32, {{70, 1, 0}, {1, 1, 4}}, slots.data(), {});
        }
        return kInspect({file}).err;
    };
    const std::string place = "msa-inspect: " + file + ": /select/oracle/3/ids[70,1,";
    const std::string rule = "; ids must ascend below 12 blocks, with -1 at the end only\n";
    EXPECT_EQ(after({0, 3, 5, 8}), "");
    EXPECT_EQ(after({0, 3, -1, -1}), "");
    EXPECT_EQ(after({-5, 3, 5, 8}), place + "0] is -5 after -1" + rule);
    EXPECT_EQ(after({0, 3, 5, 999}), place + "3] is 999 after 5" + rule);
    EXPECT_EQ(after({0, 5, 3, 8}), place + "2] is 3 after 5" + rule);
    EXPECT_EQ(after({0, 5, 5, 8}), place + "2] is 5 after 5" + rule);
    EXPECT_EQ(after({0, -1, 5, 8}), place + "2] is 5 after -1" + rule);
    EXPECT_EQ(after({0, 3, 5, 9}), place +
                                       "3] is 9; its query, at position 70, does not see a "
                                       "block of 8 tokens that begins at 72\n");
}

TEST_F(Inspect, TextsOfTheRunAreJson) {
    ASSERT_EQ(kAnalyze({make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4",
                        "--backend", "reference", "--selectors", "oracle"})
                  .code,
              0);
    const std::string file = path("out/results.h5");
    for (const char* name : {"options", "definitions", "captures"}) {
        std::string whole;
        {
            const io::h5::Handle h5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
            const io::h5::Handle run = io::h5::open_object(h5, {file, "/run"});
            whole = io::h5::text_attribute(run, name, {file, "/run"});
            io::h5::set_attribute(run, name, std::string("{"));
        }
        const Outcome refused = kInspect({file, "--json"});
        EXPECT_EQ(refused.code, 2) << name;
        EXPECT_NE(refused.err.find(concat("/run attribute ", name, " is not JSON")),
                  std::string::npos)
            << refused.err;
        const io::h5::Handle h5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        io::h5::set_attribute(io::h5::open_object(h5, {file, "/run"}), name, whole);
    }
    EXPECT_EQ(kInspect({file}).code, 0);
}

TEST_F(Inspect, CapturesOfTheRunAreAList) {
    ASSERT_EQ(kAnalyze({make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4",
                        "--backend", "reference", "--selectors", "oracle"})
                  .code,
              0);
    const std::string file = path("out/results.h5");
    for (const std::string odd : {R"({"a":1})", R"("x")", "[1]", R"([{"input":"a.h5"}])"}) {
        {
            const io::h5::Handle h5(H5Fopen(file.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
            io::h5::set_attribute(io::h5::open_object(h5, {file, "/run"}), "captures", odd);
        }
        for (const Program& program : {kInspect, kCache}) {
            std::vector<std::string> args{file};
            if (program.name == kCache.name) args.insert(args.end(), {"--out", path("c")});
            const Outcome refused = program(args);
            EXPECT_EQ(refused.code, 2) << program.name << odd;
            EXPECT_NE(refused.err.find("/run attribute captures is " + odd +
                                       ", must be a list of captures"),
                      std::string::npos)
                << refused.err;
        }
    }
}

TEST_F(Inspect, ADamagedFileOfResultsIsRefused) {
    ASSERT_EQ(kAnalyze({make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4",
                        "--backend", "reference", "--selectors", "oracle"})
                  .code,
              0);
    const std::string file = path("out/results.h5");
    const std::string whole = file_text(file);
    for (size_t at = 0; at < whole.size() - 80; at += 1 + whole.size() / 50) {
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ 1);
        std::ofstream(file, std::ios::binary) << bytes;
        const Outcome refused = kInspect({file});
        ASSERT_EQ(refused.code, 2);
        ASSERT_NE(refused.err.find("bytes do not match the checksum"), std::string::npos);
    }
}

}  // namespace
}  // namespace msa::test
