// SPDX-License-Identifier: MIT
// The processes that do one run together: ranks of MPI, as mpirun or srun start them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>

#include "core/parallel/group.h"

namespace msa::experiments {

class Ranks final : public parallel::Group {
public:
    /// This run's. One where no launcher of MPI has started more. InputError where one has and the
    /// program was built without MPI.
    static const Ranks& world();
    /// This process as if it were the only one: for work that its launcher's other ranks do not
    /// share.
    static const Ranks& alone();

    /// Threads of this rank: threads_or_all, shared with the host's other ranks unless
    /// OMP_NUM_THREADS says how many each has.
    int threads() const;
    /// Ends MPI; with an error, all other ranks too.
    void end(int exit_code) const;

    void all_reduce(std::span<float> values) const override;
    void all_reduce(std::span<double> values) const override;
    void broadcast(std::span<std::byte> bytes) const override;
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const override;

private:
    struct Launched {
        int rank = 0, count = 1, of_host = 1, processors_of_host = 1;
    };
    static Launched join_launched();
    explicit Ranks(const Launched& launched)
        : Group(launched.rank, launched.count), launched_(launched) {}

    Launched launched_;
};

/// Numbers from 0 to total - 1, each to one rank and thread that asks, in order. The first rank
/// hands them out while it works itself; its destructor waits until every rank has been told that
/// there are no more. Collective.
class Handout {
public:
    Handout(const Ranks&, int64_t total);
    ~Handout();
    Handout(const Handout&) = delete;
    Handout& operator=(const Handout&) = delete;

    /// The next number, -1 after the last or after stop(). One thread of a rank at a time.
    int64_t next();
    /// No rank gets another number.
    void stop();
    /// What a number stood for is done. Like next(), by one thread at a time.
    void count_done() { ++done_; }
    /// How many are done, as far as the first rank knows: the others tell when they ask.
    int64_t done() const { return done_; }

private:
    int64_t take();
    void serve();

    const Ranks& ranks_;
    int64_t total_;
    std::atomic<int64_t> taken_ = 0, done_ = 0;
    std::atomic<bool> stopped_ = false, ended_ = false;
    std::jthread server_;
};

}  // namespace msa::experiments
