// SPDX-License-Identifier: MIT
// A sound command line for every program, then random ones. Whatever is asked for, a program
// answers 0, or 2 with a message, and stops when it is told to, at the latest by a second word.
// MSA_TEST_COMMAND_LINES=N runs so many for each program.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <sstream>
#include <thread>

#include "core/utf8.h"
#include "tests/experiments/fit_test.h"
#include "tests/support/random.h"
#include "tests/support/sanitized.h"

namespace msa::test {
namespace {

using Words = std::vector<std::string>;
using std::chrono::milliseconds;

// Under a sanitizer a program may take seconds to begin, and cannot be told to stop before.
constexpr milliseconds kWork{kSanitized ? 10000 : 1000}, kStop{kSanitized ? 60000 : 15000};

struct Answer {
    int status = 0;  // of waitpid
    bool told_to_stop = false;
    std::string out, err;
    bool has(int code) const { return WIFEXITED(status) && WEXITSTATUS(status) == code; }
};

[[noreturn]] void become(const Words& words, const std::string& folder) {
    Words copies = words;
    std::vector<char*> argv;
    for (std::string& word : copies) argv.push_back(word.data());
    argv.push_back(nullptr);
    const rlimit bytes_of_a_file{1 << 25, 1 << 25}, memory{rlim_t{1} << 33, rlim_t{1} << 33};
    setrlimit(RLIMIT_FSIZE, &bytes_of_a_file);
    if (!kSanitized) setrlimit(RLIMIT_AS, &memory);
    setenv("OMP_NUM_THREADS", "1", 1);
    const bool ready = chdir(folder.c_str()) == 0 && freopen("/dev/null", "r", stdin) &&
                       freopen("out.txt", "w", stdout) && freopen("err.txt", "w", stderr);
    if (ready) execv(argv[0], argv.data());
    _exit(127);
}

/// Runs a built program in `folder`; tells it to stop after kWork and once more after as long,
/// kills it after kStop more.
Answer answer(const Words& words, const std::string& folder) {
    const pid_t child = fork();
    if (child == 0) become(words, folder);
    Answer result;
    const auto ends_within = [&](milliseconds limit) {
        const auto end = std::chrono::steady_clock::now() + limit;
        while (waitpid(child, &result.status, WNOHANG) == 0) {
            if (std::chrono::steady_clock::now() > end) return false;
            std::this_thread::sleep_for(milliseconds(2));
        }
        return true;
    };
    if (!ends_within(kWork)) {
        result.told_to_stop = true;
        kill(child, SIGTERM);
        // A program ends its work at hand first, which may take minutes; a second word ends it.
        if (!ends_within(kWork)) kill(child, SIGTERM);
        if (!ends_within(kStop)) {
            kill(child, SIGKILL);
            waitpid(child, &result.status, 0);
        }
    }
    result.out = file_text(folder + "/out.txt");
    result.err = file_text(folder + "/err.txt");
    return result;
}

struct Flag {
    std::string name;
    bool takes_a_value;
};

/// Every option of a program, from its own help.
std::vector<Flag> flags_of(const Program& program) {
    std::vector<Flag> flags{
        {"--help", false}, {"--help-all", false}, {"--help-markdown", false}, {"--version", false}};
    std::istringstream help(program({"--help-markdown"}).out);
    const std::regex row("\\| `(--[a-z-]+)( [^(`]+)?[^`]*` \\|.*");
    std::smatch found;
    for (std::string line; std::getline(help, line);)
        if (std::regex_match(line, found, row)) flags.push_back({found[1], found[2].matched});
    return flags;
}

// Values of options: each is right for some option and wrong for most.
const Words kNumbers{"0",
                     "1",
                     "2",
                     "3",
                     "4",
                     "7",
                     "8",
                     "16",
                     "32",
                     "64",
                     "100",
                     "1K",
                     "4K",
                     "0.5",
                     "1e-3",
                     "-1",
                     "-0",
                     "1e9",
                     "1e400",
                     "nan",
                     "inf",
                     "-inf",
                     "0x10",
                     "2147483648",
                     "4294967296",
                     "9223372036854775807",
                     "-9223372036854775808",
                     "99999999999999999999",
                     "8388608T"};
const Words kLists{
    "0:10", ":",   "5:",  ":20", "7:3", "-5:",    "0:99999999999999999999", "1:2:3", "0:10,20:30",
    "3",    "0,3", "3,3", ",",   "3,",  "32,0.1", "1,2,3,4,5,6,7,8",        "nan,1"};
const Words kNames{
    "cpu",      "reference", "cuda",          "f32",           "bf16",     "f16",
    "e4m3",     "index",     "oracle,window", "random",        "mean-key", "quest",
    "snapkv",   "h2o",       "position",      "sequence",      "token",    "decode",
    "prefill",  "square",    "top-k",         "select_blocks", "layer",    "pilot",
    "paper",    "h100",      "measured",      "rms",           "pca",      "normal",
    "max",      "window",    "forced",        "block-size",    "group",    "head",
    "included", "max-logit", "outputs,mass",  "out",           "folder",   "previous-layer"};
const Words kStrange{"",
                     " ",
                     "5 ",
                     " 5",
                     "\xff\xfe",
                     "caf\xc3\xa9",
                     "\x1b[31m",
                     "\n",
                     "--json",
                     "-",
                     "--",
                     "{}",
                     "%s%n",
                     "/dev/null",
                     "/dev/full",
                     "missing/x.h5",
                     ".",
                     "..",
                     "text.json",
                     std::string(5000, 'a'),
                     std::string(5000, '9')};

/// A sound command line of every program: short work, its input first.
const std::map<std::string, Words> kSound = [] {
    std::map<std::string, Words> lines;
    std::istringstream text(R"(
msa-advise a.h5 --out out --block-size 8 --top-k 2 --context 1K --keep 0.05 --selectors window
msa-analyze a.h5 --out out --block-size 8 --top-k 4
msa-bench --out bench.json --backend cpu --cases square --tokens 256 --samples 1 --stages index_select --preset pilot
msa-cache made-by-msa-analyze/results.h5 --out out
msa-compare a.h5 --out out --block-size 8 --budgets 32
msa-cost --context 4K
msa-fit-indexer a.h5 --out out --block-size 8 --steps 3 --index-dim 16 --top-k 4
msa-inspect a.h5
msa-precision a.h5 --out out --block-size 8 --top-k 4 --formats int8
msa-pretrain words.txt --out out --context 64 --held-out-share 0.3 --steps 3 --warmup-steps 1 --lr-warmup 1 --pairs 2 --questions 2 --top-k 2
msa-reuse layers.h5 --out out --block-size 8 --top-k 4 --layers 0,3
msa-synth --out synth.h5 --tokens 256)");
    for (std::string line; std::getline(text, line);) {
        std::istringstream words(line);
        std::string program;
        words >> program;
        for (std::string word; words >> word;) lines[program].push_back(word);
    }
    return lines;
}();

class CommandLines : public Fit, public testing::WithParamInterface<Program> {
protected:
    CommandLines() : generator_(seed()) {
        write("a.h5");
        CliTest::make("layers.h5");
        std::filesystem::create_directories(path("folder"));
        std::ofstream documents(path("words.txt"));
        for (int n = 0; n < 60; ++n)
            documents << std::string(100, static_cast<char>('a' + n % 26)) << n << '\0';
        documents.close();
        std::ofstream(path("text.json")) << R"({"name": 5})";
        copy_made();
    }

