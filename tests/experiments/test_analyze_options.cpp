// SPDX-License-Identifier: MIT
// Every request that msa-analyze must refuse: exit code 2, the value and the rule in the message,
// and nothing written.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <ostream>
#include <sstream>
#include <thread>

#include "tests/experiments/cli.h"

namespace msa::test {
namespace {

struct Refusal {
    std::vector<std::string> args;  // beside the file and --out
    std::string message;            // a part of it
};
std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.message; }

class Refused : public CliTest, public testing::WithParamInterface<Refusal> {};

TEST_P(Refused, WithTheValueAndTheRule) {
    std::vector<std::string> args{make("a.h5"), "--out", path("out"), "--backend", "reference"};
    args.insert(args.end(), GetParam().args.begin(), GetParam().args.end());
    const Outcome outcome = kAnalyze(args);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.rfind("msa-analyze: ", 0), 0U) << outcome.err;
    EXPECT_NE(outcome.err.find(GetParam().message), std::string::npos) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5")));
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5.partial")));
}

const Refusal kRefusals[] = {
    {{"--bogus"}, "unrecognised option '--bogus'"},
    {{"--top"}, "unrecognised option '--top'"},  // no abbreviations
    {{"--selector", "oracle"}, "unrecognised option '--selector', but there is --selectors"},
    {{"--top-k", "0"}, "--top-k is 0, must be at least 1"},
    {{"--top-k", "four"}, "'four') for option '--top-k' is invalid"},
    {{"--top-k", "99999999999999999999"}, "for option '--top-k' is invalid"},
    {{"--top-k", "4x"}, "'4x') for option '--top-k' is invalid, must be an integer, 128K or 1M"},
    {{"--top-k", " 5"}, "' 5') for option '--top-k' is invalid"},
    {{"--threads", "4G"},
     "'4G') for option '--threads' is invalid, must be an integer, 128K or 1M"},
    {{"--threads", "4096M"}, "for option '--threads' is invalid, must be an integer of 32 bits"},
    {{"--selectors", "oracle,snapkv"},
     "--selectors has snapkv, which does not choose blocks for each query alone (msa-compare has "
     "it); there are: index, oracle,"},
    {{"--top-k", "4", "--top-k", "8"}, "'--top-k' cannot be specified more than once"},
    {{"--top-k"}, "the required argument for option '--top-k' is missing"},
    {{"--top-k="}, "the argument for option '--top-k' should follow immediately after the equal"},
    {{"--overwrite=1"}, "option '--overwrite' does not take any arguments"},
    {{"--overwrite", "--overwrite"}, "option '--overwrite' cannot be specified more than once"},
    {{"-r"}, "unrecognised option '-r'"},
    {{"--block-size", "7"}, "--block-size is 7, must be from 8 to 256"},
    {{"--block-size", "1K"}, "--block-size is 1024, must be from 8 to 256"},
    {{"--forced-local", "0"}, "--forced-local is 0, must be at least 1"},
    {{"--forced-first", "9223372036854775807"}, "must be at least 0, at most 2147483647"},
    {{"--forced-first", "16"}, "forced_local + forced_first is 17, must not exceed top_k = 16"},
    {{"--forced-first", "-1"}, "--forced-first is -1, must be at least 0"},
    {{"--layers", "7"}, "a.h5: has no layer 7; there are: 0, 3"},
    {{"--layers", "0,3,0"}, "--layers is '0,3,0', it names one twice"},
    {{"--layers", "0,"}, "--layers is '0,', it has an empty item"},
    {{"--layers", "first"}, "--layers is 'first', 'first' is no integer"},
    {{"--selectors", "best"}, "--selectors is 'best', must be one of: index, oracle,"},
    {{"--selectors", "moba,mean-key"}, "--selectors names 'mean-key' twice"},
    {{"--selectors", "oracle,oracle"}, "--selectors names 'oracle' twice"},
    {{"--queries", "5:5"}, "--queries is 5:5, must be a non-empty range within 0:150"},
    {{"--queries", "100:151"}, "--queries is 100:151, must be a non-empty range within 0:150"},
    {{"--queries", "150:"}, "--queries is 150:, must be a non-empty range within 0:150"},
    {{"--queries", "10"}, "'10') for option '--queries' is invalid, must be A:B"},
    {{"--sample-queries", "-1"}, "--sample-queries is -1, must be at least 0"},
    {{"--seed", "-1"}, "--seed is -1, must be at least 0"},
    {{"--threads", "-1"}, "--threads is -1, must be from 0 to "},
    {{"--sink-tokens", "0"}, "--sink-tokens is 0, must be at least 1"},
    {{"--oracle", "luck"}, "--oracle is 'luck', must be one of: mass, max-logit"},
    {{"--oracle-local", "maybe"}, "--oracle-local is 'maybe', must be one of: included, excluded"},
    {{"--dump", "mass,all"}, "--dump is 'all', must be one of: outputs, mass, scores"},
    {{"--resume"}, "unrecognised option '--resume'"},
    {{"--backend", "cpu"}, "'--backend' cannot be specified more than once"},
    {{"second.h5"}, "second.h5: there is no such file"},
};
INSTANTIATE_TEST_SUITE_P(All, Refused, testing::ValuesIn(kRefusals));

