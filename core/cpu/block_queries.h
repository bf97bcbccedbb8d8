// SPDX-License-Identifier: MIT
// The loop over key blocks, each with all queries that attend to it (the reverse index). Rows are
// gathered, so products have full strips whatever the queries selected. One thread takes all groups
// of a block in order, so sums over the block's keys have one owner and one order.
#pragma once

#include <omp.h>

#include <algorithm>
#include <span>
#include <vector>

#include "core/cpu/branch.h"
#include "core/problem.h"
#include "core/schedule.h"

namespace msa::cpu {

inline constexpr int64_t kPassQueries = 48;  // most queries of one product
inline constexpr int64_t kGatheredRows = 96;
inline constexpr int64_t kPrefetched = 4;  // queries ahead of the current one

/// A block of keys of one group.
struct GroupBlock {
    int64_t group;
    int64_t position;  // of its first key in the sequence
    int64_t first;     // the same, packed
    int64_t keys;      // that some query sees
};

/// At most kPassQueries of the queries of a block, ascending.
struct BlockPass {
    GroupBlock block;
    std::span<const SelectedQuery> queries;
    const KeyRange* visible;  // [Nq]

    int64_t size() const { return std::ssize(queries); }
    const SelectedQuery& use(int64_t n) const { return queries[static_cast<size_t>(n)]; }
    /// Keys of the block that query n sees, and how many of them lie before its window. The first
    /// does not decrease with n.
    int64_t seen(int64_t n) const {
        return std::min(block.keys, visible[use(n).query].count - block.position);
    }
    int64_t hidden(int64_t n, int64_t window) const {
        const int64_t start = window_start(visible[use(n).query].count, window);
        return std::clamp<int64_t>(start - block.position, 0, seen(n));
    }
};

/// Scratch memory of one thread: gathered rows, the block's keys, logits.
struct BranchScratch {
    BranchScratch(const Branch& of, int64_t block_size)
        : rows({std::max(of.heads, kGatheredRows), of.width()}),
          panels({panel_floats(of.width(), block_size)}),
          logits({kStrip * padded(block_size) + kLanes}) {}
    void pack(const Branch& of, const GroupBlock& block) {
        keys = pack_keys(of.keys, block.group, block.first, block.keys, panels.data());
    }
    Tensor<float, 2> rows;  // times the branch's factor
    Tensor<float, 1> panels, logits;
    Panels keys{};
};

/// The hardware prefetcher finds the rows of one query, which are contiguous, but not those of
/// other queries.
inline void prefetch_rows(const Branch& of, const BlockPass& pass, int64_t n) {
    if (n >= pass.size()) return;
    const int64_t floats = of.heads * of.width();
    const float* from =
        of.q.data() + pass.use(n).query * of.q.extent(1) * of.width() + pass.block.group * floats;
    for (int64_t at = 0; at < floats; at += 16) __builtin_prefetch(from + at);
}

/// Calls visit(n, head of the group, logits, first key, end) for every row of the pass and the keys
/// that it attends to. Logits may be overwritten up to the padded end.
template <typename Visit>
void for_each_row(const Branch& of, const BlockPass& pass, BranchScratch& s, Visit visit) {
    const int64_t stride = padded(pass.block.keys), width = of.width();
    const int64_t batch = std::max<int64_t>(1, kGatheredRows / of.heads);
    for (int64_t n = 0; n < kPrefetched; ++n) prefetch_rows(of, pass, n);
    for (int64_t begin = 0; begin < pass.size(); begin += batch) {
        const int64_t count = std::min(batch, pass.size() - begin);
        for (int64_t n = 0; n < count; ++n) {
            const int64_t query = pass.use(begin + n).query;
            prefetch_rows(of, pass, begin + n + kPrefetched);
            pack_queries(of.q, {query, query + 1}, pass.block.group * of.heads, of.heads,
                         of.rule.factor, &s.rows(n * of.heads, 0));
        }
        for (int64_t row = 0; row < count * of.heads; row += kStrip) {
            const int64_t strip = std::min(kStrip, count * of.heads - row);
            const int64_t most = pass.seen(begin + (row + strip - 1) / of.heads);
            multiply({&s.rows(row, 0), width, strip}, {s.keys.data, width, most}, s.logits.data(),
                     stride);
            for (int64_t r = 0; r < strip; ++r) {
                const int64_t n = begin + (row + r) / of.heads, seen = pass.seen(n);
                float* const logits = s.logits.data() + r * stride;
                cap_row(logits, seen, of.rule.cap);
                visit(n, (row + r) % of.heads, logits, pass.hidden(n, of.window), seen);
            }
        }
    }
}

/// For every block of ids [Nq, Hkv, k], in parallel: worker.begin(); for each group with queries
/// worker.start(GroupBlock), then worker.add(BlockPass) for each pass; finally worker.end(keys of
/// the block). Each thread has its own worker.
template <typename Worker>
void for_each_block(const Problem& p, View<const int32_t, 3> ids, std::vector<Worker>& workers) {
    const KvOuterSchedule schedule =
        schedule_kv_outer(p, ids, std::max<int64_t>(1, p.queries()));  // a chunk is a block
    const std::vector<int64_t> first_block = block_starts(p);
    const std::vector<KeyRange>& visible = visible_keys(p);
    const auto add_group = [&](int64_t group, int64_t b, int64_t position, Worker& worker) {
        const auto at = static_cast<size_t>(group * first_block.back() + b);
        const std::span<const SelectedQuery> all(
            schedule.queries.data() + schedule.starts[at],
            static_cast<size_t>(schedule.starts[at + 1] - schedule.starts[at]));
        if (all.empty()) return;
        const KeyRange last = visible[static_cast<size_t>(all.back().query)];
        const GroupBlock block{group, position, last.first + position,
                               std::min(p.block_size, last.count - position)};
        worker.start(block);
        for (size_t begin = 0; begin < all.size(); begin += kPassQueries)
            worker.add(BlockPass{
                block, all.subspan(begin, std::min<size_t>(kPassQueries, all.size() - begin)),
                visible.data()});
    };
    std::vector<KeyRange> blocks;  // their keys: packed, and how many
    std::vector<int64_t> positions;
    for (size_t s = 0; s + 1 < first_block.size(); ++s) {
        const int64_t first = p.batch.cu_seqlens_k()[s], end = p.batch.cu_seqlens_k()[s + 1];
        for (int64_t at = first; at < end; at += p.block_size) {
            blocks.push_back({at, std::min(p.block_size, end - at)});
            positions.push_back(at - first);
        }
    }
#pragma omp parallel for schedule(dynamic) num_threads(static_cast <int>(workers.size()))
    for (int64_t b = 0; b < std::ssize(blocks); ++b) {
        Worker& worker = workers[static_cast<size_t>(omp_get_thread_num())];
        worker.begin();
        for (int64_t group = 0; group < p.kv_heads; ++group)
            add_group(group, b, positions[static_cast<size_t>(b)], worker);
        worker.end(blocks[static_cast<size_t>(b)]);
    }
}

}  // namespace msa::cpu
