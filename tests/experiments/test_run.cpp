// SPDX-License-Identifier: MIT
// What the driver sees to for every program: inputs are safe, values make sense, and one fit's
// held-out queries are another program's queries.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/io/file_error.h"
#include "core/io/results.h"
#include "experiments/driver/program.h"
#include "experiments/driver/run.h"
#include "experiments/fit/rope.h"
#include "tests/experiments/fit_test.h"
#include "tests/experiments/report_of.h"
#include "tests/support/refusal.h"

namespace msa::test {
namespace {

using nlohmann::json;
using Driver = Fit;

/// The arguments with --json and few blocks.
std::vector<std::string> small(const std::string& file, const std::string& out,
                               const std::vector<std::string>& more) {
    std::vector<std::string> all{file, "--out", out, "--block-size", "8", "--json"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

TEST_F(Driver, OpenmpsVariableSaysHowManyThreads) {
    const auto threads = [&](const std::string& variable, const std::string& options) {
        const std::string command =
            variable + " " MSA_BIN_DIR "/msa-analyze '" + path("a.h5") + "' --out '" + path("out") +
            "' --overwrite --block-size 8 --top-k 2" + options + " > /dev/null 2>&1";
        EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 0) << command;
        return file_text(path("out/run.json"));
    };
    make("a.h5");
    EXPECT_NE(threads("OMP_NUM_THREADS=3", "").find(", 3 threads"), std::string::npos);
    EXPECT_NE(threads("OMP_NUM_THREADS=3", " --threads 2").find(", 2 threads"), std::string::npos);
}

/// The library names no option; the program adds its own to what the library says.
TEST(DriverErrors, NameTheOptionThatHelps) {
    using io::FileProblem;
    const auto said = [](FileProblem problem, const char* file = "") {
        return experiments::message_of(io::FileError("wrong", problem, file));
    };
    EXPECT_EQ(said(FileProblem::exists), "wrong; --overwrite replaces it");
    EXPECT_EQ(said(FileProblem::unfinished_run),
              "wrong; --resume continues it, --overwrite starts afresh");
    EXPECT_EQ(said(FileProblem::other_run), "wrong; --overwrite starts afresh");
    EXPECT_EQ(said(FileProblem::other_program), "wrong; choose another --out");
    EXPECT_EQ(said(FileProblem::damaged_unit),
              "wrong; where it is removed, the command of its run does it again");
    EXPECT_EQ(said(FileProblem::arrays, "d/a.npz"),
              "wrong; msalab convert d/a.npz --state post_rope --out d/a.h5 makes one (layouts, "
              "names of arrays: python/README.md)");
    EXPECT_EQ(said(FileProblem::before_rope, "a.h5"),
              "wrong; msalab convert a.h5 --apply-rope --out FILE rotates it");
    EXPECT_EQ(experiments::message_of(InputError("wrong")), "wrong");
    EXPECT_EQ(experiments::message_of(SystemError("disk full")), "disk full");
}

TEST_F(Driver, OverwriteNeverReplacesAnInput) {
    std::filesystem::create_directories(path("d"));
    std::filesystem::copy_file(write("a.h5"), path("d/indexer.h5"));
    const std::string before = file_text(path("d/indexer.h5"));
    for (const std::vector<std::string>& more :
         {std::vector<std::string>{}, std::vector<std::string>{"--overwrite"}}) {
        const Outcome outcome = run({path("d/indexer.h5")}, "d", more);
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(path("d/indexer.h5") +
                                   ": is an input of this run, which would "
                                   "replace it as " +
                                   path("d/indexer.h5")),
                  std::string::npos)
            << outcome.err;
        EXPECT_EQ(file_text(path("d/indexer.h5")), before);
    }
}

TEST_F(Driver, OverwriteKnowsAnInputByAnyName) {
    std::filesystem::create_directories(path("d"));
    std::filesystem::copy_file(make("a.h5"), path("d/results.h5"));
    std::filesystem::create_symlink(path("d/results.h5"), path("link.h5"));
    const std::string before = file_text(path("d/results.h5"));
    for (const Program& program : {kAnalyze, kCompare})
        for (const std::string input : {"d/results.h5", "link.h5", "d/../d/results.h5"}) {
            const Outcome outcome = program({path(input), "--out", path("d"), "--overwrite"});
            EXPECT_EQ(outcome.code, 2) << input;
            EXPECT_NE(outcome.err.find("is an input of this run"), std::string::npos)
                << outcome.err;
            EXPECT_EQ(file_text(path("d/results.h5")), before);
        }
    std::filesystem::create_directories(path("e/results.h5.partial"));
    std::filesystem::copy_file(make("b.h5"), path("e/results.h5.partial/b.h5"));
    EXPECT_EQ(kAnalyze({path("e/results.h5.partial/b.h5"), "--out", path("e"), "--overwrite"}).code,
              2);
    EXPECT_TRUE(std::filesystem::exists(path("e/results.h5.partial/b.h5")));
}

TEST_F(Driver, RefusesEmptyValuesAndZeroSizes) {
    const std::string file = write("a.h5");
    for (const Program& program : {kAnalyze, kCompare, kFit})
        for (const std::string option : {"--layers", "--backend", "--block-size", "--seed"}) {
            const Outcome outcome = program({file, "--out", path("out"), option, ""});
            EXPECT_EQ(outcome.code, 2) << program.name << option;
            EXPECT_NE(outcome.err.find(option + " is empty, must be "), std::string::npos)
                << outcome.err;
        }
    EXPECT_EQ(kAnalyze({file, "--out", path("out"), "--block-size", "0"}).code, 2);
    EXPECT_EQ(kFit({file, "--out", path("out"), "--steps", "-1"}).code, 2);
    EXPECT_FALSE(std::filesystem::exists(path("out")));
}

TEST_F(Driver, MoreBlocksThanThereAreAreNotKept) {
    const std::string file = make("a.h5");  // 12 blocks of 8
    for (const std::string k : {"100000000", "2147483648"}) {
        const Outcome none = kAnalyze(small(file, path(k), {"--top-k", k}));
        EXPECT_EQ(none.code, 2);
        EXPECT_NE(
            none.err.find("has 12 blocks of --block-size = 8 tokens, all of which --top-k keeps"),
            std::string::npos)
            << none.err;
        const Outcome outcome = kAnalyze(small(file, path(k), {"--top-k", k, "--all-rows"}));
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        const std::string note = "--top-k is " + k + ", more than the 12 blocks";
        EXPECT_NE(outcome.err.find("note: " + note), std::string::npos) << outcome.err;
        const json summary = json::parse(outcome.out);
        EXPECT_EQ(summary["run"]["options"]["top_k"], 12);
        EXPECT_EQ(summary["notes"]["top_k"].get<std::string>().rfind(note, 0), 0U);
    }
    const Outcome fit = run({write("x.h5")}, "fit", {"--top-k", "2147483648"});
    EXPECT_EQ(fit.code, 0) << fit.err;
    const Outcome compare = kCompare(small(
        file, path("compare"), {"--budgets", "99999999999999", "--selectors", "oracle,window"}));
    EXPECT_EQ(compare.code, 2) << compare.err;
    EXPECT_NE(compare.err.find("--budgets has 99999999999999, more than the 90 tokens"),
              std::string::npos)
        << compare.err;
}

/// The query's own block is always in, and takes the only slot of a budget of one block.
TEST_F(Driver, BudgetsThatLeaveNothingToChooseAreNoted) {
    const auto notes = [&](const std::string& budgets, std::vector<std::string> more) {
        const std::string out = path(budgets + more.front() + more.back());
        more.insert(more.end(), {"--budgets", budgets, "--selectors", "oracle,window"});
        const Outcome outcome = kCompare(small(make("a.h5"), out, more));
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        std::string found;
        std::istringstream lines(outcome.err);
        for (std::string line; std::getline(lines, line);)
            if (line.rfind("note: a budget of ", 0) == 0) found += line + "\n";
        return found;
    };
    const std::string forced = ", forced: no selector of blocks has one to choose\n";
    EXPECT_EQ(notes("8,16", {"--forced", "inside"}),
              "note: a budget of 8 is 1 block of 8" + forced);
    EXPECT_EQ(notes("16,32", {"--forced-first", "1"}),
              "note: a budget of 16 is 2 blocks of 8" + forced);
    EXPECT_EQ(notes("8,16", {"--forced", "outside"}), "");
}

TEST_F(Driver, QueriesAreTokensOrPositionsInSeveralRanges) {
    const std::string file = make("a.h5");  // sequences of 90 and 60 tokens
    const auto tokens = [&](const std::string& option, const std::string& ranges) {
        const Outcome outcome = kAnalyze(
            small(file, path(ranges), {option, ranges, "--selectors", "oracle", "--top-k", "2"}));
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        const auto stored =
            io::ResultsReader(path(ranges + "/results.h5")).read<int64_t, 1>("/queries/3/token");
        return std::vector<int64_t>(stored.data(), stored.data() + stored.size());
    };
    EXPECT_EQ(tokens("--queries", "88:91,149:"), (std::vector<int64_t>{88, 89, 90, 149}));
    EXPECT_EQ(tokens("--positions", "58:61,:1"),
              (std::vector<int64_t>{0, 58, 59, 60, 90, 148, 149}));
    EXPECT_EQ(kAnalyze(small(file, path("o"), {"--queries", "0:9", "--positions", "0:9"})).code, 2);
}

TEST_F(Driver, TheHeldOutQueriesOfAFitCanBeAnalysed) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 100, 192}});
    ASSERT_EQ(run({file}, "fit", {"--eval-queries", "17"}).code, 0);
    const std::string fit = path("fit/results.h5"), indexer = path("fit/indexer.h5");
    const Outcome outcome = kAnalyze(
        small(indexer, path("out"), {"--top-k", "4", "--held-out", fit, "--selectors", "index"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const auto wanted = io::ResultsReader(fit).read<int64_t, 1>("/queries/3/token");
    const auto got = io::ResultsReader(path("out/results.h5")).read<int64_t, 1>("/queries/3/token");
    ASSERT_EQ(got.shape(), wanted.shape());
    EXPECT_EQ(got.size(), 17);
    EXPECT_TRUE(std::equal(got.data(), got.data() + got.size(), wanted.data()));
    // The same queries, weights and oracle: the same numbers but for the storage of index_q, which
    // is f32 here, and so but for nothing.
    const json of_fit = row("fit"), of_analyze = row_of(json::parse(outcome.out), "selectors");
    for (const char* name : {"mass_kept", "oracle_mass", "block_recall", "score_recall"})
        EXPECT_DOUBLE_EQ(of_fit[name].get<double>(), of_analyze[name].get<double>()) << name;
    EXPECT_EQ(kAnalyze(small(file, path("no"), {"--held-out", path("out/results.h5")})).code, 2);
}

TEST_F(Driver, AFitSplitsByPackedTokensInSeveralRanges) {
    const std::string file = write("a.h5", {.cu_seqlens = {0, 100, 192}});
    const Outcome outcome = run({file}, "fit",
                                {"--split", "token", "--train", "0:60,100:150", "--eval",
                                 "60:100,150:192", "--eval-queries", "0"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(row("fit")["train_queries"], 110);
    EXPECT_EQ(row("fit")["held_out_queries"], 82);
    EXPECT_EQ(
        run({file}, "no", {"--split", "token", "--train", "0:60,100:150", "--eval", "140:"}).code,
        2);
}

TEST_F(Driver, AFitTakesTheOracleOfAnalyzeAndReportsTheSelectedKl) {
    const std::string file = write("a.h5");
    ASSERT_EQ(run({file}, "mass", {}).code, 0);
    ASSERT_EQ(run({file}, "logit", {"--oracle", "max-logit"}).code, 0);
    ASSERT_EQ(run({file}, "apart", {"--oracle-local", "excluded"}).code, 0);
    ASSERT_EQ(run({file}, "all", {"--top-k", "24", "--all-rows"}).code, 0);
    EXPECT_NE(row("mass")["block_recall"], row("logit")["block_recall"]);
    EXPECT_LT(row("apart")["block_recall"], row("mass")["block_recall"]);
    EXPECT_NE(row("mass")["kl_selected"], row("mass")["kl"]);
    EXPECT_EQ(row("all")["held_out_counted"], row("all")["held_out_queries"]);
    // Where all blocks are selected, the two supports are one.
    EXPECT_NEAR(row("all")["kl_selected"].get<double>(), row("all")["kl"].get<double>(), 1e-6);
}

/// A run of `units` units in the folder "out", whose input is a file "input".
class LateHashes : public CliTest {
protected:
    int64_t run(int64_t units) {
        experiments::RunOptions o;
        o.out = path("out");
        experiments::UnitRun job("test", {}, o, {path("input")}, {}, err_);
        job.record.options = "{}";
        int64_t computed = 0;
        std::vector<experiments::Unit> all;
        for (int64_t n = 0; n < units; ++n)
            all.push_back({concat("unit ", n), [&, n](const experiments::Worker&, io::UnitWriter&) {
                               ++computed;
                               if (n == loses_) remove_temporary(n);
                           }});
        job.begin(std::move(all));
        const auto backend = make_backend("cpu");
        job.work({}, *backend, experiments::OnError::finish_others);
        job.end(
            [](const io::ResultsReader&) {
                return experiments::RunAnswer{{}, "page.txt"};
            },
            out_);
        return computed;
    }
    void remove_temporary(int64_t n) const {
        const std::string begins = unit_file(n) + ".";
        for (const auto& file : std::filesystem::directory_iterator(path("out/results.h5.partial")))
            if (const std::string name = file.path().string();
                name.starts_with(begins) && name.ends_with(".tmp"))
                std::filesystem::remove(name);
    }
    std::string unit_file(int64_t n) const {
        return path(concat("out/results.h5.partial/unit-unit-", n, ".h5"));
    }
    std::ostringstream out_, err_;
    int64_t loses_ = -1;  // the unit whose file vanishes
};

/// More units than may wait, and one of them cannot be written.
TEST_F(LateHashes, LoseNoUnitBehindOneThatFails) {
    std::ofstream(path("input")).close();
    std::filesystem::resize_file(path("input"), uintmax_t{1} << 28);
    loses_ = 30;
    EXPECT_THROW(run(70), SystemError);
    for (int64_t n = 0; n < 70; ++n)
        EXPECT_EQ(std::filesystem::exists(unit_file(n)), n != loses_) << n;
    loses_ = -1;
    EXPECT_EQ(run(70), 1);
    EXPECT_EQ(io::ResultsReader(path("out/results.h5")).done().size(), 70U);
}

TEST_F(LateHashes, ThatFailAreSaidOnceAndTheFolderCanBeResumed) {
    const std::string said = path("input") + ": there is no such file";
    EXPECT_EQ(refusal([&] { run(70); }), said);
    EXPECT_EQ(err_.str().find(said), std::string::npos) << err_.str();
    EXPECT_FALSE(std::filesystem::exists(path("out/results.h5.partial")));
    std::ofstream(path("input")) << "abc";
    EXPECT_EQ(run(70), 70);
}

TEST(ParseRope, ReadsConfigurations) {
    using experiments::fit::parse_rope;
    const auto llama = parse_rope(
        R"({"model_type": "llama", "rope_theta": 500000.0, "max_position_embeddings": 131072,
            "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})",
        128);
    ASSERT_TRUE(llama.has_value());
    EXPECT_EQ(llama->type, RopeType::llama3);
    EXPECT_EQ(llama->rotary_dim, 128);
    EXPECT_EQ(llama->theta, 500000);
    EXPECT_EQ(llama->original_positions, 8192);
    const auto half = parse_rope(
        R"({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
            "partial_rotary_factor": 0.5}})",
        64);
    ASSERT_TRUE(half.has_value());
    EXPECT_EQ(half->rotary_dim, 32);
    EXPECT_FALSE(parse_rope(R"({"model_type": "gpt2"})", 64).has_value());
    EXPECT_FALSE(parse_rope("", 64).has_value());
    EXPECT_THROW(parse_rope(R"({"rope_theta": 1, "rope_scaling": {"type": "odd"}})", 64),
                 InputError);
}

TEST_F(Driver, AFileInTheWayOfTheOutputIsNamed) {
    const std::string file = make("a.h5");
    for (const std::string& out : {file, file + "/x", file + "/x/y"}) {
        const Outcome analyze = kAnalyze(small(file, out, {"--top-k", "4"}));
        EXPECT_EQ(analyze.code, 2);
        EXPECT_NE(
            analyze.err.find("--out is " + out + ", but " + file + " is a file, not a folder"),
            std::string::npos)
            << analyze.err;
    }
}

}  // namespace
}  // namespace msa::test
