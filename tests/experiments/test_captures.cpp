// SPDX-License-Identifier: MIT
// Several captures as one data set: a run over a file that was split in two is the run over the
// whole file, bit for bit, and says which sequence is of which file.
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/io/claim.h"
#include "core/io/results.h"
#include "core/io/sha256.h"
#include "experiments/driver/run_record.h"
#include "tests/experiments/fit_test.h"

namespace msa::test {
namespace {

using nlohmann::json;

/// The sequences [first, end) of a file as a file of their own.
void copy_sequences(const std::string& from, const std::string& to, size_t first, size_t end) {
    const io::ActivationsReader whole(from);
    io::ActivationsInfo info = whole.info();
    const std::vector<int64_t> cu = info.cu_seqlens;
    const QueryRange range{cu[first], cu[end]};
    info.cu_seqlens.clear();
    for (size_t s = first; s <= end; ++s) info.cu_seqlens.push_back(cu[s] - cu[first]);
    io::ActivationsWriter writer(to, info, false);
    for (const io::LayerInfo& layer : info.layers)
        for (io::Field field : io::kFields)
            if (layer.has(field))
                writer.write(layer.layer, field, 0, 0, whole.read(layer.layer, field, range));
    writer.finish();
}

/// What a summary says but for the names of files.
json numbers_of(const std::string& summary) {
    json all = json::parse(file_text(summary));
    EXPECT_FALSE(all["run"]["captures"].is_null());
    for (const char* key : {"captures", "inputs"}) all["run"].erase(key);
    all["run"]["options"].erase("files");
    all["notes"].erase("captures");
    if (all["program"] == kCache.name) {  // names the file
        all["notes"].erase("guesses");
        for (json& layer : all["tables"]["layers"]["rows"]) layer.erase("previous_layer_note");
    }
    return all;
}

struct Asked {
    const Program& program;
    std::vector<std::string> options;
};
void PrintTo(const Asked& asked, std::ostream* to) { *to << asked.program.name; }

class CapturesOf : public Fit, public testing::WithParamInterface<Asked> {
protected:
    /// Three sequences, of which the first two go into one file; with hidden states for a fit, with
    /// an Index Branch for others.
    void write_files() {
        const std::vector<int64_t> cu_seqlens{0, 300, 420, 700}, layers{3, 4};
        if (GetParam().program.name == kFit.name)
            write("whole.h5", {.cu_seqlens = cu_seqlens, .layers = layers});
        else
            make("whole.h5", {.cu_seqlens = cu_seqlens, .layers = layers});
        copy_sequences(path("whole.h5"), path("a.h5"), 0, 2);
        copy_sequences(path("whole.h5"), path("b.h5"), 2, 3);
    }
    Outcome start(std::vector<std::string> files, const std::string& out) const {
        for (std::string& file : files) file = path(file);
        files.insert(files.end(), {"--out", path(out), "--threads", "2"});
        files.insert(files.end(), GetParam().options.begin(), GetParam().options.end());
        return GetParam().program(files);
    }
};

TEST_P(CapturesOf, AFileSplitInTwoAreTheFile) {
    write_files();
    const Outcome whole = start({"whole.h5"}, "whole"), parts = start({"a.h5", "b.h5"}, "parts");
    ASSERT_TRUE(whole.code == 0 || whole.code == 2) << whole.err;
    EXPECT_EQ(parts.code, whole.code) << parts.err;
    EXPECT_EQ(numbers_of(path("parts/summary.json")), numbers_of(path("whole/summary.json")));
    EXPECT_TRUE(same_data(path("parts/results.h5"), path("whole/results.h5")));

    const io::RunRecord run = io::ResultsReader(path("parts/results.h5")).run();
    const std::map<std::string, std::string> digests{{"a.h5", io::sha256_of_file(path("a.h5"))},
                                                     {"b.h5", io::sha256_of_file(path("b.h5"))}};
    EXPECT_EQ(run.inputs, digests);
    EXPECT_EQ(json::parse(run.options)["files"], json::parse(R"(["a.h5", "b.h5"])"));
    const json captures = json::parse(R"([
        {"input": "a.h5", "model": "test", "first_sequence": 0, "sequences": 2,
         "first_token": 0, "tokens": 420},
        {"input": "b.h5", "model": "test", "first_sequence": 2, "sequences": 1,
         "first_token": 420, "tokens": 280}])");
    EXPECT_EQ(json::parse(run.captures), captures);
    const json all = json::parse(file_text(path("parts/summary.json")));
    EXPECT_EQ(all["run"]["captures"], captures);
    const std::string said = "3 sequences of 2 captures: 0 to 1 of a.h5, 2 of b.h5.";
    EXPECT_NE(parts.out.find(said), std::string::npos) << parts.out;
    EXPECT_EQ(whole.out.find(" captures: "), std::string::npos);
}

TEST_P(CapturesOf, ThatDifferAreRefused) {
    write_files();
    make("c.h5", {.cu_seqlens = {0, 300}, .layers = {3, 4}, .query_heads = 2});
    const Outcome outcome = start({"whole.h5", "c.h5"}, "out");
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find(path("c.h5") + ": /layers/3"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(", in " + path("whole.h5") + " it is "), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path("out")));
}

