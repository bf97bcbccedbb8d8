// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/error.h"
#include "core/threads.h"
#include "tests/support/sanitized.h"

namespace msa {
namespace {

/// How many threads a loop of 4 has.
int loop_of_four() {
    int threads = 0;
#pragma omp parallel num_threads(threads_or_all(4)) reduction(+ : threads)
    ++threads;
    return threads;
}

TEST(Threads, AskedForNoneAreOpenMpsOwn) {
    EXPECT_EQ(threads_or_all(3), 3);
    EXPECT_EQ(threads_or_all(0), omp_get_max_threads());
}

/// OpenMP would end the process where the system starts no more.
TEST(Threads, MoreThanAMachineStartsAreRefused) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(most_threads());
    EXPECT_EQ(threads_or_all(0), most_threads());
    omp_set_num_threads(most_threads() + 1);
    std::string message;
    try {
        threads_or_all(0);
    } catch (const InputError& error) {
        message = error.what();
    }
    omp_set_num_threads(before);
    EXPECT_EQ(message, concat("OMP_NUM_THREADS is ", most_threads() + 1, ", must be at most ",
                              most_threads(), " on this machine"));
}

/// A worker of PyTorch's DataLoader does so: fork after a loop, then a loop of its own.
TEST(Threads, LoopsGoOnInAChildOfFork) {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the thread sanitizer lets no child of fork start threads";
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    GTEST_SKIP() << "the thread sanitizer lets no child of fork start threads";
#endif
#endif
    const int before = loop_of_four();
    const pid_t child = fork();
    if (child == 0) {
        alarm(static_cast<unsigned>(10 * test::kSlowdown));  // ends a child that waits
        _exit(loop_of_four());
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), before);
    EXPECT_EQ(loop_of_four(), before);
}

}  // namespace
}  // namespace msa
