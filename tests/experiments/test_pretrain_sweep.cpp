// SPDX-License-Identifier: MIT
// msa-pretrain --sweep: the file, and its runs over one process and several.
#include <algorithm>
#include <map>
#include <thread>

#include "experiments/pretrain/sweep.h"
#include "tests/experiments/pretrain_test.h"
#include "tests/support/sanitized.h"

namespace msa::test {
namespace {

using experiments::pretrain::SweepRun;
using nlohmann::json;

class PretrainSweep : public Pretrain {
protected:
    PretrainSweep() {
        text_file("a.txt");
        arms(R"({"seeds": [3, 4], "arms": {
            "full": ["--attention", "full"], "msa": [],
            "wild": ["--weight-decay", "1e5", "--lr", "0.01"],
            "on": ["--start-from", "{out}/msa/seed-{seed}/checkpoint.h5", "--steps", "13"]}})");
    }
    /// For slow_.
    void long_text() const { text_file("a.txt", 40, 600); }
    void arms(const std::string& content) const { std::ofstream(path("arms.json")) << content; }
    Words words(const std::string& out, const Words& more = {}) const {
        Words all = args(out, more);
        all.insert(all.end(), {"--sweep", path("arms.json")});
        return all;
    }
    Outcome sweep(const std::string& out, const Words& more = {}) const {
        return kPretrain(words(out, more));
    }
    void done(const std::string& out, const Words& more = {}) const {
        const Outcome outcome = sweep(out, more);
        ASSERT_EQ(outcome.code, 0) << outcome.err;
    }
    bool is_whole(const std::string& out) const {
        return std::filesystem::exists(path(out + "/sweep.json"));
    }
    json answer(const std::string& out) const {
        return json::parse(file_text(path(out + "/sweep.json")));
    }
    json runs(const std::string& out) const { return answer(out)["tables"]["runs"]["rows"]; }
    /// sweep.json to the byte, and the weights of all runs that have any.
    void expect_same(const std::string& a, const std::string& b) const {
        ASSERT_TRUE(is_whole(a)) << a;
        EXPECT_TRUE(file_text(path(a + "/sweep.json")) == file_text(path(b + "/sweep.json")))
            << a << " and " << b;
        for (const json& run : runs(b))
            if (run["diverged_after"].is_null()) {
                const std::string folder =
                    concat("/", run["arm"].get<std::string>(), "/seed-", run["seed"].get<int>());
                EXPECT_TRUE(same_weights(a + folder, b + folder)) << folder;
                EXPECT_FALSE(std::filesystem::exists(path(a + folder + "/sweep.claim")));
            }
    }
    /// A row of a run is that of its summary.json, behind the arm and the seed.
    void expect_rows_of_runs(const std::string& out) const {
        const json all = answer(out);
        EXPECT_EQ(all["format"], "msa-report");
        for (const auto& [table, own] :
             {std::pair{"run_tasks", "tasks"}, {"run_layers", "layers"}}) {
            std::map<std::string, json> rows;
            for (json row : all["tables"][table]["rows"]) {
                const std::string folder = concat(out, '/', row["arm"].get<std::string>(), "/seed-",
                                                  row["seed"].get<int>());
                row.erase("arm");
                row.erase("seed");
                rows[folder].push_back(row);
            }
            EXPECT_EQ(rows.size(), 6U) << "of 8 runs two diverged";
            for (const auto& [folder, found] : rows)
                EXPECT_EQ(found, summary(folder)["tables"][own]["rows"]) << folder;
        }
        for (const json& run : all["tables"]["runs"]["rows"]) {
            if (!run["diverged_after"].is_null()) continue;
            const json trained =
                summary(concat(out, '/', run["arm"].get<std::string>(), "/seed-",
                               run["seed"].get<int>()))["tables"]["trained"]["rows"][0];
            for (const char* name : {"last_step", "parameters", "loss", "bits_per_byte"})
                EXPECT_EQ(run[name], trained[name]) << name;
        }
    }
    std::vector<SweepRun> planned(const Words& more = {}) const {
        const Words all = words("out", more);
        std::ostringstream none;
        const auto o = experiments::pretrain::parse_pretrain_options(all, none);
        return runs_of(experiments::pretrain::read_sweep(path("arms.json")), *o, all);
    }
    void refuses(const char* content, const std::string& message, const Words& more = {}) const {
        arms(content);
        const Outcome outcome = sweep("refused", more);
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
        EXPECT_FALSE(std::filesystem::exists(path("refused")));
    }
    /// Steps that are long enough for a kill to come before the last of them.
    const Words slow_{"--model-dim", "64",           "--context", "512",           "--steps",
                      "16",          "--eval-every", "0",         "--probe-every", "0"};
};

