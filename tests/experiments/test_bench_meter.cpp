// SPDX-License-Identifier: MIT
// What msa-bench measures with.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/registry.h"
#include "experiments/bench/meter.h"
#include "experiments/driver/presets.h"

namespace msa::test {
namespace {

TEST(Ceilings, TheChipIsAWordOfTheDevicesName) {
    using experiments::chip_of;
    EXPECT_EQ(chip_of("NVIDIA H100 80GB HBM3, 132 multiprocessors"), "h100");
    EXPECT_EQ(chip_of("NVIDIA H200, 132 multiprocessors"), "h200");
    EXPECT_EQ(chip_of("NVIDIA H20"), "h20");
    EXPECT_EQ(chip_of("NVIDIA A100-SXM4-80GB"), "a100");
    EXPECT_EQ(chip_of("NVIDIA GeForce RTX 4090, 128 SMs"), "rtx-4090");
    EXPECT_EQ(chip_of("NVIDIA GH200 480GB"), "");
    EXPECT_TRUE(experiments::is_measured("h100"));
    EXPECT_FALSE(experiments::is_measured("h20"));  // its peak stands in
}

TEST(ColdSeconds, AreThoseOfTheWork) {
    using std::chrono::steady_clock, std::chrono::milliseconds, std::chrono::duration;
    const std::unique_ptr<Backend> backend = make_backend("cpu");
    int runs = 0;
    for (const int pause : {200, 50}) {
        const steady_clock::time_point begin = steady_clock::now();
        const double seconds = experiments::bench::cold_seconds(*backend, [&] {
            ++runs;
            std::this_thread::sleep_for(milliseconds(pause));
        });
        // Half of it: a device in use by others takes long to fill its caches meanwhile.
        EXPECT_GT(seconds, 0.5e-3 * pause);
        EXPECT_LT(seconds, duration<double>(steady_clock::now() - begin).count());
    }
    EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace msa::test