using AnalyzeRefusal = CliTest;

TEST_F(AnalyzeRefusal, NeedsInputOutputAndAKnownBackend) {
    EXPECT_NE(kAnalyze({}).err.find("no input"), std::string::npos);
    EXPECT_NE(kAnalyze({make("a.h5")}).err.find("no output"), std::string::npos);
    const Outcome outcome = kAnalyze({make("a.h5"), "--out", path("o"), "--backend", "abacus"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("no backend is called 'abacus'; there are: reference, cpu"),
              std::string::npos);
}

TEST_F(AnalyzeRefusal, RefusesMoreThreadsThanTheMachineHasUseFor) {
    const std::string asked = std::to_string(64 + 4 * std::thread::hardware_concurrency());
    const Outcome outcome = kAnalyze({make("a.h5"), "--out", path("out"), "--threads", asked});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("--threads is " + asked + ", must be from 0 to "), std::string::npos)
        << outcome.err;
}

TEST_F(AnalyzeRefusal, CudaRunsOrSaysWhyNot) {
    const Outcome outcome = kAnalyze({make("a.h5"), "--out", path("o"), "--backend", "cuda"});
    if (outcome.code == 0) return;
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("backend cuda cannot start here: "), std::string::npos)
        << outcome.err;
}

TEST_F(AnalyzeRefusal, RefusesKeysBeforeRope) {
    const std::string file = make("a.h5", {.q_state = io::RopeState::pre_rope});
    const Outcome outcome = kAnalyze({file, "--out", path("out")});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("a.h5: /layers/0 q_state is pre_rope"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("out")));
}