TEST_F(PretrainSweep, RunsWhatIsMissing) {
    const Outcome first = sweep("sweep");
    ASSERT_EQ(first.code, 0) << first.err;
    const json all = runs("sweep");
    ASSERT_EQ(all.size(), 8U);
    EXPECT_EQ(all[0]["arm"], "full");
    EXPECT_EQ(all[4]["seed"], 4);
    EXPECT_GT(all[2]["diverged_after"], 0);
    EXPECT_NE(all[1]["bits_per_byte"], all[5]["bits_per_byte"]);
    EXPECT_EQ(all[1]["last_step"], 12);
    EXPECT_EQ(all[3]["last_step"], 13);
    EXPECT_TRUE(all[2]["loss"].is_null());
    expect_rows_of_runs("sweep");
    // What goes on from an arm of its seed is better than it.
    EXPECT_LT(all[3]["bits_per_byte"], all[1]["bits_per_byte"]);
    EXPECT_LT(all[7]["bits_per_byte"], all[5]["bits_per_byte"]);
    // The run of an arm is what the program gives for its words.
    ASSERT_EQ(run("alone", {"--attention", "full", "--seed", "4"}).code, 0);
    EXPECT_TRUE(same_weights("alone", "sweep/full/seed-4"));
    // One is lost, and nothing else is run again.
    const std::string before = file_text(path("sweep/sweep.json"));
    const auto written = std::filesystem::last_write_time(path("sweep/msa/seed-3/checkpoint.h5"));
    std::filesystem::remove_all(path("sweep/full/seed-3"));
    const Outcome second = sweep("sweep");
    ASSERT_EQ(second.code, 0);
    EXPECT_EQ(second.out, first.out);
    EXPECT_EQ(file_text(path("sweep/sweep.json")), before);
    EXPECT_EQ(std::filesystem::last_write_time(path("sweep/msa/seed-3/checkpoint.h5")), written);
}

TEST_F(PretrainSweep, ABadFileIsRefusedWithItsRule) {
    refuses("{", "arms.json: is no JSON");
    refuses("{}", "seeds must be a list of numbers");
    refuses(R"({"seeds": [-1], "arms": {"a": []}})", "seed -1 must be a number");
    refuses(R"({"seeds": [1], "arms": {"a/b": []}})", "arm 'a/b' must be of");
    refuses(R"({"seeds": [1], "arms": {"a": "x"}})", "arm a must be a list");
    refuses(R"({"seeds": [1], "arms": {"fine": [], "b": ["--bogus"]}})", "arm b: unrecognised");
    refuses(R"({"seeds": [1], "arms": {"a": ["--help"]}})", "arm a: must be the words of one run");
    refuses(R"({"seeds": [1], "arms": {"a": ["--together"]}})", "arm a: --together is for");
    refuses(R"({"seeds": [1], "arms": {"a": []}})",
            "--devices names 2 GPUs, must be one without --together: a process on each does other "
            "runs of --sweep",
            {"--devices", "0,1"});
    refuses(R"({"seeds": [1], "arms": {"a": ["--devices=0,1"]}})",
            "arm a has --devices, which says for the whole sweep where runs are done");
    refuses(R"({"seeds": [1], "arms": {
                "a": ["--start-from", "{out}/b/seed-1/checkpoint.h5"], "b": []}})",
            "checkpoint.h5, of b, seed 1, which must come before it");
    refuses(R"({"seeds": [1], "arms": {"a": []}})", "--overwrite is not for a sweep",
            {"--overwrite"});
    EXPECT_NE(refusal({"--together"}).find("--together is for the runs of --sweep"),
              std::string::npos);
}