    /// What programs write of a.h5, which the first test of the process makes.
    void copy_made() {
        static const struct Kept {
            std::filesystem::path folder =
                std::filesystem::temp_directory_path() / concat("msalab-", getpid(), "-made");
            ~Kept() { std::filesystem::remove_all(folder); }
        } kept;
        namespace fs = std::filesystem;
        if (fs::exists(kept.folder)) {
            fs::copy(kept.folder, path(""), fs::copy_options::recursive);
            return;
        }
        make("made-by-msa-fit-indexer", "msa-fit-indexer", {"--index-dim", "16", "--steps", "2"});
        make("made-by-msa-analyze", "msa-analyze", {});
        for (const char* name : {"made-by-msa-fit-indexer", "made-by-msa-analyze"}) {
            fs::create_directories(kept.folder / name);
            fs::copy(path(name), kept.folder / name, fs::copy_options::recursive);
        }
    }

    void make(const std::string& out, const std::string& program, const Words& more) {
        Words words{program_path(program), "a.h5", "--out",   out,
                    "--block-size",        "8",    "--top-k", "4"};
        words.insert(words.end(), more.begin(), more.end());
        const Answer made = answer(words, path(""));
        EXPECT_TRUE(made.has(0)) << made.err;
    }

    static std::string program_path(const std::string& name) {
        return std::string(MSA_BIN_DIR) + "/" + name;
    }
    size_t pick(size_t of) { return generator_() % of; }
    const std::string& one_of(const Words& words) { return words[pick(words.size())]; }

    std::string value() {
        switch (pick(8)) {
            case 0:
            case 1:
            case 2: return one_of(kNumbers);
            case 3: return one_of(kLists);
            case 4:
            case 5: return one_of(kNames);
            case 6: return pick(2) == 0 ? file() : one_of(kStrange);
            default: return std::to_string(generator_() >> pick(64));
        }
    }
    std::string file() {
        return one_of({"a.h5", "made-by-msa-analyze/results.h5",
                       "made-by-msa-fit-indexer/results.h5", "made-by-msa-fit-indexer/indexer.h5",
                       "text.json"});
    }

    /// What a user would write, with his own input or with `other`; short work.
    Words sound(const std::string& program, const std::optional<std::string>& other = {}) {
        if (program == "msa-cost" && other) return {"--results", *other};
        Words words = kSound.at(program);
        if (other && words.front().front() != '-') words.front() = *other;
        return words;
    }

