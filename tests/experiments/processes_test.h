// SPDX-License-Identifier: MIT
// Runs that several processes do together.
#pragma once

#include <functional>
#include <thread>

#include "tests/experiments/fit_test.h"

namespace msa::test {

class Processes : public Fit {
protected:
    Processes() : file_(make("a.h5", {.layers = {0, 1, 2, 5, 10}})) {}

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
    /// Many units, each of which takes a while; of a file of their own.
    std::vector<std::string> slow(const std::string& out,
                                  const std::vector<std::string>& more = {}) {
        if (!std::filesystem::exists(path("long.h5")))
            make("long.h5", {.cu_seqlens = {0, 240, 640}, .layers = {0, 1, 2, 5, 10}});
        file_ = path("long.h5");
        std::vector<std::string> all = analyze(
            out,
            {"--backend", "reference", "--dump", "outputs,scores,mass", "--unit-queries", "220"});
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
    std::string folder(const std::string& out) const { return path(out + "/results.h5.partial"); }
    /// The files of a run under way whose names end so.
    std::vector<std::string> files_in(const std::string& out, const std::string& end) const {
        std::vector<std::string> files;
        std::error_code none;
        for (const auto& file : std::filesystem::directory_iterator(folder(out), none))
            if (const std::string name = file.path().string(); name.ends_with(end))
                files.push_back(name);
        return files;
    }
    int64_t units(const std::string& out) const { return std::ssize(files_in(out, ".h5")); }
    /// Starts such a run, and kills it in a unit once it has so many.
    void kill_at(int64_t count, const std::string& out,
                 const std::vector<std::string>& environment = {}) {
        Process process("msa-analyze", slow(out), environment);
        wait_until([&] {
            return (units(out) >= count && !files_in(out, ".claim").empty() &&
                    !files_in(out, ".tmp").empty()) ||
                   process.has_ended();
        });
        process.signal(SIGKILL);
        ASSERT_EQ(process.end().code, -1);
    }
    void expect_same(const std::string& left, const std::string& right,
                     const std::vector<std::string>& files) const {
        for (const std::string& name : files) {
            const std::string of_left = file_text(path(left + "/" + name));
            EXPECT_FALSE(of_left.empty()) << name;
            EXPECT_TRUE(of_left == file_text(path(right + "/" + name)))
                << left << "/" << name << " and " << right << "/" << name << " differ";
        }
        EXPECT_FALSE(std::filesystem::exists(folder(left)));
        for (const auto& file : std::filesystem::directory_iterator(path(left)))
            EXPECT_NE(file.path().extension(), ".tmp") << file.path();
    }

    std::string file_;
    const std::vector<std::string> files_{"results.h5", "summary.json", "metrics.csv",
                                          "analyze.txt"};
};

#ifdef MSA_MPIRUN
class Mpi : public Processes {
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
