// SPDX-License-Identifier: MIT
// What ranks copy from each other's memory, on the host or on GPUs; what they say to each other is
// in group.h.
#pragma once

#include <memory>
#include <vector>

#include "core/backend.h"
#include "core/parallel/group.h"

namespace msa::parallel {

/// Memory that every rank has, of one size, for the others to read.
struct SharedMemory {
    std::shared_ptr<void> own;         // this rank's
    std::vector<const void*> of_rank;  // where each rank has it, its own among them
};

/// One of the ranks, as it sees the others. Memory is that of the rank's backend. Calls that are
/// collective must be made by all ranks in the same order; they throw GroupStopped where
/// another rank has failed.
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
    const Group& group_;
    Backend& backend_;
};

/// For any backend: its own copies, in their turn among its calls, and ranks that wait for each
/// other on the host. The right answer, but nothing overlaps.
std::unique_ptr<PeerCopies> make_peer_copies(const Group&, Backend&);

}  // namespace msa::parallel
