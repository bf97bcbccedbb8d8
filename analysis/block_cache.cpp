// SPDX-License-Identifier: MIT
#include "analysis/block_cache.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <tuple>

#include "core/error.h"

namespace msa::analysis {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

size_t at(int64_t index) { return static_cast<size_t>(index); }

/// For every use, the step of the same block's next use.
std::vector<int64_t> next_uses(const DecodeSteps& steps) {
    std::vector<int64_t> upcoming(at(steps.blocks()), kNever), next(at(steps.uses()));
    int64_t use = steps.uses();
    for (int64_t step = steps.count() - 1; step >= 0; --step) {
        use -= std::ssize(steps[step]);
        for (int64_t slot = 0; int32_t block : steps[step]) {
            next[at(use + slot++)] = upcoming[at(block)];
            upcoming[at(block)] = step;
        }
    }
    return next;
}

/// A cached block; the first in order leaves first.
struct Resident {
    int64_t rank, last_use;
    int32_t block;
    bool operator<(const Resident& other) const {
        return std::tie(rank, last_use, block) < std::tie(other.rank, other.last_use, other.block);
    }
};

}  // namespace

void DecodeSteps::add(std::span<const int32_t> blocks) {
    blocks_.insert(blocks_.end(), blocks.begin(), blocks.end());
    begin_.push_back(std::ssize(blocks_));
    largest_ = std::max(largest_, std::ssize(blocks));
}

int64_t DecodeSteps::blocks() const {
    return (first_position_ + std::max<int64_t>(count(), 1) - 1) / block_size_ + 1;
}

std::span<const int32_t> DecodeSteps::operator[](int64_t step) const {
    const int64_t begin = begin_[at(step)];
    return {blocks_.data() + begin, at(begin_[at(step + 1)] - begin)};
}

bool DecodeSteps::writes(int64_t step, int32_t block) const {
    return block == (first_position_ + step) / block_size_ &&
           block * block_size_ >= first_position_;
}

void StackDistances::add(int64_t distance) {
    if (distance == kNeverUsed) {
        ++cold;
        return;
    }
    if (distance >= std::ssize(reuses)) reuses.resize(at(distance + 1));
    ++reuses[at(distance)];
}

StackDistances& StackDistances::operator+=(const StackDistances& other) {
    reuses.resize(std::max(reuses.size(), other.reuses.size()));
    for (size_t d = 0; d < other.reuses.size(); ++d) reuses[d] += other.reuses[d];
    cold += other.cold;
    return *this;
}

int64_t StackDistances::misses(int64_t size) const {
    const auto first = reuses.begin() + std::min(size, std::ssize(reuses));
    return std::accumulate(first, reuses.end(), cold);
}

LruStack::LruStack(int64_t blocks, int64_t uses)
    : last_(at(blocks), StackDistances::kNeverUsed), marked_(at(uses + 1)) {}

void LruStack::mark(int64_t time, int64_t change) {
    for (int64_t i = time + 1; i < std::ssize(marked_); i += i & -i) marked_[at(i)] += change;
}

int64_t LruStack::newer_than(int64_t time) const {
    int64_t older = 0;
    for (int64_t i = time + 1; i > 0; i -= i & -i) older += marked_[at(i)];
    return in_stack_ - older;
}

int64_t LruStack::distance(int32_t block) const {
    const int64_t last = last_[at(block)];
    return last == StackDistances::kNeverUsed ? last : newer_than(last);
}

void LruStack::use(std::span<const int32_t> step) {
    for (int32_t block : step) {
        int64_t& last = last_[at(block)];
        if (last == StackDistances::kNeverUsed)
            ++in_stack_;
        else
            mark(last, -1);
        last = now_++;
        mark(last, 1);
    }
}

Reuse& Reuse::operator+=(const Reuse& other) {
    uses += other.uses;
    written += other.written;
    distances += other.distances;
    return *this;
}

Prefetch& Prefetch::operator+=(const Prefetch& other) {
    hits += other.hits;
    left += other.left;
    in_vain += other.in_vain;
    return *this;
}

Reuse reuse(const DecodeSteps& steps) {
    Reuse found{.uses = steps.uses()};
    LruStack stack(steps.blocks(), steps.uses());
    for (int64_t step = 0; step < steps.count(); ++step) {
        for (int32_t block : steps[step]) {
            const int64_t distance = stack.distance(block);
            if (distance == StackDistances::kNeverUsed && steps.writes(step, block))
                ++found.written;
            else
                found.distances.add(distance);
        }
        stack.use(steps[step]);
    }
    return found;
}

Prefetch prefetch(const DecodeSteps& steps, const DecodeSteps& guesses) {
    MSA_CHECK(steps.count() == guesses.count() && steps.blocks() == guesses.blocks());
    Prefetch found;
    LruStack stack(steps.blocks(), steps.uses());
    for (int64_t step = 0; step < steps.count(); ++step) {
        const auto used = steps[step], guessed = guesses[step];
        for (int32_t block : used) {
            const int64_t distance = stack.distance(block);
            if (std::binary_search(guessed.begin(), guessed.end(), block))
                ++found.hits;
            else if (distance != StackDistances::kNeverUsed || !steps.writes(step, block))
                found.left.add(distance);
        }
        for (int32_t block : guessed)
            if (!std::binary_search(used.begin(), used.end(), block) && !steps.writes(step, block))
                found.in_vain.add(stack.distance(block));
        stack.use(used);
    }
    return found;
}

DecodeSteps previous_steps(const DecodeSteps& steps) {
    DecodeSteps before = steps.without_blocks();
    for (int64_t step = 0; step < steps.count(); ++step)
        before.add(step == 0 ? std::span<const int32_t>() : steps[step - 1]);
    return before;
}

int64_t cache_misses(const DecodeSteps& steps, CachePolicy policy, int64_t size) {
    require(size >= steps.largest(), "a cache of ", size, " blocks cannot hold a step of ",
            steps.largest());
    const std::vector<int64_t> next = next_uses(steps);
    std::vector<int64_t> uses(at(steps.blocks()));
    std::vector<Resident> known(at(steps.blocks()));
    std::vector<bool> is_cached(at(steps.blocks()));
    std::set<Resident> cached;
    int64_t misses = 0, use = 0;
    for (int64_t step = 0; step < steps.count(); ++step) {
        for (int32_t block : steps[step]) {
            if (is_cached[at(block)])
                cached.erase(known[at(block)]);
            else if (uses[at(block)] > 0 || !steps.writes(step, block))
                ++misses;
        }
        while (std::ssize(cached) + std::ssize(steps[step]) > size) {
            is_cached[at(cached.begin()->block)] = false;
            cached.erase(cached.begin());
        }
        for (int32_t block : steps[step]) {
            const int64_t count = ++uses[at(block)];
            const int64_t rank = policy == CachePolicy::lru   ? 0
                                 : policy == CachePolicy::lfu ? count
                                                              : -next[at(use)];
            known[at(block)] = {rank, use++, block};
            is_cached[at(block)] = true;
            cached.insert(known[at(block)]);
        }
    }
    return misses;
}

}  // namespace msa::analysis
