// SPDX-License-Identifier: MIT
// experiments/CLI.md is what the programs say of themselves. On a difference the new text is left
// beside it as CLI.md.new, to be looked at and moved over it.
#include <fstream>

#include "experiments/programs.h"
#include "tests/experiments/cli.h"

namespace msa::test {
namespace {

TEST(CliReference, IsWhatTheProgramsSay) {
    std::string wanted =
        "# Command lines\n\nThe output of every program's `--help-markdown`, in one page; a test "
        "keeps it so.\nEvery program has `--help`, `--help-markdown` and `--version`, too.\nExit "
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

}  // namespace
}  // namespace msa::test
