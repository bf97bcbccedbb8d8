// SPDX-License-Identifier: MIT
// A work queue for the threads of a process, with errors and one progress bar. Processes have
// separate shards (shard.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <iosfwd>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/backend.h"
#include "core/parallel/group.h"
#include "experiments/driver/ranks.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// GPU and share of the threads of each worker of this process; GPUs are assigned in turn.
std::vector<BackendOptions> shares_of(const ComputeOptions&, int64_t workers);

/// Hands out the numbers 0 to total - 1, each to one worker. Thread-safe.
class WorkQueue {
public:
    /// Messages go to `err`, on ranks other than the first to the standard error.
    WorkQueue(const Ranks&, int64_t total, OnError, std::ostream& err);

    /// Shows one bar for all workers until the queue ends.
    void show_bar(int64_t total, const std::string& unit);
    /// Runs `work` for each worker in its own thread, and waits for all.
    void spread(const std::vector<BackendOptions>& shares,
                const std::function<void(const BackendOptions&)>& work);
    /// The next number; -1 if there is none, or if a failure stops the rest.
    int64_t take();
    /// Records the current exception, whose message is given.
    void fail(const std::string& message);
    /// Counts one more as done or failed, and prints its messages `said`.
    void count_done(const std::string& said);
    /// To be called after all work: throws the first error and prints further ones, as `program`.
    /// Collective, unless a failure stops the rest: then this rank ends the others (Ranks::end).
    void end(const std::string& program);

private:
    struct Failure {
        std::exception_ptr error;
        std::string message;
    };
    const Ranks& ranks_;
    OnError on_error_;
    std::ostream& err_;
    int64_t total_, taken_ = 0;
    std::atomic<int64_t> done_ = 0;
    std::mutex turn_;
    std::vector<Failure> failures_;
    std::jthread ticker_;
};

// The workers that train together (core/parallel/group.h): one per MPI rank, or one per GPU of
// --devices, or just one.

/// Number of workers of all processes `ranks`.
int count_workers(const ComputeOptions&, const Ranks& ranks);

/// Runs `work` for the workers of this process at the same time; throws the first error.
void run_group(const ComputeOptions&, const Ranks& ranks,
               const std::function<void(const parallel::Group&)>& work);

/// A worker's GPU and its share of this process's threads.
BackendOptions backend_of(const ComputeOptions&, const parallel::Group& worker);

}  // namespace msa::experiments