    Words line(const std::string& program, const std::vector<Flag>& flags) {
        // Of msa-bench, no words are the whole benchmark.
        Words words;
        if (pick(8) != 0 || program == "msa-bench")
            words = sound(program, pick(3) == 0 ? std::optional(file()) : std::nullopt);
        for (size_t more = pick(5); more > 0; --more) {
            const Flag& flag = flags[pick(flags.size())];
            if (pick(12) == 0) {
                words.push_back(one_of({"--bogus", "-x", "--top", "=", "--=", "--out", value()}));
            } else if (pick(6) == 0) {
                words.push_back(flag.name + "=" + value());
            } else {
                words.push_back(flag.name);
                if (flag.takes_a_value != (pick(20) == 0)) words.push_back(value());
            }
        }
        if (!words.empty() && pick(3) == 0) words[pick(words.size())] = value();
        if (!words.empty() && pick(6) == 0)
            words.erase(words.begin() + static_cast<std::ptrdiff_t>(pick(words.size())));
        if (!words.empty() && pick(12) == 0) words.push_back(words[pick(words.size())]);
        return words;
    }

private:
    std::mt19937_64 generator_;
};

TEST_P(CommandLines, AreAnsweredOrRefused) {
    const char* const asked = std::getenv("MSA_TEST_COMMAND_LINES");
    const int count = asked != nullptr ? std::atoi(asked) : kSanitized ? 10 : 25;
    const std::vector<Flag> flags = flags_of(GetParam());
    ASSERT_GT(flags.size(), 5U);
    ASSERT_TRUE(kSound.contains(GetParam().name)) << "needs a line in kSound";
    const std::string input = file_text(path("a.h5"));
    int done = 0, refused = 0;
    for (int n = 0; n < count && !HasFailure(); ++n) {
        if (n % 4 == 0)
            for (const char* result : {"out", "synth.h5", "bench.json"})
                std::filesystem::remove_all(path(result));
        Words words = n == 0 ? sound(GetParam().name) : line(GetParam().name, flags);
        words.insert(words.begin(), program_path(GetParam().name));
        std::string shown;
        for (const std::string& word : words) shown += " '" + printable(word) + "'";
        SCOPED_TRACE(testing::Message() << "seed " << seed() << ", line " << n << ":" << shown);
        const Answer got = answer(words, path(""));
        EXPECT_TRUE(WIFEXITED(got.status)) << "signal " << WTERMSIG(got.status) << "\n" << got.err;
        EXPECT_TRUE(n > 0 || got.has(0) || got.told_to_stop) << "a sound line was refused\n"
                                                             << got.err;
        EXPECT_TRUE(got.has(0) || got.has(2) || (got.told_to_stop && got.has(130)))
            << "exit code " << WEXITSTATUS(got.status) << "\n"
            << got.err;
        EXPECT_TRUE(!got.has(2) || got.err.rfind(GetParam().name + ": ") != got.err.npos)
            << got.err;
        EXPECT_EQ(got.err.find("internal error"), got.err.npos) << got.err;
        EXPECT_EQ(printable(got.err, "\n\t\r\x1b"), got.err);
        EXPECT_TRUE(file_text(path("a.h5")) == input) << "the input has changed";
        done += got.has(0) || got.has(130) ? 1 : 0;  // 130: at work when it was told to stop
        refused += got.has(2) ? 1 : 0;
    }
    EXPECT_GE(done, count / 40);
    EXPECT_GE(refused, count / 4);
}

TEST_P(CommandLines, TakeTheSlashThatAShellPutsBehindADirectory) {
    Words words = sound(GetParam().name);
    const auto out = std::find(words.begin(), words.end(), "out");
    if (out == words.end()) GTEST_SKIP() << "writes no directory";
    std::filesystem::create_directory(path("out"));
    *out = "out/";
    words.insert(words.begin(), program_path(GetParam().name));
    const Answer got = answer(words, path(""));
    EXPECT_TRUE(got.has(0) || got.told_to_stop) << got.err;
    EXPECT_FALSE(std::filesystem::is_empty(path("out")));
}

TEST_P(CommandLines, RefuseAPipeInPlaceOfAFile) {
    ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);  // nobody writes into it
    Words words = sound(GetParam().name, "pipe");
    if (GetParam().name == "msa-advise") words[0] = "pipe";
    if (std::find(words.begin(), words.end(), "pipe") == words.end())
        GTEST_SKIP() << "reads no file";
    words.insert(words.begin(), program_path(GetParam().name));
    const Answer got = answer(words, path(""));
    EXPECT_TRUE(got.has(2)) << got.err;
    EXPECT_NE(got.err.find("pipe: is not a file"), std::string::npos) << got.err;
}

INSTANTIATE_TEST_SUITE_P(All, CommandLines, testing::ValuesIn(programs()), [](const auto& program) {
    std::string name = program.param.name.substr(4);
    name.erase(std::remove(name.begin(), name.end(), '-'), name.end());
    return name;
});

}  // namespace
}  // namespace msa::test