const Asked kAsked[] = {
    {kAdvise,
     {"--block-size", "8,16", "--top-k", "4", "--selectors", "mean-key,window", "--keep", "0.3"}},
    {kAnalyze,
     {"--block-size", "8", "--top-k", "4", "--selectors", "index,mean-key,random",
      "--sample-queries", "200"}},
    {kCompare,
     {"--block-size", "8", "--budgets", "32", "--selectors", "oracle,random,sparq,snapkv",
      "--positions", "64:"}},
    {kFit,
     {"--block-size", "8", "--top-k", "4", "--index-dim", "16", "--steps", "4", "--warmup-steps",
      "2", "--queries-per-step", "32"}},
    {kPrecision,
     {"--block-size", "8", "--top-k", "4", "--formats", "int8", "--scales", "token", "--rotations",
      "none", "--sample-queries", "100"}},
    {kReuse, {"--block-size", "8", "--top-k", "4", "--selectors", "index", "--lose", "0.9"}},
};
INSTANTIATE_TEST_SUITE_P(All, CapturesOf, testing::ValuesIn(kAsked), [](const auto& of) {
    std::string name = of.param.program.name;
    std::erase(name, '-');
    return name;
});

using CapturesRun = Fit;

TEST_F(CapturesRun, TheOrderIsPartOfIt) {
    make("a.h5", {.cu_seqlens = {0, 90}});
    make("b.h5", {.cu_seqlens = {0, 60}});
    const auto analyze = [&](const std::string& first, const std::string& second) {
        return kAnalyze({path(first), path(second), "--out", path("out"), "--block-size", "8",
                         "--top-k", "4", "--selectors", "mean-key"});
    };
    ASSERT_EQ(analyze("a.h5", "b.h5").code, 0);
    const Outcome swapped = analyze("b.h5", "a.h5");
    EXPECT_EQ(swapped.code, 2);
    EXPECT_NE(swapped.err.find("files was [\"a.h5\",\"b.h5\"], is [\"b.h5\",\"a.h5\"]"),
              std::string::npos)
        << swapped.err;
}

TEST_F(CapturesRun, CacheKnowsThoseOfItsAnalysis) {
    make("whole.h5", {.cu_seqlens = {0, 300, 420}, .layers = {3, 4}});
    copy_sequences(path("whole.h5"), path("a.h5"), 0, 1);
    copy_sequences(path("whole.h5"), path("b.h5"), 1, 2);
    const std::vector<std::string> usual{"--block-size", "8",       "--top-k", "4",
                                         "--selectors",  "mean-key"};
    const auto cache = [&](std::vector<std::string> files, const std::string& name) {
        for (std::string& file : files) file = path(file);
        files.insert(files.end(), {"--out", path(name)});
        files.insert(files.end(), usual.begin(), usual.end());
        EXPECT_EQ(kAnalyze(files).code, 0);
        EXPECT_EQ(kCache({path(name + "/results.h5"), "--out", path(name + "-cache")}).code, 0);
        return numbers_of(path(name + "-cache/summary.json"));
    };
    EXPECT_EQ(cache({"a.h5", "b.h5"}, "parts"), cache({"whole.h5"}, "whole"));
    EXPECT_NE(file_text(path("parts-cache/cache.txt")).find("0 of a.h5, 1 of b.h5."),
              std::string::npos);
    const Outcome two =
        kCache({path("parts/results.h5"), path("whole/results.h5"), "--out", path("two")});
    EXPECT_EQ(two.code, 2);
    EXPECT_NE(two.err.find("msa-cache reads one input, several are named"), std::string::npos)
        << two.err;
}

TEST_F(CapturesRun, MakeAnIndexerOfDsaAndAreScoredWithIt) {
    write("whole.h5", {.cu_seqlens = {0, 1540, 3080}});
    const std::vector<std::string> dsa{"--architecture", "dsa", "--index-heads", "4"};
    const auto split = [&](const std::string& file, const std::string& out) {
        copy_sequences(path(file), path(out + "-a.h5"), 0, 1);
        copy_sequences(path(file), path(out + "-b.h5"), 1, 2);
        return std::vector<std::string>{path(out + "-a.h5"), path(out + "-b.h5")};
    };
    ASSERT_EQ(run({path("whole.h5")}, "whole", dsa).code, 0);
    ASSERT_EQ(run(split("whole.h5", "x"), "parts", dsa).code, 0);
    EXPECT_TRUE(same_data(path("parts/results.h5"), path("whole/results.h5")));
    EXPECT_TRUE(file_text(path("parts/indexer.h5")) == file_text(path("whole/indexer.h5")));
    const json report = report_of(path("parts"));
    EXPECT_EQ(numbers_of(path("parts/summary.json")), numbers_of(path("whole/summary.json")));
    for (const char* name : {"kl", "kl_selected", "score_recall", "mass_kept"}) {
        const json gain = row_of(report, "gains", {{"measure", name}});
        EXPECT_LE(gain["gain_low"], gain["gain"]) << name;
        EXPECT_GE(gain["gain_high"], gain["gain"]) << name;
    }

    const auto analyze = [&](std::vector<std::string> files, const std::string& out) {
        files.insert(files.end(), {"--out", path(out), "--block-size", "8", "--top-k", "4",
                                   "--selectors", "dsa"});
        const Outcome outcome = kAnalyze(files);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return numbers_of(path(out + "/summary.json"));
    };
    EXPECT_EQ(analyze(split("parts/indexer.h5", "fitted"), "of-parts"),
              analyze({path("parts/indexer.h5")}, "of-whole"));
    const Outcome other = run({path("fitted-a.h5"), path("x-b.h5")}, "other", dsa);
    EXPECT_EQ(other.code, 2);
    EXPECT_NE(other.err.find(path("x-b.h5") + ": /layers/3 attribute own_block_size is missing"),
              std::string::npos)
        << other.err;
}

