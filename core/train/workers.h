// SPDX-License-Identifier: MIT
// Data-parallel training: several workers have the same model, each works on an equal share of the
// sequences of every step, and all move the weights along the sum of their gradients. A worker is a
// thread with a GPU of its own, or a process of its own (experiments/pretrain/rank_workers.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>

namespace msa::train {

/// Another worker has ended, and says why.
class WorkerStopped : public std::exception {
public:
    const char* what() const noexcept override { return "another worker has stopped"; }
};

/// One of them, as it sees the others; this class itself is the only one of its run. Collective
/// calls return when all workers have made them, in the same order, and throw WorkerStopped where
/// one never will.
class Workers {
public:
    virtual ~Workers() = default;
    Workers() = default;
    Workers(const Workers&) = delete;
    Workers& operator=(const Workers&) = delete;

    int index() const { return index_; }
    int count() const { return count_; }
    bool is_first() const { return index_ == 0; }

    /// Collective: each value becomes its sum over the workers, added in their order, so that all
    /// have the same bits. Memory of the host.
    virtual void sum(std::span<float>) {}
    virtual void sum(std::span<double>) {}
    /// Collective: the first worker's bytes, in host memory.
    virtual void from_first(std::span<std::byte>) {}
    /// Collective: the bytes of all workers, as many of each, in their order, in host memory.
    virtual void from_all(std::span<const std::byte> mine, std::span<std::byte> all) {
        std::copy(mine.begin(), mine.end(), all.begin());
    }
    /// Not collective: throws WorkerStopped where it is known that one has failed. For whoever
    /// waits for the others by other means.
    virtual void check() const {}

    /// Collective: is it so for any worker?
    bool any(bool mine);
    /// Collective: SystemError unless the value is the same with all, to the bit, or NaN. `what`:
    /// "losses of step 3: their sum", as the message has it before the value.
    void require_same(double value, const std::string& what);

protected:
    Workers(int index, int count) : index_(index), count_(count) {}

private:
    int index_ = 0, count_ = 1;
};

/// Does `work` for each of `count` workers at the same time, in a thread each, the first one in
/// this thread. Returns when all have ended; throws the first error of any.
void work_together(int count, const std::function<void(Workers&)>& work);

}  // namespace msa::train
