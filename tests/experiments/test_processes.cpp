// SPDX-License-Identifier: MIT
// A run is the same bytes for any number of processes, whenever they start and end.
#include <sys/stat.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "core/io/results.h"
#include "experiments/driver/launch.h"
#include "tests/experiments/processes_test.h"
#include "tests/support/sanitized.h"

namespace msa::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::microseconds;

TEST_F(Processes, AnyNumberOfThemGivesTheBytesOfOne) {
    const Outcome whole = kAnalyze(analyze("whole"));
    ASSERT_EQ(whole.code, 0) << whole.err;
    for (int count : {1, 2, 5}) {
        const std::string out = concat("together", count);
        const std::vector<Outcome> outcomes = run_together("msa-analyze", analyze(out), count);
        EXPECT_EQ(outcomes[0].out, whole.out);
        expect_same(out, "whole", files_);
    }
}

TEST_F(Processes, SomeStartLate) {
    const Outcome whole = kAnalyze(slow("whole"));
    ASSERT_EQ(whole.code, 0) << whole.err;
    std::vector<Process> processes;
    for (int n = 0; n < 3; ++n) processes.emplace_back("msa-analyze", slow("out"));
    for (int64_t begun : {1, 5}) {
        wait_until([&] { return units("out") >= begun || processes[0].has_ended(); });
        processes.emplace_back("msa-analyze", slow("out"));
    }
    for (Process& process : processes) {
        const Outcome outcome = process.end();
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        EXPECT_EQ(outcome.out, whole.out);
    }
    expect_same("out", "whole", files_);
    const Outcome last = kAnalyze(slow("out"));
    EXPECT_EQ(last.code, 0) << last.err;
    EXPECT_EQ(last.out, whole.out);
    EXPECT_NE(last.err.find("layer 10, queries 496:640: done before\n"), std::string::npos)
        << last.err;
    expect_same("out", "whole", files_);
}

TEST_F(Processes, ComparisonsToo) {
    const std::vector<std::string> files{"results.h5", "summary.json", "metrics.csv",
                                         "compare.txt"};
    const Outcome whole = kCompare(compare("whole", {}));
    ASSERT_EQ(whole.code, 0) << whole.err;
    EXPECT_EQ(run_together("msa-compare", compare("out", {}), 3)[0].out, whole.out);
    expect_same("out", "whole", files);
    const auto timing = nlohmann::json::parse(file_text(path("out/timing.json")));
    ASSERT_EQ(timing["layers"].size(), 5U);
    EXPECT_EQ(timing["layers"][4]["layer"], 10);
    EXPECT_GT(timing["layers"][4]["sum_seconds"], 0);
}

TEST_F(Processes, FitsToo) {
    const std::string x = write("x.h5", {.layers = {3, 5, 7}});
    ASSERT_EQ(run({x}, "whole").code, 0);
    run_together("msa-fit-indexer", args({x}, "out"), 3);
    expect_same("out", "whole", {"results.h5", "summary.json", "indexer.h5"});
    EXPECT_FALSE(fs::exists(path("out/checkpoint-5.h5")));
}

/// Two at a time, killed together or one alone, until two of them end.
TEST_F(Processes, AreKilledAtManyMoments) {
    ASSERT_EQ(kAnalyze(analyze("whole")).code, 0);
    int64_t killed = 0;
    for (int64_t trial = 0; trial < repeated(6, 2); ++trial) {
        const std::string out = concat("killed", trial);
        bool both = false;
        for (int64_t delay = 4000 + 1700 * trial, turn = 0; !both; delay += delay / 5, ++turn) {
            Process first("msa-analyze", analyze(out)), second("msa-analyze", analyze(out));
            std::this_thread::sleep_for(microseconds(delay) * kSlowdown);
            first.signal(SIGKILL);
            if (turn % 2 == 0) second.signal(SIGKILL);
            const int codes[] = {first.end().code, second.end().code};
            for (int code : codes) {
                EXPECT_TRUE(code == 0 || code == -1) << code;
                killed += code == -1 ? 1 : 0;
            }
            if (turn % 2 == 1) {  // the second one has finished the run, if need be
                EXPECT_EQ(codes[1], 0);
            }
            both = codes[0] == 0 && codes[1] == 0;
        }
        expect_same(out, "whole", files_);
    }
    EXPECT_GT(killed, 6);
    std::cout << "killed " << killed << " times\n";
}