TEST_F(AnalyzeRefusal, RefusesNanAndLeavesNothing) {
    const std::string file = make("a.h5");
    poke(file, "/layers/0/q", {149, 3, 15}, -INFINITY);
    const Outcome outcome = kAnalyze({file, "--out", path("out"), "--backend", "reference"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("/layers/0/q holds 1 values that are NaN or Inf, must hold none; "
                               "the first: token 149, head 3, channel 15 is -inf"),
              std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5")));
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5.partial")));
}

TEST_F(AnalyzeRefusal, RefusesResultsThatExist) {
    const std::vector<std::string> args{make("a.h5"), "--out",        path("out"), "--backend",
                                        "reference",  "--block-size", "8",         "--selectors",
                                        "oracle",     "--layers",     "0",         "--top-k",
                                        "4"};
    const auto with = [&](const char* flag) {
        std::vector<std::string> more = args;
        more.emplace_back(flag);
        return kAnalyze(more);
    };
    ASSERT_EQ(kAnalyze(args).code, 0);
    const std::string before = file_text(path("out/results.h5"));
    const Outcome again = kAnalyze(args);
    EXPECT_EQ(again.code, 0);
    EXPECT_NE(again.err.find("layer 0: done before"), std::string::npos) << again.err;
    EXPECT_EQ(file_text(path("out/results.h5")), before);
    EXPECT_EQ(with("--overwrite").code, 0);
}

TEST_F(AnalyzeRefusal, ReplacesRegularFilesOnly) {
    const std::string file = make("a.h5");
    std::filesystem::create_directories(path("out/results.h5"));
    const Outcome results = kAnalyze({file, "--out", path("out"), "--overwrite"});
    EXPECT_EQ(results.code, 2);
    EXPECT_NE(results.err.find("results.h5: is not a regular file"), std::string::npos);
    const std::string link = path("device");
    std::filesystem::create_symlink("/dev/null", link);
    const Outcome synth = kSynth({"--out", link, "--overwrite", "--tokens", "16"});
    EXPECT_EQ(synth.code, 2);
    EXPECT_NE(synth.err.find("device: is not a regular file"), std::string::npos) << synth.err;
    EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST_F(AnalyzeRefusal, TheTableSaysWhichChoicesStandBehindIt) {
    const Outcome outcome = kAnalyze(
        {make("a.h5"), "--out", path("out"), "--block-size", "8", "--top-k", "4", "--forced-first",
         "1", "--oracle", "max-logit", "--oracle-local", "excluded", "--selectors", "window"});
    std::string words = outcome.out;
    std::replace(words.begin(), words.end(), '\n', ' ');
    EXPECT_NE(words.find("Blocks of 8 tokens, k = 4 with the newest 1 and the oldest 1 forced. I*: "
                         "the blocks of highest maximum logit, the query's own block excluded."),
              std::string::npos)
        << outcome.out;
}

TEST_F(AnalyzeRefusal, SynthChecksItsCounts) {
    const auto refusal = [&](const char* option, const char* value) {
        return kSynth({"--out", path("s.h5"), option, value}).err;
    };
    EXPECT_EQ(refusal("--seed", "-1"), "msa-synth: --seed is -1, must be at least 0\n");
    EXPECT_EQ(refusal("--needles", "4097"),
              "msa-synth: --needles is 4097, must be from 0 to 4096\n");
}

TEST_F(AnalyzeRefusal, RefusesADirectoryItCannotWrite) {
    std::ofstream(path("file")) << "in the way";
    const Outcome outcome =
        kAnalyze({make("a.h5"), "--out", path("file/out"), "--backend", "reference"});
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("file/out"), std::string::npos) << outcome.err;
}

TEST_F(AnalyzeRefusal, OutputThatCannotBeWrittenIsAnError) {
    std::ostringstream err;
    std::ofstream full("/dev/full");
    const std::vector<std::string> args{"--help"};
    EXPECT_EQ(experiments::guarded(kAnalyze.name, kAnalyze.run, args, full, err), 2);
    EXPECT_EQ(err.str(), "msa-analyze: cannot write the standard output\n");
}

using Help = CliTest;

TEST_F(Help, AnswersTheQuestion) {
    for (const Program& program : programs()) {
        const Outcome help = program({"--help"});
        EXPECT_EQ(help.code, 0);
        EXPECT_NE(help.out.find("usage: " + program.name), std::string::npos);
        EXPECT_NE(help.out.find("Examples:"), std::string::npos);
        EXPECT_EQ(program({"--version"}).out.rfind(program.name + " ", 0), 0U);
        EXPECT_EQ(help.err, "");
    }
    EXPECT_NE(kAnalyze({"--help"}).out.find("--block-size TOKENS (=128)"), std::string::npos);
}

}  // namespace
}  // namespace msa::test
