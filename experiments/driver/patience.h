// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <ostream>
#include <string>
#include <thread>

#include "experiments/driver/program.h"

namespace msa::experiments {

/// Waits for other processes: a little longer each time. Throws Interrupted if it is asked to stop.
class Patience {
public:
    /// Prints what() once if the wait is long.
    void wait(const std::function<std::string()>& what, std::ostream& err) {
        constexpr auto kLongest = std::chrono::milliseconds(1000);
        stop_if_asked();
        std::this_thread::sleep_for(next_);
        next_ = std::min(next_ * 3 / 2, kLongest);
        if (next_ < kLongest || said_) return;
        said_ = true;
        err << what() << std::endl;
    }
    void reset() { next_ = kFirst; }

private:
    static constexpr std::chrono::milliseconds kFirst{4};
    std::chrono::milliseconds next_ = kFirst;
    bool said_ = false;
};

}  // namespace msa::experiments
