// SPDX-License-Identifier: MIT
// Sums over several GPUs with NCCL, which is opened at run time.
#pragma once

#include <memory>
#include <string>

#include "core/parallel/group.h"
#include "gpu/runtime.h"

namespace msa::cuda {

/// Why NCCL cannot be used; empty if it can. Opens the library, see train::cuda_workers.
std::string nccl_failure();

/// One worker's NCCL communicator.
class Nccl {
public:
    /// Collective. Each worker has its own GPU, which is the current device; sums run on `stream`.
    /// SystemError with the library's message.
    Nccl(const parallel::Group& workers, std::shared_ptr<Stream> stream);
    ~Nccl();
    Nccl(const Nccl&) = delete;
    Nccl& operator=(const Nccl&) = delete;

    /// Collective: each value becomes its sum over the workers, with the same bits on all; waits
    /// for the result. If another worker or the connection ends, throws, and the object cannot be
    /// used again.
    void sum(const parallel::Group& workers, View<float, 1> values);

private:
    struct Connection;
    std::unique_ptr<Connection> connection_;
};

}  // namespace msa::cuda
