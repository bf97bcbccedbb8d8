// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>

#include "core/error.h"
#include "core/io/claim.h"

namespace msa::io {
namespace {

namespace fs = std::filesystem;

class Claims : public testing::Test {
public:
    ~Claims() override { fs::remove_all(folder_); }

protected:
    Claims() {
        folder_ = fs::temp_directory_path() /
                  concat("msalab-claims-", getpid(), "-",
                         testing::UnitTest::GetInstance()->current_test_info()->name());
        fs::create_directories(folder_);
    }
    void put(const std::string& content, std::chrono::seconds age = {}) const {
        std::ofstream(file()) << content;
        fs::last_write_time(file(), fs::file_time_type::clock::now() - age);
    }
    static std::string of(const std::string& host, int64_t process) {
        return concat(R"({"host": ")", host, R"(", "process": )", process,
                      R"(, "process_start": 1, "time": "2026-01-31T12:00:00Z"})");
    }
    static std::string host() {
        char name[256] = {};
        gethostname(name, sizeof name - 1);
        return name;
    }
    static std::string content_of(const fs::path& path) {
        std::ifstream stream(path, std::ios::binary);
        return {std::istreambuf_iterator<char>(stream), {}};
    }
    fs::path file() const { return folder_ / "unit.claim"; }
    bool is_free() const { return Claim::take(file()).has_value(); }

    fs::path folder_;
};

TEST_F(Claims, OneAtATime) {
    EXPECT_EQ(Claim::holder(file()), "");
    std::optional<Claim> mine = Claim::take(file());
    ASSERT_TRUE(mine && mine->is_held());
    EXPECT_FALSE(Claim::take(file()));
    EXPECT_EQ(Claim::holder(file()), concat("process ", getpid(), " of ", host()));
    Claim moved = std::move(*mine);
    mine.reset();
    EXPECT_TRUE(moved.is_held());
    EXPECT_FALSE(is_free());
    moved = Claim::take(folder_ / "other.claim").value();
    EXPECT_TRUE(is_free());
    EXPECT_FALSE(fs::exists(file()));
}

TEST_F(Claims, OfADeadProcessAreStale) {
    const pid_t child = fork();
    if (child == 0) {
        std::optional<Claim> claim = Claim::take(file());
        _exit(claim ? 0 : 1);  // nothing is given back
    }
    while (!fs::exists(file())) usleep(1000);
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT);
    EXPECT_EQ(Claim::holder(file()), "") << "a process that nobody has waited for has ended, too";
    EXPECT_TRUE(fs::exists(file()));
    EXPECT_TRUE(is_free());
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    put(of(host(), getpid()));  // another process of the same number
    EXPECT_TRUE(is_free());
    put(of(host(), 1));
    EXPECT_TRUE(is_free());
}

TEST_F(Claims, OfAnotherHostAreStaleWhenTheyAreOld) {
    put(of("elsewhere", getpid()));
    EXPECT_FALSE(is_free());
    EXPECT_EQ(Claim::holder(file()), concat("process ", getpid(), " of elsewhere"));
    put(of("elsewhere", 1), std::chrono::seconds(290));
    EXPECT_FALSE(is_free());
    put(of("elsewhere", 1), std::chrono::seconds(310));
    EXPECT_EQ(Claim::holder(file()), "");
    EXPECT_TRUE(is_free());
}

TEST_F(Claims, WithoutAHolderAreBeingWritten) {
    for (const std::string content : {"", "{", "[]", R"({"host": 3, "process": "x"})"}) {
        put(content);
        EXPECT_FALSE(is_free()) << content;
        put(content, std::chrono::seconds(310));
        EXPECT_TRUE(is_free()) << content;
    }
    put("", std::chrono::seconds(11));
    EXPECT_TRUE(is_free());
}

TEST_F(Claims, TakenOverByAnotherAreNotGivenBack) {
    {
        const std::optional<Claim> mine = Claim::take(file());
        put(of("elsewhere", 5));
        EXPECT_FALSE(mine->is_held());
    }
    EXPECT_TRUE(fs::exists(file()));
}

TEST_F(Claims, NeedAFolderThatCanBeWritten) {
    fs::remove_all(folder_);
    EXPECT_FALSE(is_free());
    std::ofstream(folder_.string()) << "a file";
    EXPECT_THROW(is_free(), SystemError);
}

TEST_F(Claims, TemporaryFilesOfTheDeadGo) {
    const fs::path mine = temporary_of(folder_ / "a.h5"), other = temporary_of(folder_ / "a.h5");
    EXPECT_NE(mine, other);
    const std::string dead = concat(".", host(), "-999999999-0.tmp");
    const fs::path kept[] = {mine, folder_ / "a.h5.tmp", folder_ / concat("a.h5.elsewhere-9-0.tmp"),
                             folder_ / concat("a.h5.", host(), "-x-0.tmp")};
    for (const fs::path& file : kept) std::ofstream(file) << 1;
    for (const char* name : {"a.h5", "b.json"}) std::ofstream(folder_ / (name + dead)) << 1;
    remove_abandoned(folder_, "b.json.");
    EXPECT_TRUE(fs::exists(folder_ / ("a.h5" + dead)));
    EXPECT_FALSE(fs::exists(folder_ / ("b.json" + dead)));
    remove_abandoned(folder_);
    EXPECT_FALSE(fs::exists(folder_ / ("a.h5" + dead)));
    for (const fs::path& file : kept) EXPECT_TRUE(fs::exists(file)) << file;
}

TEST_F(Claims, SmallFilesAreReplacedWhole) {
    const fs::path file = folder_ / "summary.json";
    std::ofstream(temporary_of(file)) << "half";  // of a process that is at it
    replace_file(file, "one");
    replace_file(file, "another");
    EXPECT_EQ(content_of(file), "another");
    create_file(file, "a third");
    EXPECT_EQ(content_of(file), "another");
    create_file(folder_ / "run.json", "first");
    EXPECT_EQ(content_of(folder_ / "run.json"), "first");
    fs::remove(folder_ / "run.json");
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
    fs::create_directory(folder_ / "folder");
    EXPECT_THROW(replace_file(folder_ / "folder", "x"), InputError);
    EXPECT_THROW(replace_file(folder_ / "nowhere/x", "x"), SystemError);
}

}  // namespace
}  // namespace msa::io
