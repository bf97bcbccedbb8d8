// SPDX-License-Identifier: MIT
// The processes that train together: MPI ranks, started by mpirun or srun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/parallel/group.h"

namespace msa::experiments {

class Ranks final : public parallel::Group {
public:
    /// The ranks of this run, which the first call joins; one unless an MPI launcher started more.
    /// InputError if one did and the program was built without MPI.
    static const Ranks& world();
    /// This process alone, for work that is not shared with other ranks.
    static const Ranks& alone();

    /// Ends MPI, where this process has joined the world; if exit_code is an error, ends all other
    /// ranks too.
    static void end(int exit_code);

    void all_reduce(std::span<float> values) const override;
    void all_reduce(std::span<double> values) const override;
    void broadcast(std::span<std::byte> bytes) const override;
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const override;

private:
    static Ranks join_launched();
    Ranks(int rank, int count) : Group(rank, count) {}
};

}  // namespace msa::experiments
