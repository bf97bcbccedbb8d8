// SPDX-License-Identifier: MIT
// A group of ranks and its collectives. Ranks are threads of one process, each with a backend of
// its own, or processes. All buffers are in host memory; for GPUs see peer_copies.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>

namespace msa::parallel {

/// Thrown when another rank has ended. It does not say why: that rank's own error does.
class GroupStopped : public std::exception {
public:
    const char* what() const noexcept override { return "another rank has stopped"; }
};

/// The group as seen by one of its ranks; this class itself is a group of one. All ranks must make
/// collective calls in the same order. A call returns when all ranks have made it, and throws
/// GroupStopped if one never will.
class Group {
public:
    virtual ~Group() = default;
    Group() = default;
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    bool is_first() const { return rank_ == 0; }

    /// Collective: each value becomes its sum over the ranks, added in rank order, so all ranks get
    /// the same bits. All lists have the same size, below 2^31.
    virtual void all_reduce(std::span<float>) const {}
    virtual void all_reduce(std::span<double>) const {}
    /// Collective: all ranks get the first rank's bytes.
    virtual void broadcast(std::span<std::byte>) const {}
    /// Collective: all ranks get the bytes of each, equally many, in rank order.
    virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
        std::copy(mine.begin(), mine.end(), all.begin());
    }
    /// Not collective: throws GroupStopped if a rank is known to have failed. For ranks that wait
    /// for others by other means.
    virtual void check() const {}

    /// Collective: whether `mine` is true on any rank.
    bool any(bool mine) const;
    /// Collective: waits for all ranks. Throws `error` if it is set, else GroupStopped if another
    /// rank has an error.
    void barrier(const std::exception_ptr& error = {}) const;
    /// Collective: the first rank's value.
    template <typename T>
    T broadcast_value(T value) const {
        broadcast(std::as_writable_bytes(std::span(&value, 1)));
        return value;
    }
    /// Collective: SystemError unless the value has the same bits on all ranks or is NaN on all.
    /// `what` precedes the value in the message: "losses of step 3: their sum".
    void require_same(double value, const std::string& what) const;

protected:
    Group(int rank, int size) : rank_(rank), size_(size) {}

private:
    int rank_ = 0, size_ = 1;
};

/// Runs `work` for `size` ranks at the same time, the first in this thread, each other in its own.
/// Returns when all have ended; throws the first error.
void run_group(int size, const std::function<void(const Group&)>& work);

}  // namespace msa::parallel
