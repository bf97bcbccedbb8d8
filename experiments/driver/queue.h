// SPDX-License-Identifier: MIT
// Work that the threads of a process take from one place, number by number: what went wrong, who
// may have more, and one progress bar. Processes have parts of their own (shard.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <iosfwd>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "experiments/driver/ranks.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments {

/// What becomes of the rest when one fails.
enum class OnError : uint8_t { stop, finish_others };

/// Of this process: each one's GPU and share of the threads, the GPUs in turn.
std::vector<BackendOptions> shares_of(const ComputeOptions&, int64_t workers, const Ranks&);

/// Numbers from 0 to total - 1, each to one worker. Its functions may be called by several threads.
class WorkQueue {
public:
    /// What is said goes to `err`, of ranks but the first to the standard error.
    WorkQueue(const Ranks&, int64_t total, OnError, std::ostream& err);

    /// One bar for what all workers have done of `total`, until the queue ends.
    void show_bar(int64_t total, const std::string& unit);
    /// Does `work` for each worker in a thread of its own, and waits for all.
    void spread(const std::vector<BackendOptions>& shares,
                const std::function<void(const BackendOptions&)>& work);
    /// The next number; -1 where there is none, or a failure ends the rest.
    int64_t take();
    /// Keeps the exception under way, whose message this is.
    void fail(const std::string& message);
    /// One more is done, or given up; says what was said of it.
    void count_done(const std::string& said);
    /// After all work: throws the first error and prints further ones, as `program`. Collective,
    /// but where a failure ends the rest: then this rank ends the others (Ranks::end).
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

}  // namespace msa::experiments
