// SPDX-License-Identifier: MIT
// Programs run in process, as a user would call them, on small files made for the purpose.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/io/activations.h"
#include "experiments/driver/program.h"

namespace msa::test {

struct Outcome {
    int code = 0;
    std::string out, err;
};

/// A program with its name, as its main function has them.
struct Program {
    std::string name;
    experiments::Run run;
    Outcome operator()(const std::vector<std::string>& args) const;
};
/// For the names of tests.
inline void PrintTo(const Program& program, std::ostream* to) { *to << program.name; }
/// Every program there is, in the order of experiments/programs.def.
const std::vector<Program>& programs();
/// The one of that name.
const Program& program(const std::string& name);
/// Those that tests of several files run.
inline const Program kAdvise = program("msa-advise"), kAnalyze = program("msa-analyze"),
                     kBench = program("msa-bench"), kCache = program("msa-cache"),
                     kCompare = program("msa-compare"), kCost = program("msa-cost"),
                     kFit = program("msa-fit-indexer"), kInspect = program("msa-inspect"),
                     kPrecision = program("msa-precision"), kPretrain = program("msa-pretrain"),
                     kReuse = program("msa-reuse"), kSynth = program("msa-synth");

/// Sizes of a file of random activations, and what may be wrong with it.
struct Activations {
    std::vector<int64_t> cu_seqlens{0, 90, 150};
    std::vector<int64_t> layers{0, 3};
    int64_t query_heads = 4, kv_heads = 2, head_dim = 16, index_dim = 16;
    io::RopeState q_state = io::RopeState::post_rope;
    /// As in io::LayerInfo, of every layer.
    std::map<std::string, std::vector<double>> own_attention = {};
    std::optional<int64_t> rotary_dim = {};  // with rope_theta 1e4
    std::string model_config = "{}";
};

/// A directory of its own for every test, removed at its end.
class CliTest : public testing::Test {
public:
    ~CliTest() override;

protected:
    CliTest();
    std::string path(const std::string& name) const { return (directory_ / name).string(); }
    /// Writes a file and returns its path.
    std::string make(const std::string& name, const Activations& = {}) const;

private:
    std::filesystem::path directory_;
};

/// Overwrites the floats [at, at + extent) of a file, past the checks of the writers.
void poke(const std::string& file, const std::string& dataset, const Shape<3>& at, float value,
          const Shape<3>& extent = {1, 1, 1});

std::string file_text(const std::filesystem::path& path);

/// A built program in a process of its own.
class Process {
public:
    /// `environment`: "NAME=VALUE", in place of what this process has.
    Process(const std::string& program, const std::vector<std::string>& args,
            const std::vector<std::string>& environment = {});
    ~Process();
    Process(Process&&) noexcept;
    Process& operator=(Process&&) = delete;

    void signal(int number) const;
    bool has_ended();
    /// Waits until it ends. The exit code is -1 if a signal ended it.
    Outcome end();
    pid_t id() const { return id_; }

private:
    void collect(int status);

    int out_ = -1, err_ = -1;
    pid_t id_ = 0;
    std::optional<Outcome> outcome_;
};

/// Looks every millisecond.
void wait_until(const std::function<bool()>& event);

/// Starts so many processes with the same arguments and waits for all. What each gave; a failure
/// unless all exit with 0 and print the same.
std::vector<Outcome> run_together(const std::string& program, const std::vector<std::string>& args,
                                  int count);

/// Runs the built program in a process of its own and signals it after `delay`, in a build with a
/// sanitizer kSlowdown times as late, so that it has come about as far; its exit code, or -1 when
/// the signal ended it.
int run_for(const std::string& program, const std::vector<std::string>& args,
            std::chrono::microseconds delay, int signal = SIGKILL);

#ifdef MSA_MPIRUN
/// Starts mpirun with so many ranks of a built program, which write into the files `out` and `err`.
/// Where `kills` is given, the last rank is killed once it returns true. The exit code, or -1 when
/// a signal ended mpirun: that of the tests if it has not ended 30 s after the kill or, a failure,
/// within 5 min. Absent in a build with a sanitizer.
int run_ranks(const std::string& program, int ranks, const std::vector<std::string>& args,
              const std::string& out, const std::string& err,
              const std::function<bool()>& kills = {});
#endif

/// Every dataset of two results files, bit by bit; where `but` is true of a path, its shape alone.
testing::AssertionResult same_data(const std::string& left, const std::string& right,
                                   const std::function<bool(const std::string&)>& but = {});
/// The same but for columns of time, and what /run says of options and inputs.
testing::AssertionResult same_results(const std::string& left, const std::string& right);

}  // namespace msa::test