/// Those of the file replace the command line's, and an arm's those of the file.
TEST_F(PretrainSweep, WordsOfTheFileAreThoseOfAllArms) {
    arms(R"({"words": ["--steps", "7", "--lr", "0.5"], "seeds": [3], "arms": {
        "a": [], "b": ["--steps", "9"]}})");
    const std::vector<SweepRun> runs = planned({"--lr", "0.1"});
    EXPECT_EQ(runs[0].options.training.steps, 7);
    EXPECT_EQ(runs[1].options.training.steps, 9);
    EXPECT_EQ(runs[1].options.training.lr, 0.5);
    EXPECT_EQ(runs[1].options.context, 64);
    refuses(R"({"words": 7, "seeds": [1], "arms": {"a": []}})", "words must be a list of words");
}

/// Every run of Pilot II has a command line, and those that begin with a trunk read it.
TEST_F(PretrainSweep, BlocksOfThePilotAreSweeps) {
    const std::vector<std::tuple<const char*, size_t, int64_t>> blocks{
        {"block_a", 60, 6},  {"block_a2", 36, 12}, {"block_b", 20, 20},
        {"block_b2", 24, 4}, {"block_c", 48, 48},  {"block_d", 36, 36},
        {"block_d2", 8, 8},  {"block_f", 9, 9},    {"block_g", 2, 2}};
    for (const auto& [name, count, beginners] : blocks) {
        arms(file_text(concat(MSA_SOURCE_DIR, "/studies/pilot/", name, ".json")));
        const std::vector<SweepRun> runs = planned();
        EXPECT_EQ(runs.size(), count);
        EXPECT_EQ(
            std::ranges::count_if(runs, [](const SweepRun& run) { return run.reads.empty(); }),
            beginners);
        for (const SweepRun& run : runs) {
            EXPECT_EQ(run.options.sizes.model_dim, 16) << "of this command line";
            EXPECT_TRUE(run.options.training.clip.apart);
            // Those of B2 have steps and a rate of their own.
            const bool goes_on = run.reads.size() == 1 && std::string_view(name) != "block_b2";
            EXPECT_EQ(run.options.fork, goes_on) << run.name();
        }
    }
}

TEST_F(PretrainSweep, RunsReadEarlierOnes) {
    // Through a third one, and across seeds.
    arms(R"({"seeds": [1, 2], "arms": {
        "a": [], "b": ["--start-from", "{out}/a/seed-1/checkpoint.h5"], "c": [],
        "d": ["--start-from", "{out}/b/seed-{seed}/checkpoint.h5"]}})");
    std::vector<std::vector<size_t>> reads;
    for (const SweepRun& run : planned()) reads.push_back(run.reads);
    EXPECT_EQ(reads, (std::vector<std::vector<size_t>>{{}, {0}, {}, {1}, {}, {0}, {}, {5}}));
}

TEST_F(PretrainSweep, ItsGpuAndThreadsAreThoseOfItsRuns) {
    arms(R"({"seeds": [1], "arms": {"a": [], "b": ["--threads", "3"]}})");
    const std::vector<SweepRun> all = planned({"--devices", "4", "--threads", "8"});
    for (const auto& [n, threads] : {std::pair{size_t{0}, 8}, {1, 3}}) {
        EXPECT_EQ(all[n].options.backend_options.threads, threads);
        EXPECT_EQ(all[n].options.devices, std::vector<int64_t>{4});
    }
}

