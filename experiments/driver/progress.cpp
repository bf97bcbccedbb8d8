// SPDX-License-Identifier: MIT
#include "experiments/driver/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <mutex>
#include <sstream>
#include <utility>

namespace msa::experiments {
namespace {

std::mutex one_line;  // loops of several threads share a stream

constexpr double kSecondsPerFrame = 0.1, kSecondsPerLine = 5;

std::string clock_text(double seconds) {
    const auto whole = std::llround(seconds);
    std::ostringstream text;
    if (whole >= 3600) text << whole / 3600 << ':' << std::setw(2) << std::setfill('0');
    text << whole / 60 % 60 << ':' << std::setw(2) << std::setfill('0') << whole % 60;
    return text.str();
}

}  // namespace

Progress::Progress(std::ostream& err, std::string what, int64_t total, std::string unit)
    : err_(err),
      what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(&err == &std::cerr && isatty(STDERR_FILENO) != 0),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
    const std::lock_guard lock(one_line);
    if (terminal_ && drawn_) err_ << "\r\033[K" << std::flush;
}

std::string Progress::line(double seconds) const {
    const double share =
        total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1.0;
    std::ostringstream text;
    text << what_ << ": " << std::fixed << std::setprecision(0) << 100 * share << " % (" << done_
         << '/' << total_ << ' ' << unit_ << "), " << std::setprecision(1)
         << static_cast<double>(done_) / seconds << ' ' << unit_ << "/s";
    if (done_ > 0 && done_ < total_)
        text << ", " << clock_text(seconds * (1 - share) / share) << " left";
    return text.str();
}

void Progress::advance(int64_t units) {
    done_ += units;
    const Clock::time_point now = Clock::now();
    const auto since = [&](Clock::time_point then) {
        return std::chrono::duration<double>(now - then).count();
    };
    if (since(last_) < (terminal_ ? kSecondsPerFrame : kSecondsPerLine)) return;
    last_ = now;
    const std::lock_guard lock(one_line);
    drawn_ = true;
    if (terminal_) {
        constexpr int kBar = 24;
        const auto filled = static_cast<int>(kBar * done_ / std::max<int64_t>(1, total_));
        err_ << "\r[" << std::string(static_cast<size_t>(filled), '#')
             << std::string(static_cast<size_t>(kBar - filled), ' ') << "] " << line(since(start_))
             << "\033[K" << std::flush;
    } else {
        err_ << line(since(start_)) << std::endl;
    }
}

}  // namespace msa::experiments
