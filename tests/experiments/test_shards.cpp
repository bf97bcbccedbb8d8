// SPDX-License-Identifier: MIT
// A run is the same bytes for any number of workers: threads, shards and ranks.
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "core/io/results.h"
#include "experiments/driver/shard.h"
#include "tests/experiments/shards_test.h"

namespace msa::test {
namespace {

using experiments::parse_shard;

/// Sets variables of the environment for the life of a test; null: unset.
class Environment {
public:
    Environment(std::initializer_list<std::pair<const char*, const char*>> all) : all_(all) {
        for (const auto& [name, value] : all_)
            value == nullptr ? unsetenv(name) : setenv(name, value, 1);
    }
    ~Environment() {
        for (const auto& [name, value] : all_) unsetenv(name);
    }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;

private:
    std::vector<std::pair<const char*, const char*>> all_;
};

TEST_F(Shards, AnyNumberOfThemGivesTheBytesOfOneWorker) {
    const Outcome whole = kAnalyze(analyze("whole"));
    ASSERT_EQ(whole.code, 0) << whole.err;
    for (int64_t count : {1, 2, 3, 7}) {
        const std::string out = concat("merged", count);
        const Outcome merged = merge(analyze_in(count, concat("part", count, "-")), out);
        ASSERT_EQ(merged.code, 0) << merged.err;
        EXPECT_EQ(merged.out, whole.out);
        expect_same(out, "whole", files_);
    }
}

TEST_F(Shards, JobsChangeNoByte) {
    ASSERT_EQ(kAnalyze(analyze("whole")).code, 0);
    for (const std::string jobs : {"2", "5"}) {
        const Outcome outcome = kAnalyze(analyze(jobs, {"--jobs", jobs}));
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        expect_same(jobs, "whole", files_);
    }
    const Outcome outcome = kAnalyze(analyze("devices", {"--devices", "0,1", "--jobs", "2"}));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    expect_same("devices", "whole", files_);
}

TEST_F(Shards, CompareIsMergedToo) {
    const std::vector<std::string> files{"results.h5", "summary.json", "metrics.csv", "tables.txt"};
    const Outcome whole = kCompare(compare("whole", {}));
    ASSERT_EQ(whole.code, 0) << whole.err;
    std::vector<std::string> folders;
    for (int64_t n = 0; n < 3; ++n) {
        const std::string name = concat("part", n);
        ASSERT_EQ(kCompare(compare(name, {"--shard", part(n, 3), "--jobs", "2"})).code, 0);
        folders.push_back(path(name));
    }
    const Outcome merged = merge(folders, "merged");
    ASSERT_EQ(merged.code, 0) << merged.err;
    EXPECT_EQ(merged.out, whole.out);
    expect_same("merged", "whole", files);
    const auto timing = nlohmann::json::parse(file_text(path("merged/timing.json")));
    ASSERT_EQ(timing["layers"].size(), 5U);
    EXPECT_EQ(timing["layers"][4]["layer"], 10);
    EXPECT_GT(timing["layers"][4]["sum_seconds"], 0);
}

TEST_F(Shards, FitIsMergedWhileItsInputsAreThere) {
    const std::vector<std::string> files{"results.h5", "summary.json", "indexer.h5"};
    const std::string x = write("x.h5", {.layers = {3, 5, 7}});
    ASSERT_EQ(run({x}, "whole").code, 0);
    std::vector<std::string> folders;
    for (int64_t n = 0; n < 2; ++n) {
        const Outcome outcome = run({x}, concat("part", n), {"--shard", part(n, 2), "--jobs", "2"});
        ASSERT_EQ(outcome.code, 0) << outcome.err;
        folders.push_back(path(concat("part", n)));
    }
    const Outcome merged = merge(folders, "merged");
    ASSERT_EQ(merged.code, 0) << merged.err;
    expect_same("merged", "whole", files);
    write("x.h5", {.layers = {3, 5, 7}, .stream = 2});
    refuses(folders, "x.h5: has changed since the shards read it");
    std::filesystem::remove(x);
    refuses(folders, x + ": is not there");
}

TEST_F(Shards, AKilledOneGoesOn) {
    using std::chrono::microseconds;
    ASSERT_EQ(kAnalyze(analyze("whole")).code, 0);
    std::vector<std::string> folders = analyze_in(2, "part");
    std::filesystem::remove_all(folders[0]);
    int code = -1, killed = 0;
    for (int64_t delay = 4000; code != 0; delay += delay / 4) {
        code = run_for("msa-analyze", analyze("part0", {"--shard", "0/2", "--resume"}),
                       microseconds(delay));
        ASSERT_TRUE(code == 0 || code == -1) << code;
        killed += code == -1 ? 1 : 0;
    }
    EXPECT_GT(killed, 0);
    const Outcome merged = merge(folders, "merged");
    ASSERT_EQ(merged.code, 0) << merged.err;
    expect_same("merged", "whole", files_);
}

TEST_F(Shards, OneIsRefusedWithoutResumeAndMayBecomeTheWhole) {
    ASSERT_EQ(kAnalyze(analyze("whole")).code, 0);
    analyze_in(2, "part");
    const Outcome again = kAnalyze(analyze("part0", {"--shard", "0/2"}));
    EXPECT_EQ(again.code, 2);
    EXPECT_NE(again.err.find("--resume continues it"), std::string::npos) << again.err;
    EXPECT_EQ(kAnalyze(analyze("part0", {"--resume"})).code, 0);
    expect_same("part0", "whole", files_);
    refuses({path("part0"), path("part1")},
            path("part0") + ": holds the results.h5 of a whole run");
}

TEST_F(Shards, WhatDoesNotBelongTogetherIsNamed) {
    const std::vector<std::string> parts = analyze_in(3, "part");
    const std::string other = path("other");
    refuses({parts[0], parts[2]},
            "not finished in any of them: layer 1 (of --shard 1/3), layer 10 (of --shard 1/3)");
    refuses({parts[0], parts[0]}, parts[0] + ": is named twice");
    refuses({parts[0], path("nothing")}, path("nothing") + ": is no directory");
    std::filesystem::create_directories(path("empty"));
    refuses({parts[0], path("empty")}, "there is no run under way");
    std::filesystem::create_directories(path("model/results.h5.partial"));
    std::ofstream(path("model/results.h5.partial/plan.json")) << "{}";
    refuses({parts[0], path("model")},
            path("model") + ": is a shard of msalab evaluate, which `msalab merge` joins");
    EXPECT_NE(merge(parts, "part1").err.find(parts[1] + ": is a shard; choose another --out"),
              std::string::npos);

    std::filesystem::copy(parts[0], other, std::filesystem::copy_options::recursive);
    refuses({parts[0], parts[1], parts[2], other},
            parts[0] + " and " + other + ": both hold layer 0");
    std::filesystem::remove_all(other);
    ASSERT_EQ(kAnalyze(analyze("other", {"--shard", "1/3", "--sink-tokens", "3"})).code, 0);
    refuses({parts[0], other, parts[2]},
            other + " (against " + parts[0] +
                "): is of another run, options.sink_tokens was 3, is 4 here");
    std::filesystem::remove_all(other);
    make("a.h5", {.cu_seqlens = {0, 80, 150}, .layers = {0, 1, 2, 5, 10}});
    ASSERT_EQ(kAnalyze(analyze("other", {"--shard", "1/3"})).code, 0);
    refuses({parts[0], other, parts[2]}, "is of another run, inputs.a.h5 was");

    const std::string unit = parts[1] + "/results.h5.partial/unit-layer-1.h5";
    std::fstream(unit, std::ios::in | std::ios::out | std::ios::binary).seekp(700).put('!');
    refuses(parts, unit);
}

TEST_F(Shards, AreOneOfSoMany) {
    EXPECT_EQ(parse_shard("2/3").index, 2);
    EXPECT_EQ(parse_shard("2/3").count, 3);
    for (const std::string wrong : {"3/3", "-1/3", "1", "1/", "/3", "a/b", "0/0", "1/3x"}) {
        const Outcome outcome = kAnalyze(analyze("out", {"--shard", wrong}));
        EXPECT_EQ(outcome.code, 2) << wrong;
        EXPECT_NE(outcome.err.find("--shard is '" + wrong + "', must be I/N"), std::string::npos)
            << outcome.err;
    }
    EXPECT_FALSE(std::filesystem::exists(path("out")));
}

TEST_F(Shards, OfAJobArray) {
    {
        const Environment none{{"SLURM_ARRAY_TASK_ID", nullptr}};
        EXPECT_NE(kAnalyze(analyze("out", {"--shard", "slurm"})).err.find("SLURM_ARRAY_TASK_ID is"),
                  std::string::npos);
    }
    const auto of_task = [](const char* id, const char* step, const char* count) {
        const Environment task{{"SLURM_ARRAY_TASK_ID", id},
                               {"SLURM_ARRAY_TASK_MIN", "1"},
                               {"SLURM_ARRAY_TASK_STEP", step},
                               {"SLURM_ARRAY_TASK_COUNT", count}};
        return parse_shard("slurm").text();
    };
    EXPECT_EQ(of_task("1", "1", "4"), "0/4");
    EXPECT_EQ(of_task("4", "1", "4"), "3/4");
    EXPECT_EQ(of_task("7", "3", "4"), "2/4");
    EXPECT_THROW(of_task("5", "1", "4"), InputError);
    EXPECT_THROW(of_task("3", "3", "4"), InputError);
    EXPECT_THROW(of_task("x", "1", "4"), InputError);
}

#ifdef MSA_MPIRUN
TEST_F(Mpi, AnyNumberOfRanksGivesTheBytesOfOne) {
    const Outcome whole = kAnalyze(analyze("whole"));
    for (int ranks : {1, 2, 7}) {
        const std::string out = concat("ranks", ranks);
        ASSERT_EQ(start(ranks, analyze(out)), 0) << said();
        expect_same(out, "whole", files_);
        EXPECT_EQ(file_text(path("out.txt")), whole.out);  // once
        EXPECT_FALSE(std::filesystem::exists(path(out + "/results.h5.partial")));
    }
}

TEST_F(Mpi, AnErrorOfOneRankEndsAll) {
    EXPECT_NE(start(2, analyze("out", {"--sink-tokens", "0"})), 0);
    EXPECT_NE(said().find(": --sink-tokens is 0, must be at least 1"), std::string::npos) << said();
    ASSERT_EQ(start(2, analyze("out")), 0) << said();
    EXPECT_NE(start(2, analyze("out")), 0);  // the first rank alone looks at what is there
    EXPECT_NE(said().find("results.h5: exists; --overwrite replaces it"), std::string::npos)
        << said();
    poke(file_, "/layers/5/k", {140, 1, 3}, std::nanf(""));
    EXPECT_NE(start(3, analyze("nan")), 0);
    EXPECT_NE(said().find("/layers/5/k"), std::string::npos) << said();
}

TEST_F(Mpi, AKilledRankLosesItsUnitAlone) {
    file_ = make("long.h5", {.cu_seqlens = {0, 240, 640}, .layers = {0, 1, 2, 5, 10}});
    const auto args = [&](const std::string& out) {
        return analyze(out, {"--backend", "reference", "--resume", "--dump", "outputs,scores,mass",
                             "--unit-queries", "220"});
    };
    ASSERT_EQ(kAnalyze(args("whole")).code, 0);
    const auto units = [&] {
        int64_t count = 0;
        std::error_code none;
        for (const auto& file :
             std::filesystem::directory_iterator(path("killed/results.h5.partial"), none))
            count += file.path().filename().string().starts_with("unit-") ? 1 : 0;
        return count;
    };
    int killed = 0, code = -1;
    while (code != 0) {  // a unit further and a little later each time
        ASSERT_LE(killed, 15) << "as many as there are units: " << said();
        const int64_t before = units();
        code = start(3, args("killed"), [&] {
            if (units() <= before) return false;
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
