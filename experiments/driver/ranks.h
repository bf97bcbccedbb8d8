// SPDX-License-Identifier: MIT
// The processes that do one run together: MPI ranks, started by mpirun or srun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/parallel/group.h"

namespace msa::experiments {

class Ranks final : public parallel::Group {
public:
    /// The ranks of this run; one unless an MPI launcher started more. InputError if one did and
    /// the program was built without MPI.
    static const Ranks& world();
    /// This process alone, for work that is not shared with other ranks.
    static const Ranks& alone();

    /// Threads of this rank: OMP_NUM_THREADS if set, else threads_or_all divided among the ranks of
    /// the host.
    int threads() const;
    /// Ends MPI; if exit_code is an error, ends all other ranks too.
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
