// SPDX-License-Identifier: MIT
// Runs that are spread over workers: shards, and ranks of MPI.
#pragma once

#include <functional>

#include "tests/experiments/fit_test.h"

namespace msa::test {

class Shards : public Fit {
protected:
    Shards() : file_(make("a.h5", {.layers = {0, 1, 2, 5, 10}})) {}

    std::vector<std::string> analyze(const std::string& out,
                                     const std::vector<std::string>& more = {}) const {
        std::vector<std::string> all{
            file_, "--out",       path(out),       "--block-size", "8", "--top-k",
            "4",   "--selectors", "oracle,random", "--threads",    "1"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    std::vector<std::string> compare(const std::string& out,
                                     const std::vector<std::string>& more) const {
        std::vector<std::string> all{file_,          "--out",       path(out),
                                     "--block-size", "8",           "--budgets",
                                     "32",           "--selectors", "oracle,window,random"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    static std::string part(int64_t index, int64_t count) { return concat(index, "/", count); }
    /// Runs --shard 0/count and so on into NAME0 ..., and returns these.
    std::vector<std::string> analyze_in(int64_t count, const std::string& name) const {
        std::vector<std::string> folders;
        for (int64_t n = 0; n < count; ++n) {
            const Outcome outcome = kAnalyze(analyze(concat(name, n), {"--shard", part(n, count)}));
            EXPECT_EQ(outcome.code, 0) << outcome.err;
            folders.push_back(path(concat(name, n)));
        }
        return folders;
    }
    Outcome merge(std::vector<std::string> folders, const std::string& out) const {
        folders.insert(folders.end(), {"--out", path(out)});
        return kMerge(folders);
    }
    void expect_same(const std::string& left, const std::string& right,
                     const std::vector<std::string>& files) const {
        for (const std::string& name : files) {
            const std::string of_left = file_text(path(left + "/" + name));
            EXPECT_FALSE(of_left.empty()) << name;
            EXPECT_TRUE(of_left == file_text(path(right + "/" + name)))
                << left << "/" << name << " and " << right << "/" << name << " differ";
        }
    }
    void refuses(const std::vector<std::string>& folders, const std::string& message) const {
        const Outcome outcome = merge(folders, "refused");
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(message), std::string::npos) << outcome.err;
        EXPECT_FALSE(std::filesystem::exists(path("refused/results.h5")));
    }

    std::string file_;
    const std::vector<std::string> files_{"results.h5", "summary.json", "metrics.csv"};
};

#ifdef MSA_MPIRUN
class Mpi : public Shards {
protected:
    int start(int ranks, const std::vector<std::string>& args,
              const std::function<bool()>& kills = {},
              const std::string& program = "msa-analyze") const {
        return run_ranks(program, ranks, args, path("out.txt"), path("err.txt"), kills);
    }
    std::string said() const { return file_text(path("err.txt")); }
};
#endif

}  // namespace msa::test
