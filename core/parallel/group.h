// SPDX-License-Identifier: MIT
// Those who compute together, and what they say to each other: threads of one process, each with a
// backend of its own, or processes (experiments/driver/ranks.h). Memory is the host's; what GPUs
// read of each other is in peer_copies.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>

namespace msa::parallel {

/// Another rank has ended, and says why.
class GroupStopped : public std::exception {
public:
    const char* what() const noexcept override { return "another rank has stopped"; }
};

/// The group as one of its ranks sees it; this class itself is a group of one. Collective calls
/// return when all ranks have made them, in the same order, and throw GroupStopped where one never
/// will.
class Group {
public:
    virtual ~Group() = default;
    Group() = default;
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int rank() const { return rank_; }
    int size() const { return size_; }
    bool is_first() const { return rank_ == 0; }

    /// Collective: each value becomes its sum over the ranks, added in their order, so that all
    /// have the same bits. All lists have one size, below 2^31.
    virtual void all_reduce(std::span<float>) const {}
    virtual void all_reduce(std::span<double>) const {}
    /// Collective: the first rank's bytes.
    virtual void broadcast(std::span<std::byte>) const {}
    /// Collective: the bytes of all ranks, as many of each, in their order.
    virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const {
        std::copy(mine.begin(), mine.end(), all.begin());
    }
    /// Not collective: throws GroupStopped where it is known that a rank has failed. For whoever
    /// waits for the others by other means.
    virtual void check() const {}

    /// Collective: is it so for any rank?
    bool any(bool mine) const;
    /// Collective: waits for all ranks. Throws `error` where there is one, else GroupStopped where
    /// another rank has one.
    void barrier(const std::exception_ptr& error = {}) const;
    /// Collective: the first rank's value.
    template <typename T>
    T broadcast_value(T value) const {
        broadcast(std::as_writable_bytes(std::span(&value, 1)));
        return value;
    }
    /// Collective: SystemError unless the value is the same with all, to the bit, or NaN. `what`:
    /// "losses of step 3: their sum", as the message has it before the value.
    void require_same(double value, const std::string& what) const;

protected:
    Group(int rank, int size) : rank_(rank), size_(size) {}

private:
    int rank_ = 0, size_ = 1;
};

/// Does `work` for each of `size` ranks at the same time, in a thread each, the first one in this
/// thread. Returns when all have ended; throws the first error of any.
void run_group(int size, const std::function<void(const Group&)>& work);

}  // namespace msa::parallel
