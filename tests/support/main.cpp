// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

/// GoogleTest's own main announces itself, and every program that a test starts says so once more:
/// a thousand such lines hide which test failed.
int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
