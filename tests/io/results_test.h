// SPDX-License-Identifier: MIT
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "core/io/results.h"

namespace msa::io {

class Results : public testing::Test {
protected:
    Results() {
        path_ = std::filesystem::temp_directory_path() /
                concat("msalab-results-", getpid(), "-",
                       testing::UnitTest::GetInstance()->current_test_info()->name(), ".h5");
        record_.program = "test";
        record_.options = R"({"k": 16})";
        record_.definitions = "{}";
        record_.inputs = {{"x.h5", "abc"}};
        record_.seed = 7;
    }
    ~Results() override {
        std::filesystem::remove(path_);
        std::filesystem::remove_all(path_.string() + ".partial");
    }
    std::filesystem::path path_;
    RunRecord record_;
};

}  // namespace msa::io
