// SPDX-License-Identifier: MIT
// Sums over several GPUs by NCCL, which is opened at run time.
#pragma once

#include <memory>
#include <string>

#include "core/parallel/group.h"
#include "gpu/runtime.h"

namespace msa::cuda {

/// Why there is no NCCL; empty where there is. Opens the library, see train::cuda_workers.
std::string nccl_failure();

/// What connects the GPU of one worker with those of the others.
class Nccl {
public:
    /// Collective. Each worker has a GPU of its own, which is the current device; its sums take
    /// their turn on `stream`. SystemError with what the library says.
    Nccl(const parallel::Group& workers, std::shared_ptr<Stream> stream);
    ~Nccl();
    Nccl(const Nccl&) = delete;
    Nccl& operator=(const Nccl&) = delete;

    /// Collective: each value becomes its sum over the workers, the same bits for all; waits for
    /// it. Where another worker ends, or the connection does, the sum under way is given up:
    /// throws, and the object cannot be used again.
    void sum(const parallel::Group& workers, View<float, 1> values);

private:
    struct Connection;
    std::unique_ptr<Connection> connection_;
};

}  // namespace msa::cuda