/// What a process leaves that is killed in a unit: the next one does not wait.
TEST_F(Processes, TakeOverWhatADeadOneHad) {
    ASSERT_EQ(kAnalyze(slow("whole")).code, 0);
    kill_at(2, "out");
    EXPECT_FALSE(files_in("out", ".claim").empty());
    EXPECT_FALSE(files_in("out", ".tmp").empty());
    const Outcome outcome = kAnalyze(slow("out"));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same("out", "whole", files_);
}

TEST_F(Processes, WaitForAnotherHostUntilItsClaimIsOld) {
    ASSERT_EQ(kAnalyze(slow("whole")).code, 0);
    kill_at(2, "out");
    const std::string claim = folder("out") + "/unit-layer-10%2C-queries-496%3A640.h5.claim";
    std::ofstream(claim) << R"({"host": "elsewhere", "process": 7, "process_start": 1})";
    Process process("msa-analyze", slow("out"));
    wait_until([&] { return units("out") == 14 || process.has_ended(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_FALSE(process.has_ended());
    fs::last_write_time(claim, fs::file_time_type::clock::now() - std::chrono::minutes(6));
    const Outcome outcome = process.end();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same("out", "whole", files_);
}

TEST_F(Processes, SayWhomTheyWaitFor) {
    kill_at(2, "out");
    const std::string claim = folder("out") + "/unit-layer-10%2C-queries-496%3A640.h5.claim";
    std::ofstream(claim) << R"({"host": "elsewhere", "process": 7, "process_start": 1})";
    Process process("msa-analyze", slow("out"));
    wait_until([&] { return units("out") == 14 || process.has_ended(); });
    std::this_thread::sleep_for(std::chrono::seconds(5));
    process.signal(SIGTERM);
    const Outcome outcome = process.end();
    EXPECT_EQ(outcome.code, 130);
    EXPECT_NE(outcome.err.find(
                  "waits for what others do: layer 10, queries 496:640, process 7 of elsewhere\n"),
              std::string::npos)
        << outcome.err;
    EXPECT_NE(outcome.err.find("what is finished is kept, the same command continues"),
              std::string::npos)
        << outcome.err;
    EXPECT_EQ(units("out"), 14);
}

TEST_F(Processes, WithOtherOptionsOrInputsAreRefusedByName) {
    ASSERT_EQ(kAnalyze(slow("whole")).code, 0);
    Process first("msa-analyze", slow("out"));
    wait_until([&] { return units("out") > 0 || first.has_ended(); });
    const auto refused = [&](const std::vector<std::string>& args, const std::string& words) {
        const Outcome other = kAnalyze(args);
        EXPECT_EQ(other.code, 2);
        EXPECT_NE(other.err.find(words), std::string::npos) << other.err;
    };
    refused(
        slow("out", {"--sink-tokens", "3"}),
        folder("out") + ": is of another run, options.sink_tokens was 4, is 3 now; --overwrite");
    refused(slow("out", {"--sink-tokens", "3", "--overwrite"}),
            "another process is writing " + path("out/results.h5"));
    const Outcome compared = kCompare(compare("out", {"--overwrite"}));
    EXPECT_EQ(compared.code, 2);
    EXPECT_NE(compared.err.find("is of msa-analyze; choose another --out"), std::string::npos)
        << compared.err;
    const Outcome outcome = first.end();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same("out", "whole", files_);
    refused(slow("out", {"--sink-tokens", "3"}),
            path("out/results.h5") + ": is of another run, options.sink_tokens was 4, is 3 now");
    make("long.h5", {.cu_seqlens = {0, 240, 600}, .layers = {0, 1, 2, 5, 10}});
    refused(slow("out"), path("out/results.h5") + ": is of another run, inputs.long.h5 was");
}

TEST_F(Processes, ReplaceOldResultsTogether) {
    ASSERT_EQ(kAnalyze(slow("whole")).code, 0);
    ASSERT_EQ(kAnalyze(slow("out", {"--sink-tokens", "3"})).code, 0);
    Process first("msa-analyze", slow("out", {"--overwrite"}));
    wait_until([&] { return units("out") > 0 || first.has_ended(); });
    Process second("msa-analyze", slow("out", {"--overwrite"})), third("msa-analyze", slow("out"));
    for (Process* process : {&first, &second, &third}) {
        const Outcome outcome = process->end();
        EXPECT_EQ(outcome.code, 0) << outcome.err;
    }
    expect_same("out", "whole", files_);
}

/// Folders that know nothing of each other, each begun at another unit.
TEST_F(Processes, UnitsOfSeveralFoldersAreCopiedTogether) {
    ASSERT_EQ(kAnalyze(slow("whole")).code, 0);
    kill_at(3, "one");
    kill_at(3, "two", {"SLURM_ARRAY_TASK_ID=8"});
    for (const std::string& unit : files_in("two", ".h5")) {
        EXPECT_FALSE(fs::exists(fs::path(folder("one")) / fs::path(unit).filename())) << unit;
        fs::copy(unit, folder("one"));
    }
    const int64_t copied = units("one");
    EXPECT_GE(copied, 6);
    const Outcome outcome = kAnalyze(slow("one"));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    int64_t before = 0;
    for (size_t at = 0; (at = outcome.err.find("done before", at + 1)) != std::string::npos;)
        ++before;
    EXPECT_EQ(before, copied);
    expect_same("one", "whole", files_);

    kill_at(1, "other");
    {
        Process process("msa-analyze", slow("strange", {"--sink-tokens", "3"}));
        wait_until([&] { return units("strange") > 0 || process.has_ended(); });
    }
    const std::string unit = files_in("strange", ".h5")[0];
    fs::copy(unit, folder("other"), fs::copy_options::overwrite_existing);
    const Outcome refused = kAnalyze(slow("other"));
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find(fs::path(unit).filename().string() +
                               ": is of another run, options.sink_tokens was 3, is 4 now"),
              std::string::npos)
        << refused.err;
}

/// A command line for a shell.
std::string shell(const std::string& before, const std::vector<std::string>& args,
                  const std::string& err) {
    std::string command = before + " " MSA_BIN_DIR "/msa-analyze";
    for (const std::string& arg : args) command += " '" + arg + "'";
    return command + " >/dev/null 2>'" + err + "'";
}

TEST_F(Processes, AFullDiskOfOneIsNoneOfAnother) {
    ASSERT_EQ(kAnalyze(slow("whole")).code, 0);
    for (const bool alone : {true, false}) {
        const std::string out = alone ? "alone" : "beside";
        std::optional<Process> other;
        if (!alone) {
            other.emplace("msa-analyze", slow(out));
            wait_until([&] { return units(out) > 0 || other->has_ended(); });
        }
        const std::string limited = shell("ulimit -f 16; exec", slow(out), path("err"));
        EXPECT_EQ(WEXITSTATUS(std::system(limited.c_str())), 2);
        EXPECT_NE(file_text(path("err")).find("cannot write " + path(out + "/results.h5")),
                  std::string::npos)
            << file_text(path("err"));
        const Outcome outcome = alone ? kAnalyze(slow(out)) : other->end();
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        expect_same(out, "whole", files_);
    }
}

/// To whom the folder is read-only it is no use, until the results are there.
TEST_F(Processes, AFolderThatIsReadOnlyForOne) {
    if (geteuid() != 0) GTEST_SKIP() << "only root can take a right from one process";
    ASSERT_EQ(kAnalyze(slow("whole")).code, 0);
    Process first("msa-analyze", slow("out"));
    wait_until([&] { return units("out") > 0 || first.has_ended(); });
    ASSERT_EQ(chmod(folder("out").c_str(), 0555), 0);
    const std::string bound = shell("setpriv --bounding-set=-dac_override --inh-caps=-dac_override",
                                    slow("out"), path("err"));
    EXPECT_EQ(WEXITSTATUS(std::system(bound.c_str())), 2);
    EXPECT_NE(file_text(path("err")).find("cannot write " + folder("out")), std::string::npos)
        << file_text(path("err"));
    EXPECT_NE(file_text(path("err")).find("Permission denied"), std::string::npos);
    const Outcome outcome = first.end();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    expect_same("out", "whole", files_);
}

/// Sets variables of the environment for the life of a test.
class Environment {
public:
    Environment(std::initializer_list<std::pair<const char*, const char*>> all) : all_(all) {
        for (const auto& [name, value] : all_) setenv(name, value, 1);
    }
    ~Environment() {
        for (const auto& [name, value] : all_) unsetenv(name);
    }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    std::vector<std::pair<const char*, const char*>> all_;
};

TEST(Launch, SaysWhereAProcessBegins) {
    EXPECT_EQ(experiments::launched_number(), 0);
    {
        const Environment rank{{"OMPI_COMM_WORLD_RANK", "2"}, {"SLURM_PROCID", "0"}};
        EXPECT_EQ(experiments::launched_rank(), 2);
        EXPECT_EQ(experiments::launched_number(), 2);
    }
    {
        const Environment task{{"SLURM_ARRAY_TASK_ID", "5"}, {"SLURM_PROCID", "1"}};
        EXPECT_EQ(experiments::launched_rank(), 1);
        EXPECT_EQ(experiments::launched_number(), 6);
    }
    const Environment job{{"PARALLEL_SEQ", "3"}};
    EXPECT_EQ(experiments::launched_rank(), 0);
    EXPECT_EQ(experiments::launched_number(), 3);
}

TEST(Launch, DividesTheThreadsOfAHost) {
    const int all = experiments::launched_threads();
    const Environment one{{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}};
    EXPECT_EQ(experiments::launched_threads(), all);
    const Environment many{{"OMPI_COMM_WORLD_LOCAL_SIZE", "100000"}};
    EXPECT_EQ(experiments::launched_threads(), std::getenv("OMP_NUM_THREADS") != nullptr ? all : 1);
}

#ifdef MSA_MPIRUN
TEST_F(Mpi, AnyNumberOfRanksGivesTheBytesOfOne) {
    const Outcome whole = kAnalyze(analyze("whole"));
    for (int ranks : {1, 2, 7}) {
        const std::string out = concat("ranks", ranks);
        ASSERT_EQ(start(ranks, analyze(out)), 0) << said();
        expect_same(out, "whole", files_);
        EXPECT_EQ(file_text(path("out.txt")), whole.out);  // once
    }
    ASSERT_EQ(start(2, analyze("ranks2")), 0) << said();
    EXPECT_EQ(file_text(path("out.txt")), whole.out);
}

TEST_F(Mpi, AnErrorOfOneRankEndsAll) {
    EXPECT_NE(start(2, analyze("out", {"--sink-tokens", "0"})), 0);
    EXPECT_NE(said().find(": --sink-tokens is 0, must be at least 1"), std::string::npos) << said();
    poke(file_, "/layers/5/k", {140, 1, 3}, std::nanf(""));
    EXPECT_NE(start(3, analyze("nan")), 0);
    EXPECT_NE(said().find("/layers/5/k"), std::string::npos) << said();
}

TEST_F(Mpi, AKilledRankLosesItsUnitAlone) {
    ASSERT_EQ(kAnalyze(slow("whole")).code, 0);
    int killed = 0, code = -1;
    while (code != 0) {  // a unit further and a little later each time
        ASSERT_LE(killed, 15) << "as many as there are units: " << said();
        const int64_t before = units("killed");
        code = start(3, slow("killed"), [&] {
            if (units("killed") <= before) return false;
            std::this_thread::sleep_for(std::chrono::milliseconds(5 * killed));
            return true;
        });
        killed += code != 0 ? 1 : 0;
    }
    EXPECT_GT(killed, 0);
    expect_same("killed", "whole", files_);
    std::cout << "killed " << killed << " times" << std::endl;
}
#endif

}  // namespace
}  // namespace msa::test
