// SPDX-License-Identifier: MIT
// Copies between the memories of ranks, on the host or on GPUs. Collectives: group.h.
#pragma once

#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/parallel/group.h"

namespace msa::parallel {

/// A buffer of one size on every rank, which the others may read.
struct SharedMemory {
    std::shared_ptr<void> own;         // this rank's
    std::vector<const void*> of_rank;  // where each rank has it, its own among them
};

/// One rank's view of the others. Memory is that of the rank's backend. All ranks must make
/// collective calls in the same order; they throw GroupStopped if another rank has failed.
class PeerCopies {
public:
    PeerCopies(const Group& group, Backend& backend) : group_(group), backend_(backend) {}
    virtual ~PeerCopies() = default;
    PeerCopies(const PeerCopies&) = delete;
    PeerCopies& operator=(const PeerCopies&) = delete;

    const Group& group() const { return group_; }
    Backend& backend() const { return backend_; }
    int rank() const { return group_.rank(); }
    int ranks() const { return group_.size(); }

    /// Collective: allocates zeros. The memory must not be read after the last owner of `own` is
    /// gone.
    virtual SharedMemory share(int64_t bytes) = 0;

    // Copies between ranks come in rounds. All copies of a round see what a rank's backend was
    // asked to write before open(); writes asked for after close() happen after the copies.

    /// Collective.
    virtual void open() = 0;
    /// Copies the bytes [offset, offset + bytes) from rank `from` to this rank's memory,
    /// concurrently with the backend's earlier calls.
    virtual void fetch(const SharedMemory&, int from, int64_t offset, int64_t bytes) = 0;
    /// Later calls of the backend wait for the copies so far.
    virtual void await() = 0;
    /// Collective.
    virtual void close() = 0;

private:
    const Group& group_;
    Backend& backend_;
};

/// For any backend: uses its own copies, in order with its calls, and ranks wait for each other on
/// the host. Correct, but nothing overlaps.
std::unique_ptr<PeerCopies> make_peer_copies(const Group&, Backend&);

}  // namespace msa::parallel
