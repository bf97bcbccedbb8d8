// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>

namespace msa::experiments {

/// Progress of a long loop: a bar with rate and remaining time if `err` is a terminal, else a plain
/// line every few seconds. Short work prints nothing.
class Progress {
public:
    /// `total` units named `unit` ("queries").
    Progress(std::ostream& err, std::string what, int64_t total, std::string unit);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void advance(int64_t units);

private:
    using Clock = std::chrono::steady_clock;
    std::string line(double seconds) const;

    std::ostream& err_;
    std::string what_, unit_;
    int64_t total_, done_ = 0;
    bool terminal_, drawn_ = false;
    Clock::time_point start_, last_;
};

}  // namespace msa::experiments