TEST_F(CapturesRun, ProcessesOfAFitReadAllFiles) {
    write("whole.h5", {.cu_seqlens = {0, 192, 312}, .layers = {3, 5}});
    copy_sequences(path("whole.h5"), path("a.h5"), 0, 1);
    copy_sequences(path("whole.h5"), path("b.h5"), 1, 2);
    const std::vector<std::string> parts{path("a.h5"), path("b.h5")};
    ASSERT_EQ(run({path("whole.h5")}, "whole").code, 0);
    run_together("msa-fit-indexer", args(parts, "parts"), 2);
    EXPECT_TRUE(same_data(path("parts/results.h5"), path("whole/results.h5")));
    EXPECT_TRUE(file_text(path("parts/indexer.h5")) == file_text(path("whole/indexer.h5")));
    EXPECT_EQ(numbers_of(path("parts/summary.json")), numbers_of(path("whole/summary.json")));
}

class InputHashes : public CliTest {
protected:
    /// A process that hashes the file "text" and ends. It has not hashed anything before.
    pid_t begin(const experiments::SharedHashes& shared) const {
        const pid_t child = fork();
        if (child == 0) {
            std::ofstream(path("hash"))
                << experiments::hash_inputs({path("text")}, shared).at("text");
            _exit(0);
        }
        return child;
    }
    std::string end(pid_t child) const {
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
        return file_text(path("hash"));
    }
    std::string hash(const experiments::SharedHashes& shared) const { return end(begin(shared)); }
};

/// Of the same size and within the same tick of the clock, too.
TEST_F(InputHashes, AreThoseOfTheBytesThatAreThere) {
    const std::string file = path("text");
    for (const char* text : {"one", "two", "six"}) {
        std::ofstream(file) << text;
        for (int twice = 0; twice < 2; ++twice)
            EXPECT_EQ(experiments::hash_inputs({file}).at("text"), io::sha256_of_file(file))
                << text;
    }
}

/// Who has another process's hash shows where that is a wrong one.
TEST_F(InputHashes, ProcessesOfAFolderShareThem) {
    const std::string file = path("text"), folder = path("folder");
    std::ofstream(file) << "one";
    std::filesystem::create_directory(folder);
    const std::string own = io::sha256_of_file(file), planted(own.size(), 'a');
    EXPECT_EQ(hash({folder, true}), own);
    EXPECT_TRUE(std::filesystem::is_empty(folder)) << "the file may change in the same second";
    std::this_thread::sleep_for(std::chrono::seconds(4));
    EXPECT_EQ(hash({folder, false}), own);
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    EXPECT_EQ(hash({folder, true}), own);
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
        files.push_back(entry.path());
    ASSERT_EQ(files.size(), 1U);
    const std::string written = file_text(files[0]), host = written.substr(0, written.find(' '));
    ASSERT_EQ(written, host + ' ' + own + '\n');
    const auto plant = [&](const std::string& of) {
        std::ofstream(files[0]) << of << ' ' << planted;
    };
    plant(host);
    for (bool publish : {false, true}) EXPECT_EQ(hash({folder, publish}), planted);
    plant("another-host");
    EXPECT_EQ(hash({folder, false}), own);
    // While one computes it, the others wait.
    std::filesystem::remove(files[0]);
    std::optional<io::Claim> claim = io::Claim::take(files[0].string() + ".claim");
    ASSERT_TRUE(claim);
    const pid_t waiting = begin({folder, true});
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_EQ(waitpid(waiting, nullptr, WNOHANG), 0);
    plant(host);
    claim.reset();
    EXPECT_EQ(end(waiting), planted);
    // Of other bytes nothing is known.
    std::ofstream(file) << "two";
    EXPECT_EQ(hash({folder, true}), io::sha256_of_file(file));
    EXPECT_EQ(hash({path("nowhere"), true}), io::sha256_of_file(file));
}

}  // namespace
}  // namespace msa::test
