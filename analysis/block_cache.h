// SPDX-License-Identifier: MIT
// What a cache of key-value blocks sees of the blocks that one KV head's queries select, when the
// queries of a sequence are decode steps. A step needs all of its blocks at once: which of them hit
// is decided by what the cache holds before the step, and the step's blocks stay in the cache until
// the step is over. So a cache holds at least as many blocks as the largest step has.
// The stack of an LRU cache: Mattson, Gecsei, Slutz, Traiger, "Evaluation techniques for storage
// hierarchies", 1970. The optimum: Belady, "A study of replacement algorithms", 1966.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace msa::analysis {

/// The blocks that the decode steps of one sequence use, in one group.
class DecodeSteps {
public:
    /// The first step's query is at `first_position`, and every step's one further on.
    DecodeSteps(int64_t first_position, int64_t block_size)
        : first_position_(first_position), block_size_(block_size) {}
    /// The next step's blocks: ascending, without repeats, none behind the query's own.
    void add(std::span<const int32_t> blocks);

    int64_t count() const { return static_cast<int64_t>(begin_.size()) - 1; }
    int64_t uses() const { return begin_.back(); }  // blocks of all steps
    int64_t largest() const { return largest_; }    // most blocks of a step
    int64_t blocks() const;                         // that the last step's query can see
    std::span<const int32_t> operator[](int64_t step) const;
    /// Is `block` the one that this step's query is written to, and was it begun by one of the
    /// steps? Then it never has been anywhere else, and its first use is no miss.
    bool writes(int64_t step, int32_t block) const;
    /// The same positions, and no steps yet.
    DecodeSteps without_blocks() const { return {first_position_, block_size_}; }

private:
    int64_t first_position_, block_size_, largest_ = 0;
    std::vector<int64_t> begin_{0};
    std::vector<int32_t> blocks_;
};

/// How many uses there are of each LRU stack distance: the blocks that were used more recently than
/// this one. Of the blocks of one step, the higher id is the more recent.
struct StackDistances {
    std::vector<int64_t> reuses;  // by distance; as long as the largest one found asks for
    int64_t cold = 0;             // uses of blocks that were never used before

    static constexpr int64_t kNeverUsed = -1;
    void add(int64_t distance);
    StackDistances& operator+=(const StackDistances&);
    /// Uses that miss in a least-recently-used cache of so many blocks, cold ones included.
    int64_t misses(int64_t size) const;
};

/// The blocks of a group by the time of their last use, the most recent first. O(log uses) each.
class LruStack {
public:
    /// For blocks below `blocks`, used `uses` times in all.
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
    int64_t written = 0;  // first uses of the blocks that the steps write (DecodeSteps::writes)
    StackDistances distances{};  // of all other uses
    Reuse& operator+=(const Reuse&);
};
Reuse reuse(const DecodeSteps&);

/// What fetching by a guess of each step's blocks, before they are known, is worth. What was
/// guessed waits beside the cache and enters it when it is used.
struct Prefetch {
    int64_t hits = 0;        // uses that were guessed
    StackDistances left;     // the other uses, without those of Reuse::written
    StackDistances in_vain;  // what was guessed and not used
    Prefetch& operator+=(const Prefetch&);
};
/// `guesses` has as many steps as `steps`; those of the previous step: see previous_steps().
Prefetch prefetch(const DecodeSteps& steps, const DecodeSteps& guesses);
/// Each step with the blocks of the one before it; the first is empty.
DecodeSteps previous_steps(const DecodeSteps&);

/// Which block leaves a full cache. Ties go to the block that was used least recently.
enum class CachePolicy : uint8_t {
    lru,     // the one used least recently
    lfu,     // the one used least often since the first step, in the cache or not
    belady,  // the one whose next use is furthest away: no policy has fewer misses
};

/// Uses that miss in a cache of `size` blocks, cold ones included and those of Reuse::written not:
/// a direct simulation. InputError where the largest step has more blocks.
int64_t cache_misses(const DecodeSteps&, CachePolicy, int64_t size);

}  // namespace msa::analysis
