// SPDX-License-Identifier: MIT
// The processes that do one run together: ranks of MPI, as mpirun or srun start them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

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

}  // namespace msa::experiments