TEST_F(PretrainSweep, AnyNumberOfProcessesGivesTheBytesOfOne) {
    const Outcome whole = sweep("whole");
    ASSERT_EQ(whole.code, 0) << whole.err;
    for (int count : {2, 5}) {
        const std::string out = concat("processes", count);
        const std::vector<Outcome> outcomes = run_together("msa-pretrain", words(out), count);
        EXPECT_EQ(outcomes[0].out, whole.out);
        expect_same(out, "whole");
    }
}

TEST_F(PretrainSweep, OthersDoWhatIsFreeWhileOneIsAtARun) {
    const std::string folder = path("sweep/msa/seed-3"), claim = folder + "/sweep.claim";
    std::filesystem::create_directories(folder);
    std::ofstream(claim) << R"({"host": "elsewhere", "process": 7, "process_start": 1})";
    Process process("msa-pretrain", words("sweep"));
    const auto is_done = [&](const std::string& run) {
        return std::filesystem::exists(path("sweep/" + run + "/summary.json"));
    };
    wait_until([&] { return is_done("on/seed-4") || process.has_ended(); });
    EXPECT_TRUE(is_done("full/seed-3"));
    EXPECT_FALSE(process.has_ended());  // it waits for the run of the other one
    EXPECT_FALSE(std::filesystem::exists(path("sweep/on/seed-3")));  // which this one reads
    std::filesystem::last_write_time(
        claim, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(6));
    const Outcome outcome = process.end();
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    done("whole");
    expect_same("sweep", "whole");
}

TEST_F(PretrainSweep, RunsOfSeveralFoldersAreCopiedTogether) {
    arms(R"({"seeds": [3, 4], "arms": {"full": ["--attention", "full"], "msa": []}})");
    done("whole");
    done("other");
    for (const char* run : {"full/seed-4", "msa/seed-3"}) {
        std::filesystem::create_directories(path("sweep/" + std::string(run)));
        std::filesystem::copy(path("other/" + std::string(run)), path("sweep/" + std::string(run)));
    }
    done("sweep");
    expect_same("sweep", "whole");
}

TEST_F(PretrainSweep, OtherChoicesAreNamed) {
    arms(R"({"seeds": [3], "arms": {"full": ["--attention", "full"], "msa": []}})");
    done("sweep");
    // What was whole is not while a run is missing.
    std::filesystem::remove_all(path("sweep/msa"));
    const Outcome other = sweep("sweep", {"--beta2", "0.9"});
    EXPECT_EQ(other.code, 2);
    EXPECT_NE(other.err.find(path("sweep/full/seed-3") + ": is of another run, options.beta2 was"),
              std::string::npos)
        << other.err;
    EXPECT_FALSE(is_whole("sweep"));
    std::filesystem::remove_all(path("sweep/msa"));
    done("sweep");
    EXPECT_TRUE(is_whole("sweep"));
    // Text that has changed since.
    std::filesystem::remove_all(path("sweep/msa"));
    text_file("a.txt", 41);
    const Outcome changed = sweep("sweep");
    EXPECT_NE(changed.err.find("is of another run, inputs.a.txt was"), std::string::npos)
        << changed.err;
}

TEST_F(PretrainSweep, AnErrorEndsIt) {
    arms(R"({"seeds": [3, 4, 5], "arms": {"far": ["--start-from", "nowhere.h5"], "msa": []}})");
    const Outcome outcome = sweep("sweep");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find("nowhere.h5"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("far, seed 3\n"), std::string::npos) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(path("sweep/msa/seed-5")));
}

