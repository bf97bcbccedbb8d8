// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

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
