// SPDX-License-Identifier: MIT
// Two processes at one name, and disks that are full.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <numeric>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/partial_file.h"
#include "core/io/results.h"

namespace msa::io {
namespace {

std::string content_of(const std::filesystem::path& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

/// A process that does a step, says so, and waits to be told to go on.
class Other {
public:
    using Pause = std::function<void()>;
    explicit Other(const std::function<void(const Pause&)>& work) {
        if (pipe(said_.data()) != 0 || pipe(told_.data()) != 0) throw std::runtime_error("pipe");
        child_ = fork();
        if (child_ > 0) return;
        int code = 0;
        try {
            work([&] {
                char byte = 0;
                if (write(said_[1], "x", 1) != 1 || read(told_[0], &byte, 1) != 1) _exit(9);
            });
        } catch (const std::exception& error) {
            code = 1;
            if (write(said_[1], error.what(), std::strlen(error.what())) < 0) code = 9;
        }
        _exit(code);
    }
    ~Other() {
        for (int end : {said_[0], said_[1], told_[0], told_[1]}) close(end);
        if (child_ > 0) end(SIGKILL);
    }
    Other(const Other&) = delete;
    Other& operator=(const Other&) = delete;

    void wait_for_pause() const {
        char byte = 0;
        ASSERT_EQ(read(said_[0], &byte, 1), 1);
    }
    void go_on() const { ASSERT_EQ(write(told_[1], "x", 1), 1); }
    /// The exit code, or -1 when a signal ended it.
    int end(int signal = 0) {
        if (signal != 0) kill(child_, signal);
        int status = 0;
        waitpid(child_, &status, 0);
        child_ = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    /// What it threw.
    std::string error() {
        close(said_[1]);
        std::string words(4096, '\0');
        const ssize_t count = read(said_[0], words.data(), words.size());
        said_[1] = dup(said_[0]);
        return words.substr(0, static_cast<size_t>(std::max<ssize_t>(0, count)));
    }

private:
    std::array<int, 2> said_{}, told_{};
    pid_t child_ = 0;
};

class OneWriter : public testing::Test {
public:
    ~OneWriter() override { std::filesystem::remove_all(folder_); }

protected:
    OneWriter() {
        folder_ = std::filesystem::temp_directory_path() /
                  concat("msalab-writers-", getpid(), "-",
                         testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder_);
        info_.model_config = "{}";
        info_.cu_seqlens = {0, 4096};
        LayerInfo layer;
        layer.query_heads = layer.kv_heads = 1;
        layer.head_dim = 32;
        layer.softmax_scale = 1;
        layer.element = Element::f32;
        info_.layers = {layer};
        record_.program = "test";
        record_.options = record_.definitions = "{}";
    }

    Tensor<float, 3> values(float first) const {
        Tensor<float, 3> all({4096, 1, 32});
        std::iota(all.data(), all.data() + all.size(), first);
        return all;
    }
    void write_activations(float first, bool overwrite, const Other::Pause& pause) const {
        ActivationsWriter writer(file(), info_, overwrite);
        writer.write(0, Field::q, 0, 0, values(first));
        pause();
        writer.write(0, Field::k, 0, 0, values(first));
        writer.write(0, Field::v, 0, 0, values(first));
        writer.finish();
    }
    void write_results(float first, IfExists if_exists, const Other::Pause& pause) const {
        ResultsWriter writer(file(), record_, if_exists);
        for (const char* unit : {"layer 0", "layer 1"}) {
            if (writer.done(unit)) continue;
            UnitWriter to = writer.begin(unit);
            const std::string name = concat("/outputs/", unit[6]);
            to.create<float, 3>(name, {4096, 1, 32}, {});
            pause();
            to.write_rows<float, 3>(name, 0, values(first));
            to.finish();
        }
        pause();
        writer.finish();
    }
    void expect_activations(float first) const {
        const ActivationsReader reader(file());
        for (Field field : {Field::q, Field::k, Field::v})
            EXPECT_EQ(reader.read(0, field, {0, 4096})(4095, 0, 31), first + 4096 * 32 - 1);
    }
    void expect_results(float first) const {
        const ResultsReader reader(file());
        EXPECT_EQ(reader.done().size(), 2U);
        for (const char* name : {"/outputs/0", "/outputs/1"})
            EXPECT_EQ((reader.read<float, 3>(name)(4095, 0, 31)), first + 4096 * 32 - 1);
    }
    template <typename Call>
    static std::string refusal(const Call& call) {
        try {
            call();
        } catch (const InputError& error) {
            return error.what();
        }
        return "";
    }
    std::filesystem::path file() const { return folder_ / "a.h5"; }
    std::string busy() const { return "another process is writing " + file().string(); }
    /// Names in the folder.
    std::vector<std::string> left() const {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_))
            names.push_back(entry.path().lexically_relative(folder_).string());
        std::sort(names.begin(), names.end());
        return names;
    }
    using Names = std::vector<std::string>;

    static void nothing() {}
    std::filesystem::path folder_;
    ActivationsInfo info_;
    RunRecord record_;
};

TEST_F(OneWriter, OfActivations) {
    Other first([&](const auto& pause) { write_activations(1, false, pause); });
    first.wait_for_pause();
    for (bool overwrite : {false, true})
        EXPECT_EQ(refusal([&] { write_activations(2, overwrite, nothing); }), busy());
    first.go_on();
    EXPECT_EQ(first.end(), 0);
    expect_activations(1);
    EXPECT_EQ(left(), Names{"a.h5"});
}

TEST_F(OneWriter, OfResultsAtEveryStep) {
    for (int steps = 1; steps <= 3; ++steps) {
        Other first([&](const auto& pause) { write_results(1, IfExists::overwrite, pause); });
        for (int step = 1; step <= 3; ++step) {
            first.wait_for_pause();
            if (step == steps)
                for (IfExists how : {IfExists::overwrite, IfExists::resume}) {
                    EXPECT_EQ(refusal([&] { write_results(2, how, nothing); }), busy());
                }
            first.go_on();
        }
        EXPECT_EQ(first.end(), 0);
        expect_results(1);
        EXPECT_EQ(left(), Names{"a.h5"});
    }
}

TEST_F(OneWriter, WhoHasFinishedLeavesTheNextOneAlone) {
    auto first = std::make_unique<ResultsWriter>(file(), record_, IfExists::overwrite);
    first->finish();
    ResultsWriter next(file(), record_, IfExists::overwrite);
    UnitWriter unit = next.begin("layer 0");
    first.reset();
    unit.finish();
    next.finish();
    EXPECT_EQ(ResultsReader(file()).done(), std::vector<std::string>{"layer 0"});
}

TEST_F(OneWriter, OfSmallFiles) {
    Other first([&](const auto& pause) {
        PartialFile out(file(), true);
        out.write("the first");
        pause();
        out.write(" one's");
        out.finish();
    });
    first.wait_for_pause();
    EXPECT_EQ(refusal([&] { PartialFile(file(), true); }), busy());
    first.go_on();
    EXPECT_EQ(first.end(), 0);
    EXPECT_EQ(content_of(file()), "the first one's");
    EXPECT_EQ(refusal([&] { PartialFile(file(), false); }), file().string() + ": exists");
    EXPECT_EQ(left(), Names{"a.h5"});
}

TEST_F(OneWriter, TheLockOfAKilledOneIsGone) {
    Other activations([&](const auto& pause) { write_activations(1, false, pause); });
    activations.wait_for_pause();
    EXPECT_EQ(activations.end(SIGKILL), -1);
    EXPECT_EQ(left(), Names{"a.h5.partial"});
    write_activations(2, false, nothing);
    expect_activations(2);
    std::filesystem::remove(file());

    Other results([&](const auto& pause) { write_results(1, IfExists::refuse, pause); });
    results.wait_for_pause();
    results.go_on();
    results.wait_for_pause();  // the first unit is finished
    EXPECT_EQ(results.end(SIGKILL), -1);
    write_results(1, IfExists::resume, nothing);
    expect_results(1);
    EXPECT_EQ(left(), Names{"a.h5"});
}

TEST_F(OneWriter, AtAnyDelayOneOfTwoFilesIsThereAndWhole) {
    for (int delay = 0; delay < 20; ++delay) {
        std::filesystem::remove(file());
        const auto late = [&](const auto& write) {
            return [&, write](const Other::Pause&) {
                usleep(static_cast<useconds_t>(delay * 700));
                write();
            };
        };
        Other a([&](const auto&) { write_activations(1, true, nothing); });
        Other b(late([&] { write_activations(2, true, nothing); }));
        const int code_a = a.end(), code_b = b.end();
        EXPECT_TRUE(code_a == 0 || code_b == 0);
        const float last = ActivationsReader(file()).read(0, Field::q, {4095, 4096})(0, 0, 31);
        expect_activations(last - 4096 * 32 + 1);
        EXPECT_EQ(a.error(), code_a == 0 ? "" : busy());
        EXPECT_EQ(b.error(), code_b == 0 ? "" : busy());

        std::filesystem::remove(file());
        Other c([&](const auto&) { write_results(1, IfExists::overwrite, nothing); });
        Other d(late([&] { write_results(2, IfExists::overwrite, nothing); }));
        const int code_c = c.end(), code_d = d.end();
        EXPECT_TRUE(code_c == 0 || code_d == 0);
        EXPECT_EQ(c.error(), code_c == 0 ? "" : busy());
        EXPECT_EQ(d.error(), code_d == 0 ? "" : busy());
        const float end = ResultsReader(file()).read<float, 3>("/outputs/1")(4095, 0, 31);
        expect_results(end - 4096 * 32 + 1);
        EXPECT_EQ(left(), Names{"a.h5"});
    }
}

TEST_F(OneWriter, WhateverHdf5IsToldOfLocks) {
    // HDF5 reads the variable when a process begins with it: of this very program.
    for (const char* value : {"TRUE", "BEST_EFFORT", "FALSE"}) {
        const std::string command =
            concat("HDF5_USE_FILE_LOCKING=", value, " '",
                   std::filesystem::read_symlink("/proc/self/exe").string(),
                   "' --gtest_filter=OneWriter.OfActivations:OneWriter.OfResultsAtEveryStep >'",
                   (folder_ / "log").string(), "'");
        EXPECT_EQ(std::system(command.c_str()), 0) << value << content_of(folder_ / "log");
    }
}

/// What a process threw that may write no file above `bytes`; it must have left `names`.
class FullDisk : public OneWriter {
protected:
    std::string error_at(rlim_t bytes, const std::function<void()>& work) const {
        Other other([&](const auto&) {
            const rlimit limit{bytes, bytes};
            setrlimit(RLIMIT_FSIZE, &limit);
            std::signal(SIGXFSZ, SIG_IGN);
            try {
                work();
            } catch (const SystemError& error) {
                throw std::runtime_error(concat("SystemError ", error.what()));
            }
        });
        EXPECT_EQ(other.end(), 1);
        return other.error();
    }
    void expect_reason(const std::string& error) const {
        EXPECT_EQ(error.rfind("SystemError cannot write " + file().string(), 0), 0U) << error;
        EXPECT_NE(error.find("File too large"), std::string::npos) << error;
    }
};

TEST_F(FullDisk, LeavesNoActivations) {
    write_activations(1, false, nothing);
    const auto size = std::filesystem::file_size(file());
    std::filesystem::remove(file());
    for (rlim_t bytes : {rlim_t{0}, rlim_t{1000}, size / 10, size / 2, size - 1}) {
        expect_reason(error_at(bytes, [&] { write_activations(1, false, nothing); }));
        EXPECT_EQ(left(), Names{}) << bytes;
    }
}

TEST_F(FullDisk, LeavesNoResultsWithoutAUnit) {
    uintmax_t size = 0;
    write_results(1, IfExists::refuse, [&] {
        const std::filesystem::path unit = folder_ / "a.h5.partial/unit-layer-0.h5";
        if (std::filesystem::exists(unit)) size = std::filesystem::file_size(unit);
    });
    std::filesystem::remove(file());
    for (rlim_t bytes : {rlim_t{0}, rlim_t{20}, rlim_t{1000}, size / 2, size - 1}) {
        expect_reason(error_at(bytes, [&] { write_results(1, IfExists::refuse, nothing); }));
        EXPECT_EQ(left(), Names{}) << bytes;
    }
}

TEST_F(FullDisk, KeepsFinishedUnitsAlone) {
    int pauses = 0;
    expect_reason(error_at(rlim_t{1} << 40, [&] {
        write_results(1, IfExists::refuse, [&] {
            const rlimit limit{5000, rlim_t{1} << 40};
            if (++pauses == 2) setrlimit(RLIMIT_FSIZE, &limit);
        });
    }));
    EXPECT_EQ(left(),
              (Names{"a.h5.partial", "a.h5.partial/run.json", "a.h5.partial/unit-layer-0.h5"}));
    write_results(1, IfExists::resume, nothing);
    expect_results(1);
}

TEST_F(FullDisk, LeavesNoSmallFile) {
    expect_reason(error_at(3, [&] {
        PartialFile out(file(), false);
        out.write("more than three");
        out.finish();
    }));
    EXPECT_EQ(left(), Names{});
}

}  // namespace
}  // namespace msa::io
