// SPDX-License-Identifier: MIT
// experiments/CLI.md is what the programs say of themselves. On a difference the new text is left
// beside it as CLI.md.new, to be looked at and moved over it.
#include <fstream>

#include "experiments/driver/help.h"
#include "experiments/programs.h"
#include "tests/experiments/cli.h"

namespace msa::test {
namespace {

TEST(CliReference, IsWhatTheProgramsSay) {
    std::string wanted =
        "# Command lines\n\nThe output of every program's `--help-markdown`, in one page; a test "
        "keeps it so.\nEvery program has `--help`, `--help-all`, `--help-markdown` and "
        "`--version`, too.\nExit "
        "codes: "
        "0 done; 2 bad input, or the system refused; 130 interrupted; 1 a bug.\n";
    for (const Program& program : programs()) wanted += "\n" + program({"--help-markdown"}).out;
    const std::string file = std::string(MSA_SOURCE_DIR) + "/experiments/CLI.md";
    if (file_text(file) == wanted) return;
    std::ofstream(file + ".new") << wanted;
    FAIL() << file << " is out of date; see " << file << ".new";
}

TEST(CliReference, TheReadmeAsksWhatTheProgramsAsk) {
    const std::string readme = file_text(std::string(MSA_SOURCE_DIR) + "/experiments/README.md");
    for (const experiments::Program& one : experiments::programs()) {
        const std::string row = std::string("| `") + one.name + "` | " + one.question + " |";
        EXPECT_NE(readme.find(row), readme.npos) << "experiments/README.md has no row " << row;
    }
}

/// What is shown first is there, and is little.
TEST(CliReference, UsualOptionsAreOptions) {
    for (const Program& program : programs()) {
        const std::vector<std::string>& usual = experiments::usual_options(program.name);
        const std::string all = program({"--help-all"}).out, first = program({"--help"}).out;
        EXPECT_LE(usual.size(), 10U) << program.name;
        for (const std::string& option : usual)
            EXPECT_NE(first.find("  --" + option + " "), first.npos)
                << program.name << ' ' << option;
        EXPECT_LE(first.size(), all.size()) << program.name;
    }
}

TEST(CliReference, NearNamesAreOffered) {
    const auto said = [](const Program& program, std::vector<std::string> words) {
        return program(std::move(words)).err;
    };
    EXPECT_NE(said(kCost, {"--top_k", "3"})
                  .find("'--top_k' (did you mean '--top-k'?); msa-cost --help-all"),
              std::string::npos);
    EXPECT_NE(said(kCost, {"--preset", "papr"}).find("'papr' (did you mean 'paper'?) is no file"),
              std::string::npos);
    EXPECT_NE(said(kBench, {"--stages", "laier"})
                  .find("is 'laier' (did you mean 'layer'?), must be one of"),
              std::string::npos);
    EXPECT_NE(said(kAnalyze, {"a.h5", "--out", "b", "--selectors", "orcale"})
                  .find("'orcale' (did you mean 'oracle'?)"),
              std::string::npos);
    EXPECT_NE(said(kPretrain, {"a.txt", "--out", "b", "--preset", "nan"})
                  .find("is 'nan' (did you mean 'nano'?), must be one of"),
              std::string::npos);
    EXPECT_NE(said(kAnalyze, {"--blocksize", "64"})
                  .find("'--blocksize' (did you mean '--block-size'?); msa-analyze"),
              std::string::npos);
}

TEST(CliReference, TheWordsOfAnOptionNameIt) {
    const auto said = [](const Program& program, const std::string& option) {
        return program({option, "1"}).err;
    };
    for (const auto& [option, meant] : {std::pair{"--decay", "--weight-decay;"},
                                        {"--layers", "--model-layers;"},
                                        {"--rope-dim", "--rotary-dim;"},
                                        {"--held-out", "--held-out-share, --held-out-text;"}})
        EXPECT_NE(
            said(kPretrain, option).find(std::string("'") + option + "', but there is " + meant),
            std::string::npos)
            << said(kPretrain, option);
    EXPECT_EQ(said(kPretrain, "-k").find("but there is"), std::string::npos);
}

}  // namespace
}  // namespace msa::test
