// SPDX-License-Identifier: MIT
#include "core/parallel/group.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace msa::parallel {
namespace {

/// Where the threads of a run meet.
class Meeting {
public:
    explicit Meeting(int count) : lists(static_cast<size_t>(count)) {}

    /// Returns when all have come.
    void wait() {
        constexpr auto kSpin = std::chrono::microseconds(200);
        std::unique_lock lock(turn_);
        if (stopped_) throw GroupStopped();
        const int64_t mine = round_;
        if (++here_ == std::ssize(lists)) {
            here_ = 0;
            ++round_;
            changed_.notify_all();
            return;
        }
        lock.unlock();
        // Most waits are shorter than it takes to wake a thread.
        const auto until = std::chrono::steady_clock::now() + kSpin;
        while (std::chrono::steady_clock::now() < until) {
            if (round_ != mine) return;
            std::this_thread::yield();
        }
        lock.lock();
        changed_.wait(lock, [&] { return round_ != mine || stopped_; });
        if (round_ == mine) throw GroupStopped();
    }
    /// A rank comes no more, because of `error` where there is one.
    void leave(const std::exception_ptr& error) {
        const std::lock_guard lock(turn_);
        stopped_ = true;
        if (!error_) error_ = error;
        changed_.notify_all();
    }
    /// The first there was.
    std::exception_ptr error() const {
        const std::lock_guard lock(turn_);
        return error_;
    }

    std::vector<void*> lists;  // one of each rank, for the others to read

private:
    mutable std::mutex turn_;
    std::condition_variable changed_;
    std::atomic<int64_t> round_ = 0;
    int64_t here_ = 0;
    bool stopped_ = false;
    std::exception_ptr error_;
};

class Threads final : public Group {
public:
    Threads(Meeting& meeting, int rank, int size) : Group(rank, size), meeting_(meeting) {}

    void all_reduce(std::span<float> values) const override { sum_lists(values); }
    void all_reduce(std::span<double> values) const override { sum_lists(values); }
    void broadcast(std::span<std::byte> bytes) const override {
        show(bytes.data());
        if (!is_first()) std::copy_n(list<std::byte>(0), bytes.size(), bytes.data());
        meeting_.wait();
    }
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const override {
        show(const_cast<std::byte*>(mine.data()));  // nobody writes to it
        MSA_CHECK(all.size() == mine.size() * static_cast<size_t>(size()));
        for (int other = 0; other < size(); ++other)
            std::copy_n(list<const std::byte>(other), mine.size(),
                        all.data() + mine.size() * static_cast<size_t>(other));
        meeting_.wait();
    }
    void check() const override {
        if (meeting_.error()) throw GroupStopped();
    }

private:
    void show(void* values) const {
        meeting_.lists[static_cast<size_t>(rank())] = values;
        meeting_.wait();
    }
    template <typename T>
    T* list(int of) const {
        return static_cast<T*>(meeting_.lists[static_cast<size_t>(of)]);
    }
    /// Every rank sums a part of the lists, for all.
    template <typename T>
    void sum_lists(std::span<T> values) const {
        show(values.data());
        const auto part = [&](int of) {
            return values.size() * static_cast<size_t>(of) / static_cast<size_t>(size());
        };
        for (size_t i = part(rank()); i < part(rank() + 1); ++i) {
            T sum = list<T>(0)[i];
            for (int other = 1; other < size(); ++other) sum += list<T>(other)[i];
            for (int other = 0; other < size(); ++other) list<T>(other)[i] = sum;
        }
        meeting_.wait();
    }

    Meeting& meeting_;
};

}  // namespace

bool Group::any(bool mine) const {
    double sum = mine ? 1 : 0;
    all_reduce(std::span(&sum, 1));
    return sum > 0;
}

void Group::barrier(const std::exception_ptr& error) const {
    const bool failed = any(error != nullptr);
    if (error) std::rethrow_exception(error);
    if (failed) throw GroupStopped();
}

void Group::require_same(double value, const std::string& what) const {
    std::vector<double> all(static_cast<size_t>(size_));
    all_gather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)));
    const auto is_same = [&](double other) {
        return std::bit_cast<uint64_t>(other) == std::bit_cast<uint64_t>(value) ||
               (std::isnan(other) && std::isnan(value));
    };
    if (!std::ranges::all_of(all, is_same))
        throw SystemError(concat("workers have different ", what, " is ", value, " with worker ",
                                 rank_, "; all must compute on processors of one kind"));
}

void run_group(int size, const std::function<void(const Group&)>& work) {
    MSA_CHECK(size >= 1);
    Meeting meeting(size);
    const auto be = [&](int rank) {
        std::exception_ptr error;
        try {
            work(Threads(meeting, rank, size));
        } catch (...) {
            error = std::current_exception();
        }
        meeting.leave(error);
    };
    {
        std::vector<std::jthread> others;
        for (int rank = 1; rank < size; ++rank) others.emplace_back(be, rank);
        be(0);
    }
    if (meeting.error()) std::rethrow_exception(meeting.error());
}

}  // namespace msa::parallel
