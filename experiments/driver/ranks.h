// SPDX-License-Identifier: MIT
// The processes that do one run together: ranks of MPI, as mpirun or srun start them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>

namespace msa::experiments {

/// Another rank says what went wrong.
class StoppedElsewhere : public std::exception {};

class Ranks {
public:
    /// This run's. One where no launcher of MPI has started more. InputError where one has and the
    /// program was built without MPI.
    static const Ranks& world();
    /// This process as if it were the only one: for work that its launcher's other ranks do not
    /// share.
    static const Ranks& alone();

    int rank() const { return rank_; }
    int count() const { return count_; }
    bool is_first() const { return rank_ == 0; }
    /// Threads of this rank: threads_or_all, shared with the host's other ranks unless
    /// OMP_NUM_THREADS says how many each has.
    int threads() const;

    /// Collective: waits for all ranks. Throws `error` where there is one, else StoppedElsewhere
    /// where another rank has one.
    void agree(const std::exception_ptr& error) const;
    /// Collective: the first rank's.
    int64_t from_first(int64_t value) const;
    void from_first(std::span<std::byte> bytes) const;
    /// Collective: the bytes of all ranks, as many of each, in their order.
    void from_all(std::span<const std::byte> mine, std::span<std::byte> all) const;
    /// Collective: each value becomes its sum over the ranks, added in their order. All lists have
    /// one size, below 2^31.
    void sum(std::span<float> values) const;
    void sum(std::span<double> values) const;
    /// Ends MPI; with an error, all other ranks too.
    void end(int exit_code) const;

private:
    Ranks() = default;
    void join_launched();
    int rank_ = 0, count_ = 1, of_host_ = 1, processors_of_host_ = 1;
};

}  // namespace msa::experiments