TEST_F(PretrainSweep, AKilledProcessLosesItsRunAlone) {
    arms(R"({"seeds": [3, 4], "arms": {"full": ["--attention", "full"], "msa": []}})");
    long_text();
    done("whole", slow_);
    int killed = 0;
    for (int64_t delay = 150, both = 0; both == 0; delay += delay / 4) {
        Process first("msa-pretrain", words("killed", slow_)),
            second("msa-pretrain", words("killed", slow_));
        std::this_thread::sleep_for(std::chrono::milliseconds(delay) * kSlowdown);
        first.signal(SIGKILL);
        const int codes[] = {first.end().code, second.end().code};
        ASSERT_TRUE(codes[0] == 0 || codes[0] == -1) << codes[0];
        EXPECT_EQ(codes[1], 0);
        expect_same("killed", "whole");
        killed += codes[0] == -1 ? 1 : 0;
        both = codes[0] == 0 ? 1 : 0;
        if (both == 0) std::filesystem::remove_all(path("killed/msa"));
    }
    EXPECT_GT(killed, 0);
}

TEST_F(PretrainSweep, TogetherDevicesTrainEachRun) {
    arms(R"({"seeds": [3], "arms": {"msa": [], "wide": ["--sequences", "4"]}})");
    done("sweep", {"--devices", "0,1", "--together"});
    ASSERT_EQ(run("alone", {"--devices", "0,1", "--seed", "3"}).code, 0);
    EXPECT_TRUE(same_weights("alone", "sweep/msa/seed-3"));
    done("one");
    EXPECT_FALSE(same_weights("one/msa/seed-3", "sweep/msa/seed-3"));  // in another order
}

#ifdef MSA_MPIRUN
class PretrainSweepRanks : public PretrainSweep {
protected:
    int start(int ranks, const Words& words, const std::function<bool()>& kills = {}) const {
        return run_ranks("msa-pretrain", ranks, words, path("out.txt"), path("err.txt"), kills);
    }
    std::string said() const { return file_text(path("err.txt")); }
};

TEST_F(PretrainSweepRanks, GiveTheBytesOfOne) {
    const Outcome whole = sweep("whole");
    for (int ranks : {2, 3}) {
        const std::string out = concat("ranks", ranks);
        ASSERT_EQ(start(ranks, words(out)), 0) << said();
        EXPECT_EQ(file_text(path("out.txt")), whole.out);  // once
        expect_same(out, "whole");
    }
    ASSERT_EQ(start(2, words("ranks2")), 0) << said();  // nothing is missing
    expect_same("ranks2", "whole");
}

TEST_F(PretrainSweepRanks, AKilledOneLosesItsRunAlone) {
    arms(R"({"seeds": [3, 4], "arms": {"full": ["--attention", "full"], "msa": []}})");
    long_text();
    done("whole", slow_);
    EXPECT_NE(
        start(2, words("killed", slow_),
              [&] { return std::filesystem::exists(path("killed/full/seed-3/checkpoint.h5")); }),
        0);
    if (is_whole("killed"))  // the other rank took its run before mpirun ended it
        expect_same("killed", "whole");
    ASSERT_EQ(start(2, words("killed", slow_)), 0) << said();
    expect_same("killed", "whole");
}

TEST_F(PretrainSweepRanks, WhatExcludesEachOtherIsRefused) {
    EXPECT_NE(start(2, words("out", {"--devices", "0,1", "--together"})), 0);
    EXPECT_NE(said().find("--devices names 2 GPUs, and there are 2 ranks"), std::string::npos)
        << said();
    EXPECT_FALSE(std::filesystem::exists(path("out")));
}

TEST_F(PretrainSweepRanks, TogetherTheyTrainEachRun) {
    arms(R"({"seeds": [3], "arms": {
        "wild": ["--weight-decay", "1e5", "--lr", "0.01"], "msa": [],
        "on": ["--start-from", "{out}/msa/seed-{seed}/checkpoint.h5", "--steps", "13"]}})");
    ASSERT_EQ(start(2, words("ranks", {"--together"})), 0) << said();
    done("threads", {"--together", "--devices", "0,1"});
    ASSERT_EQ(runs("ranks").size(), 3U);
    expect_same("ranks", "threads");
    ASSERT_EQ(start(2, words("ranks", {"--together"})), 0) << said();  // nothing is missing
}
#endif

}  // namespace
}  // namespace msa::test
