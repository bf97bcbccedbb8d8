// SPDX-License-Identifier: MIT
// Hits and misses of a cache of key-value blocks, for one KV head, if the queries of a sequence are
// decode steps. A step needs all its blocks at once: the cache's contents before the step decide
// the hits, and the step's blocks stay until its end. So a cache holds at least as many blocks as
// the largest step. LRU stack: Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage
// hierarchies", 1970. Optimum: Belady, "A study of replacement algorithms", 1966.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace msa::analysis {

/// The blocks that the decode steps of one sequence use, in one group.
class DecodeSteps {
public:
    /// The first step's query is at `first_position`, each next step's one position further.
    DecodeSteps(int64_t first_position, int64_t block_size)
        : first_position_(first_position), block_size_(block_size) {}
    /// Adds the next step's blocks: ascending, without repeats, none after the query's own.
    void add(std::span<const int32_t> blocks);

    int64_t count() const { return static_cast<int64_t>(begin_.size()) - 1; }
    int64_t uses() const { return begin_.back(); }  // blocks of all steps
    int64_t largest() const { return largest_; }    // most blocks of a step
    int64_t blocks() const;                         // that the last step's query can see
    std::span<const int32_t> operator[](int64_t step) const;
    /// Whether this step writes its token's key and value to `block`, and one of the steps began
    /// the block. Such a block was never outside the cache, so its first use is no miss.
    bool writes(int64_t step, int32_t block) const;
    /// The same positions, without steps.
    DecodeSteps without_blocks() const { return {first_position_, block_size_}; }

private:
    int64_t first_position_, block_size_, largest_ = 0;
    std::vector<int64_t> begin_{0};
    std::vector<int32_t> blocks_;
};

/// Histogram of LRU stack distances: how many blocks were used more recently than the block at
/// hand. Within a step, a higher id counts as more recent.
struct StackDistances {
    std::vector<int64_t> reuses;  // by distance, up to the largest one found
    int64_t cold = 0;             // uses of blocks that were never used before

    static constexpr int64_t kNeverUsed = -1;
    void add(int64_t distance);
    StackDistances& operator+=(const StackDistances&);
    /// Uses that miss in an LRU cache of `size` blocks, cold ones included.
    int64_t misses(int64_t size) const;
};

/// The blocks of a group by the time of their last use, the most recent first. O(log uses) per
/// call.
class LruStack {
public:
    /// Block ids are below `blocks`; there are `uses` uses in total.
    LruStack(int64_t blocks, int64_t uses);
    /// The stack distance of a block, or kNeverUsed.
    int64_t distance(int32_t block) const;
    void use(std::span<const int32_t> step);

private:
    int64_t newer_than(int64_t time) const;
    void mark(int64_t time, int64_t change);

    int64_t now_ = 0, in_stack_ = 0;
    std::vector<int64_t> last_;    // time of each block's last use, or kNeverUsed
    std::vector<int64_t> marked_;  // Fenwick tree over times: 1 where a block was last used
};

struct Reuse {
    int64_t uses = 0;
    int64_t written = 0;         // first uses of blocks that the steps write (DecodeSteps::writes)
    StackDistances distances{};  // of all other uses
    Reuse& operator+=(const Reuse&);
};
Reuse reuse(const DecodeSteps&);

/// The effect of prefetching guessed blocks before each step. Guessed blocks wait outside the cache
/// and enter it when used.
struct Prefetch {
    int64_t hits = 0;        // uses that were prefetched
    StackDistances left;     // the other uses, without those of Reuse::written
    StackDistances in_vain;  // blocks that were prefetched but not used
    Prefetch& operator+=(const Prefetch&);
};
/// `guesses` has as many steps as `steps`. previous_steps() guesses by the previous step.
Prefetch prefetch(const DecodeSteps& steps, const DecodeSteps& guesses);
/// Gives each step the blocks of the step before it; the first is empty.
DecodeSteps previous_steps(const DecodeSteps&);

/// Which block a full cache evicts. Ties go to the block used least recently.
enum class CachePolicy : uint8_t {
    lru,     // the one used least recently
    lfu,     // the one used least often since the first step, in the cache or not
    belady,  // the one whose next use is furthest away: no policy has fewer misses
};

/// Uses that miss in a cache of `size` blocks, by direct simulation. Cold uses are included, those
/// of Reuse::written are not. InputError if the largest step has more blocks.
int64_t cache_misses(const DecodeSteps&, CachePolicy, int64_t size);

}  // namespace msa::analysis
