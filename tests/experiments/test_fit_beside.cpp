// SPDX-License-Identifier: MIT
// msa-fit-indexer beside the model and beside what nobody trains: which RoPE pairs an index head
// has, choices that keep more, and layers with a sliding window.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/io/results.h"
#include "tests/experiments/fit_test.h"

namespace msa::test {
namespace {

using nlohmann::json;

/// With fewer pairs than the model, the closed form has those of most energy, in either layout, and
/// the file says which.
TEST_F(Fit, TakesThePairsOfMostEnergy) {
    Linear spec{.query_heads = 1, .kv_heads = 1, .loud_pair = 2};
    for (const bool interleaved : {false, true}) {
        spec.interleaved = interleaved;
        const std::string file = write("a.h5", spec), to = interleaved ? "interleaved" : "split";
        ASSERT_EQ(run({file}, to, {"--index-rotary", "2"}).code, 0);
        const io::ResultsReader results(path(to + "/results.h5"));
        const auto chosen = results.read<double, 1>("/fit/3/weights/rope_frequencies");
        ASSERT_EQ(chosen.size(), 1);
        EXPECT_DOUBLE_EQ(chosen(0), std::pow(100, -2.0 * 2 / 8));
        ASSERT_EQ(
            run({file}, to + "-nth", {"--index-rotary", "2", "--rope-pairs", "every-nth"}).code, 0);
        EXPECT_FALSE(
            io::ResultsReader(path(to + "-nth/results.h5")).has("/fit/3/weights/rope_frequencies"));
        EXPECT_LT(curve(to, "held_out/kl")[0], 0.5 * curve(to + "-nth", "held_out/kl")[0]);
        EXPECT_GT(curve(to, "held_out/mass_kept")[0], curve(to + "-nth", "held_out/mass_kept")[0]);
        // indexer.h5 is of the same frequencies: msa-analyze finds what the fit found.
        ASSERT_EQ(kAnalyze({path(to + "/indexer.h5"), "--out", path(to + "-seen"), "--selectors",
                            "index", "--held-out", path(to + "/results.h5")})
                      .code,
                  0);
        const json row = row_of(report_of(path(to + "-seen")), "selectors");
        EXPECT_NEAR(row["mass_kept"], this->row(to)["mass_kept"], 1e-6);
    }
    // Any number of pairs will do, and normal weights have them, too.
    ASSERT_EQ(run({path("a.h5")}, "three", {"--index-rotary", "6", "--init", "normal"}).code, 0);
    const auto three = io::ResultsReader(path("three/results.h5"))
                           .read<double, 1>("/fit/3/weights/rope_frequencies");
    ASSERT_EQ(three.size(), 3);
    EXPECT_GT(three(0), three(1));
    EXPECT_GT(three(1), three(2));
    // Not those of a --rope-theta that is not the model's.
    ASSERT_EQ(
        run({path("a.h5")}, "own", {"--index-rotary", "6", "--init", "normal", "--rope-theta", "7"})
            .code,
        0);
    EXPECT_FALSE(io::ResultsReader(path("own/results.h5")).has("/fit/3/weights/rope_frequencies"));
}

TEST_F(Fit, SaysWhereItKeepsLessThanBlocksThatNobodyTrained) {
    const std::string file = write("a.h5", {.loud_pair = 2});
    const Outcome weak =
        run({file}, "weak", {"--init", "normal", "--steps", "0", "--warmup-steps", "0"});
    ASSERT_EQ(weak.code, 0) << weak.err;
    const json summary = report_of(path("weak"));
    ASSERT_EQ(kAnalyze({path("weak/indexer.h5"), "--out", path("seen"), "--selectors",
                        "index,window,mean-key,random", "--forced-first", "0,1", "--held-out",
                        path("weak/results.h5")})
                  .code,
              0);
    const json analysis = json::parse(file_text(path("seen/summary.json")));
    std::map<std::string, json> rows;
    for (const json& row : selector_rows(analysis)) rows[row["selector"]] = row;
    const json fit = row("weak"), &random = rows["random"];
    EXPECT_NEAR(fit["window_mass"], rows["window:first=1"]["mass_kept"], 1e-6);
    EXPECT_NEAR(fit["mean_key_mass"], rows["mean-key:first=1"]["mass_kept"], 1e-6);
    EXPECT_NEAR(fit["random_recall"], random["block_recall"], 0.05);
    EXPECT_NEAR(fit["first_forced_mass"], rows["index:first=1"]["mass_kept"], 1e-6);
    EXPECT_EQ(weak.out.find("Keeps more mass with the first block forced") != std::string::npos,
              fit["first_forced_mass"].get<double>() > fit["mass_kept"].get<double>() + 0.005);
    const double best =
        std::max(fit["window_mass"].get<double>(), fit["mean_key_mass"].get<double>());
    ASSERT_LT(fit["mass_kept"], best - 0.005);
    const json& found = rows_of_table(summary, "weak_indexers").back();
    EXPECT_EQ(found["layer"], 3);
    EXPECT_EQ(found["rival_mass_kept"], best);
    EXPECT_NE(weak.out.find("Keeps less mass than blocks that nobody trained: what is kept"),
              std::string::npos)
        << weak.out;
    EXPECT_NE(weak.out.find("What to try there: more --steps, --forced-first"), std::string::npos)
        << weak.out;
    // msa-analyze says the same of the file.
    const json& seen = rows_of_table(analysis, "weak_indexers").back();
    EXPECT_EQ(seen["finding"], found["finding"]);
    EXPECT_GE(seen["rival_mass_kept"], best - 1e-6);  // mean-key is there without the block, too
    const std::string said = analysis.at("notes").at("weak_indexers");
    EXPECT_NE(said.find("What to try there: more --steps"), std::string::npos) << said;
    EXPECT_EQ(said.find("--forced-first"), std::string::npos) << said;  // which it has tried

    const std::string easy = write("easy.h5", {.query_heads = 1, .kv_heads = 1});
    const Outcome strong = run({easy}, "strong");
    EXPECT_EQ(strong.out.find("nobody trained"), std::string::npos) << strong.out;
    EXPECT_EQ(rows_of_table(report_of(path("strong")), "weak_indexers"), json::array());
}

/// The pages of the programs that measure them say so.
TEST_F(Fit, LayersWithAWindowAreMarkedOnThePage) {
    const std::string file = write("a.h5", {.layers = {3, 4}, .window_of = 4}),
                      note =
                          "Layer 4 attends to a sliding window of 64 tokens, and msalab leaves "
                          "it as it is.";
    const auto page = [&](auto program, const std::string& out, const std::string& layers,
                          std::vector<std::string> more) {
        more.insert(more.begin(),
                    {file, "--out", path(out + layers), "--layers", layers, "--block-size", "8"});
        const Outcome outcome = program(more);
        EXPECT_NE(outcome.code, 1) << outcome.err;
        std::string words;
        for (const char c : outcome.out)
            if (c != '\n' || words.empty() || words.back() != ' ') words += c == '\n' ? ' ' : c;
        return words;
    };
    const std::string compared =
        page(kCompare, "compared", "3,4", {"--budgets", "32", "--selectors", "mean-key"});
    EXPECT_NE(compared.find(note), std::string::npos);
    const auto precise = [&](const std::string& layers) {
        return page(kPrecision, "precise", layers, {"--top-k", "4", "--formats", "int8"});
    };
    EXPECT_NE(precise("3,4").find(note), std::string::npos);
    EXPECT_EQ(precise("3").find("sliding window"), std::string::npos);
}

/// They stay as they are: out of what is fitted and measured unless asked for, and marked there.
TEST_F(Fit, LayersWithAWindowAreNamedAndLeftOut) {
    const std::string file = write("a.h5", {.layers = {3, 4}, .window_of = 4});
    const std::string said =
        "note: layer 4 attends to a sliding window of 64 tokens, which msalab "
        "leaves as it is: ";
    const std::vector<std::string> analysis{"--block-size", "8", "--top-k", "4", "--selectors",
                                            "oracle,window"};
    for (const bool fits : {true, false}) {
        const auto start = [&](const std::string& out, std::vector<std::string> more) {
            if (fits) return run({file}, "fit-" + out, more);
            more.insert(more.begin(), {file, "--out", path("see-" + out)});
            more.insert(more.end(), analysis.begin(), analysis.end());
            return kAnalyze(more);
        };
        const std::string at = fits ? "fit-" : "see-";
        const Outcome whole = start("whole", {});
        ASSERT_EQ(whole.code, 0) << whole.err;
        EXPECT_NE(
            whole.err.find(said + "layer 3 is measured alone; --layers 4 measures the others"),
            std::string::npos)
            << whole.err;
        const auto rows = [&](const std::string& of) {
            const json all = report_of(path(at + of));
            return rows_of_table(all, fits ? "layers" : "selectors");
        };
        for (const json& row : rows("whole")) {
            EXPECT_EQ(row["layer"], 3);
            EXPECT_TRUE(row.value("window", json()).is_null());
        }
        const Outcome both = start("both", {"--layers", "3,4"});
        ASSERT_EQ(both.code, 0) << both.err;
        EXPECT_NE(both.err.find(said), std::string::npos) << both.err;
        EXPECT_NE(both.out.find("Layer 4 attends to a sliding window of 64 tokens, and"),
                  std::string::npos)
            << both.out;
        for (const json& row : rows("both"))
            EXPECT_EQ(row["window"], row["layer"] == 4 ? json(64) : json());
    }
    const Outcome seen = kInspect({file});
    EXPECT_NE(seen.out.find("What can be sparse: --layers 3\n"), std::string::npos) << seen.out;
    EXPECT_NE(seen.out.find("  window\n"), std::string::npos) << seen.out;
}

}  // namespace
}  // namespace msa::test
