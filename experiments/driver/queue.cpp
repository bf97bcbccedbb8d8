// SPDX-License-Identifier: MIT
#include "experiments/driver/queue.h"

#include <algorithm>
#include <chrono>
#include <iostream>

#include "experiments/driver/launch.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"

namespace msa::experiments {

std::vector<BackendOptions> shares_of(const ComputeOptions& o, int64_t workers) {
    BackendOptions share = o.backend_options;
    const int all = share.threads > 0 ? share.threads : launched_threads();
    share.threads = std::max(1, all / static_cast<int>(workers));
    std::vector<BackendOptions> shares(static_cast<size_t>(workers), share);
    for (size_t n = 0; n < shares.size() && !o.devices.empty(); ++n)
        shares[n].device = static_cast<int>(o.devices[n % o.devices.size()]);
    return shares;
}

WorkQueue::WorkQueue(const Ranks& ranks, int64_t total, OnError on_error, std::ostream& err)
    : ranks_(ranks), on_error_(on_error), err_(ranks.is_first() ? err : std::cerr), total_(total) {}

void WorkQueue::show_bar(int64_t total, const std::string& unit) {
    ticker_ = std::jthread([this, total, unit](const std::stop_token& end) {
        constexpr auto kTick = std::chrono::milliseconds(50);
        Progress progress(err_, unit, total, unit);
        for (int64_t shown = 0; !end.stop_requested(); std::this_thread::sleep_for(kTick)) {
            const int64_t done = done_.load();
            progress.advance(done - shown);
            shown = done;
        }
    });
}

void WorkQueue::spread(const std::vector<BackendOptions>& shares,
                       const std::function<void(const BackendOptions&)>& work) {
    std::vector<std::jthread> workers;
    for (const BackendOptions& share : shares)
        workers.emplace_back([&] {
            try {
                work(share);
            } catch (const std::exception& error) {
                fail(message_of(error));
            }
        });
}

int64_t WorkQueue::take() {
    const std::lock_guard lock(turn_);
    const bool stop = on_error_ == OnError::stop || stop_requested();
    if ((stop && !failures_.empty()) || taken_ == total_) return -1;
    return taken_++;
}

void WorkQueue::fail(const std::string& message) {
    const std::lock_guard lock(turn_);
    failures_.push_back({std::current_exception(), message});
}

void WorkQueue::count_done(const std::string& said) {
    const std::lock_guard lock(turn_);
    err_ << said;
    ++done_;
}

void WorkQueue::end(const std::string& program) {
    std::exception_ptr error;
    if (!failures_.empty()) error = failures_.front().error;
    for (size_t n = 1; n < failures_.size(); ++n)
        if (failures_[n].message != failures_.front().message)  // several may wait for one input
            err_ << program << ": " << failures_[n].message << '\n';
    if (error && on_error_ == OnError::stop) std::rethrow_exception(error);
    ranks_.barrier(error);
}

int count_workers(const ComputeOptions& o, const Ranks& ranks) {
    return std::max(ranks.size(), o.count_devices());
}

void run_group(const ComputeOptions& o, const Ranks& ranks,
               const std::function<void(const parallel::Group&)>& work) {
    if (ranks.size() == 1) {
        parallel::run_group(o.count_devices(), work);
        return;
    }
    work(ranks);
}

BackendOptions backend_of(const ComputeOptions& o, const parallel::Group& worker) {
    BackendOptions own = o.backend_options;
    if (!o.devices.empty()) {
        const size_t at = o.devices.size() == 1 ? 0 : static_cast<size_t>(worker.rank());
        own.device = static_cast<int>(o.devices[at]);
    }
    const int all = own.threads > 0 ? own.threads : launched_threads();
    own.threads = std::max(1, all / o.count_devices());
    return own;
}

}  // namespace msa::experiments
