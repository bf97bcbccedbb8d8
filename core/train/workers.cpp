// SPDX-License-Identifier: MIT
#include "core/train/workers.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error.h"

namespace msa::train {
namespace {

/// Where the threads of a run meet.
class Meeting {
public:
    explicit Meeting(int count) : lists(static_cast<size_t>(count)) {}

    /// Returns when all have come.
    void wait() {
        constexpr auto kSpin = std::chrono::microseconds(200);
        std::unique_lock lock(turn_);
        if (stopped_) throw WorkerStopped();
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
        if (round_ == mine) throw WorkerStopped();
    }
    /// A worker comes no more, because of `error` where there is one.
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

    std::vector<void*> lists;  // one of each worker, for the others to read

private:
    mutable std::mutex turn_;
    std::condition_variable changed_;
    std::atomic<int64_t> round_ = 0;
    int64_t here_ = 0;
    bool stopped_ = false;
    std::exception_ptr error_;
};

class Threads final : public Workers {
public:
    Threads(Meeting& meeting, int index, int count) : Workers(index, count), meeting_(meeting) {}

    void sum(std::span<float> values) override { sum_lists(values); }
    void sum(std::span<double> values) override { sum_lists(values); }
    void from_first(std::span<std::byte> bytes) override {
        show(bytes.data());
        if (!is_first()) std::copy_n(list<std::byte>(0), bytes.size(), bytes.data());
        meeting_.wait();
    }
    void from_all(std::span<const std::byte> mine, std::span<std::byte> all) override {
        show(const_cast<std::byte*>(mine.data()));  // nobody writes to it
        MSA_CHECK(all.size() == mine.size() * static_cast<size_t>(count()));
        for (int worker = 0; worker < count(); ++worker)
            std::copy_n(list<const std::byte>(worker), mine.size(),
                        all.data() + mine.size() * static_cast<size_t>(worker));
        meeting_.wait();
    }
    void check() const override {
        if (meeting_.error()) throw WorkerStopped();
    }

private:
    void show(void* values) {
        meeting_.lists[static_cast<size_t>(index())] = values;
        meeting_.wait();
    }
    template <typename T>
    T* list(int worker) const {
        return static_cast<T*>(meeting_.lists[static_cast<size_t>(worker)]);
    }
    /// Every worker sums a part of the lists, for all.
    template <typename T>
    void sum_lists(std::span<T> values) {
        show(values.data());
        const auto part = [&](int worker) {
            return values.size() * static_cast<size_t>(worker) / static_cast<size_t>(count());
        };
        for (size_t i = part(index()); i < part(index() + 1); ++i) {
            T sum = list<T>(0)[i];
            for (int worker = 1; worker < count(); ++worker) sum += list<T>(worker)[i];
            for (int worker = 0; worker < count(); ++worker) list<T>(worker)[i] = sum;
        }
        meeting_.wait();
    }

    Meeting& meeting_;
};

}  // namespace

bool Workers::any(bool mine) {
    double sum = mine ? 1 : 0;
    this->sum(std::span(&sum, 1));
    return sum > 0;
}

void Workers::require_same(double value, const std::string& what) {
    double sum = value, wanted = value;
    this->sum(std::span(&sum, 1));
    for (int worker = 1; worker < count_; ++worker) wanted += value;
    if (sum != wanted && !std::isnan(value))
        throw SystemError(text("workers have different ", what, " is ", value, " with worker ",
                               index_, "; all must compute on processors of one kind"));
}

void work_together(int count, const std::function<void(Workers&)>& work) {
    MSA_CHECK(count >= 1);
    Meeting meeting(count);
    const auto be = [&](int index) {
        Threads worker(meeting, index, count);
        std::exception_ptr error;
        try {
            work(worker);
        } catch (...) {
            error = std::current_exception();
        }
        meeting.leave(error);
    };
    {
        std::vector<std::jthread> others;
        for (int index = 1; index < count; ++index) others.emplace_back(be, index);
        be(0);
    }
    if (meeting.error()) std::rethrow_exception(meeting.error());
}

}  // namespace msa::train
