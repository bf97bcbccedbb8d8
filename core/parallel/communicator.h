// SPDX-License-Identifier: MIT
// What the ranks that answer a layer together say to each other: threads of one process, each with
// a backend of its own, in host memory or on a GPU.
#pragma once

#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/train/workers.h"

namespace msa::parallel {

/// Memory that every rank has, of one size, for the others to read.
struct SharedMemory {
    std::shared_ptr<void> own;         // this rank's
    std::vector<const void*> of_rank;  // where each rank has it, its own among them
};

/// One of the ranks, as it sees the others. Memory is that of the rank's backend. Calls that are
/// collective must be made by all ranks in the same order; they throw train::WorkerStopped where
/// another rank has failed.
class Communicator {
public:
    Communicator(train::Workers& workers, Backend& backend)
        : workers_(workers), backend_(backend) {}
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    train::Workers& workers() const { return workers_; }
    Backend& backend() const { return backend_; }
    int rank() const { return workers_.index(); }
    int ranks() const { return workers_.count(); }

    /// Collective: zeros. What is left of it when the last owner of `own` goes is not to be read.
    virtual SharedMemory share(int64_t bytes) = 0;

    // Copies between ranks come in rounds. What a rank's backend was asked to write before open()
    // is there for all copies of the round; what it is asked to write after close() comes behind
    // them.

    /// Collective.
    virtual void open() = 0;
    /// The bytes [offset, offset + bytes) of this rank's memory become those of rank `from`, while
    /// the backend does what it was asked before.
    virtual void fetch(const SharedMemory&, int from, int64_t offset, int64_t bytes) = 0;
    /// What the backend is asked from now on comes behind the copies so far.
    virtual void await() = 0;
    /// Collective.
    virtual void close() = 0;

private:
    train::Workers& workers_;
    Backend& backend_;
};

/// For any backend: its own copies, in their turn among its calls, and ranks that wait for each
/// other on the host. The right answer, but nothing overlaps.
std::unique_ptr<Communicator> make_communicator(train::Workers&, Backend&);

}  // namespace msa::parallel
