// SPDX-License-Identifier: MIT
#include "analysis/selection_cost.h"

#include <algorithm>
#include <list>

#include "analysis/bytes.h"
#include "analysis/cost_model.h"
#include "analysis/popularity.h"
#include "core/kernel_sizes.h"
#include "core/selection.h"

namespace msa::analysis {
namespace {

/// Which of `keys` entries the last `capacity` distinct reads left behind.
class LruCache {
public:
    LruCache(int64_t keys, int64_t capacity)
        : capacity_(static_cast<size_t>(capacity)), at_(static_cast<size_t>(keys), order_.end()) {}

    /// Reads `key`; was it missing?
    bool miss(int64_t key) {
        auto& at = at_[static_cast<size_t>(key)];
        const bool missing = at == order_.end();
        if (missing)
            order_.push_front(key);
        else
            order_.splice(order_.begin(), order_, at);
        at = order_.begin();
        if (order_.size() > capacity_) {
            at_[static_cast<size_t>(order_.back())] = order_.end();
            order_.pop_back();
        }
        return missing;
    }

private:
    size_t capacity_;
    std::list<int64_t> order_;  // newest first
    std::vector<std::list<int64_t>::iterator> at_;
};

/// Counts the uses of blocks, one (group, round of slots) at a time.
class UseCounter {
public:
    UseCounter(int64_t blocks, int64_t group_size)
        : uses_(static_cast<size_t>(blocks), 0),
          item_(cuda::sparse_item_queries(group_size)),
          pass_(cuda::sparse_pass_queries(group_size)) {}

    void add(int64_t block, int64_t uses) {
        int64_t& sum = uses_[static_cast<size_t>(block)];
        if (sum == 0) touched_.push_back(block);
        sum += uses;
    }
    /// The round is complete: to work items and passes.
    void flush(BlockWork& work) {
        for (int64_t block : touched_) {
            int64_t& uses = uses_[static_cast<size_t>(block)];
            work.uses += uses;
            work.items += ceil_div(uses, item_);
            work.passes += uses / item_ * ceil_div(item_, pass_) + ceil_div(uses % item_, pass_);
            ++work.blocks;
            uses = 0;
        }
        touched_.clear();
    }

private:
    std::vector<int64_t> uses_, touched_;
    int64_t item_, pass_;
};

/// Sizes that the bytes and operations of all orders are made of.
struct Units {
    Units(const Problem& p, Element element) {
        const double e = real(element_bytes(element)), dh = real(p.head_dim);
        const double bk = real(p.block_size);
        const int64_t heads = p.group_size(), tile = cuda::sparse_tile_queries(heads),
                      pass = cuda::sparse_pass_queries(heads);
        const auto padded = [](int64_t count, int64_t unit) {
            return real(ceil_div(count, unit) * unit);
        };
        kv_block = 2 * e * dh * bk;
        group_row = e * real(heads) * dh;
        group_lse = kLseBytes * real(heads);
        block_row_flops = 4 * dh * bk;
        query_rows = padded(heads, cuda::kDecodeHeads);
        tile_rows = padded(tile * heads, cuda::kSparseTileRows);
        pass_rows = padded(pass * heads, cuda::kSparsePassRows);
        paper_tile_rows = real(queries_per_tile(heads) * heads);
        rows = real(p.queries() * p.kv_heads);
    }
    double kv_block;         // bytes of the keys and values of a block
    double group_row;        // bytes of one query's heads of one group
    double group_lse;        // bytes of their log-sum-exps
    double block_row_flops;  // Q K^T and P V of one head with a block
    double query_rows, tile_rows, pass_rows, paper_tile_rows;  // that are multiplied
    double rows;                                               // (query, group)
};

/// One phase: FLOPs, bytes from memory, bytes through the cache.
struct PhaseWork {
    double flops, memory_bytes, cache_bytes;
};

OrderCost order_of(const char* name, const std::vector<PhaseWork>& phases, Element element,
                   const Hardware& on) {
    OrderCost order{.name = name};
    for (const PhaseWork& phase : phases) {
        order.executed_flops += phase.flops;
        order.memory_bytes += phase.memory_bytes;
        order.cache_bytes += phase.cache_bytes;
        const double main = roofline_seconds({phase.flops, phase.memory_bytes}, element, on);
        order.seconds += on.cache_bytes_per_second
                             ? std::max(main, phase.cache_bytes / *on.cache_bytes_per_second)
                             : main;
    }
    return order;
}

/// A phase that also reads blocks, some of them from the cache.
PhaseWork reading(const Units& unit, double flops, double bytes, const TileReads& blocks) {
    return {flops, bytes + real(blocks.misses) * unit.kv_block,
            bytes + real(blocks.reads) * unit.kv_block};
}

PhaseWork q_outer_phase(const Units& unit, const TileReads& blocks, int64_t ids) {
    const double bytes = unit.rows * (2 * unit.group_row + unit.group_lse) + kIdBytes * real(ids);
    return reading(unit, real(blocks.reads) * unit.query_rows * unit.block_row_flops, bytes,
                   blocks);
}

/// Union, kv_outer and automatic: the schedule, what goes block by block, what goes tile by tile.
std::vector<PhaseWork> tiled_phases(const Units& unit, const SplitWork& work, int64_t ids) {
    const BlockWork& blocks = work.blocks;
    const double uses = real(blocks.uses),
                 unions = cuda::kUnionBlockBytes * real(work.unions.reads),
                 handles = cuda::kBlockUseBytes * uses,
                 masks = blocks.uses > 0 ? cuda::kSlotMaskBytes * unit.rows : 0,
                 partials = (unit.group_row + unit.group_lse) * uses;
    const bool slots = blocks.uses > 0;
    const double listed = (slots ? 2 : 1) * kIdBytes * real(ids) + unions + handles + masks;
    std::vector<PhaseWork> phases{{0, listed, listed}};
    if (slots) {
        const double bytes = handles + unit.group_row * uses + partials;
        phases.push_back({real(blocks.passes) * unit.pass_rows * unit.block_row_flops,
                          bytes + real(blocks.blocks) * unit.kv_block,
                          bytes + real(blocks.items) * unit.kv_block});
    }
    const double q = work.unions.reads > 0 ? unit.rows * unit.group_row : 0;
    const double bytes =
        q + unit.rows * (unit.group_row + unit.group_lse) + unions + masks + partials;
    phases.push_back(reading(unit, real(work.unions.reads) * unit.tile_rows * unit.block_row_flops,
                             bytes, work.unions));
    return phases;
}

std::vector<OrderCost> paper_orders(const Units& unit, const SelectionCost& cost, double mma_tiles,
                                    Element element, const Hardware& on) {
    const double pairs = real(cost.pairs), one_way = unit.rows * unit.group_row;
    const double partials = cost.gathered_q_bytes;
    const double q_bytes = 2 * one_way + pairs * unit.kv_block;
    const double kv_bytes = real(cost.used_blocks) * unit.kv_block + 2 * partials;
    const double combine = partials + one_way;
    return {
        order_of("q_outer", {{pairs * unit.query_rows * unit.block_row_flops, q_bytes, q_bytes}},
                 element, on),
        order_of("kv_outer",
                 {{mma_tiles * unit.paper_tile_rows * unit.block_row_flops, kv_bytes, kv_bytes},
                  {0, combine, combine}},
                 element, on)};
}

/// Fills in what the popularity of the blocks tells; returns the MMA tiles of the paper's KV-outer.
int64_t count_queries_per_block(const Problem& p, View<const int32_t, 3> ids, SelectionCost& cost) {
    Popularity popularity(p);
    popularity.add(p, ids);
    int64_t tiles = 0;
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        const View<const int64_t, 1> counts = popularity.queries_per_block()[r];
        for (int64_t b = 0; b < counts.size(); ++b) {
            cost.pairs += counts(b);
            cost.used_blocks += counts(b) > 0 ? 1 : 0;
            cost.most_queries = std::max(cost.most_queries, counts(b));
        }
        cost.paper_chunks += chunks(counts, ids.extent(2), p.block_size);
        tiles += mma_tiles(counts, p.group_size());
    }
    cost.used_slots = real(cost.pairs) / real(ids.size());
    cost.mean_queries = real(cost.pairs) / real(cost.used_blocks);
    cost.paper_mma_fill = real(cost.pairs) / real(tiles * queries_per_tile(p.group_size()));
    return tiles;
}

/// What the queries of a tile selected in a group, ascending.
std::vector<int32_t> blocks_of(const QueryRange& tile, View<const int32_t, 3> ids, int64_t group) {
    std::vector<int32_t> blocks;
    for (int64_t i = tile.begin; i < tile.end; ++i)
        for (int32_t b : selected(ids, i, group)) blocks.push_back(b);
    std::sort(blocks.begin(), blocks.end());
    return blocks;
}

/// Slots that a tile asks for: the most blocks that one of its queries leaves to the walk over
/// blocks.
int64_t tile_slots(const QueryRange& tile, View<const int32_t, 3> ids, int64_t group,
                   int64_t least_sharing) {
    const std::vector<int32_t> blocks = blocks_of(tile, ids, group);
    int64_t most = 0;
    for (int64_t i = tile.begin; i < tile.end; ++i) {
        most = std::max<int64_t>(most, std::ranges::count_if(selected(ids, i, group), [&](auto b) {
                                     const auto [first, last] =
                                         std::equal_range(blocks.begin(), blocks.end(), b);
                                     return last - first < least_sharing;
                                 }));
    }
    return most;
}

/// Is a tile the last of its round?
std::vector<bool> round_ends(const std::vector<QueryRange>& tiles, View<const int32_t, 3> ids,
                             const Split& split) {
    std::vector<bool> ends(tiles.size(), false);
    const int64_t groups = ids.extent(1), room = split.chunk_tiles * groups * ids.extent(2);
    int64_t slots = 0;
    const auto chunk_tiles = static_cast<size_t>(split.chunk_tiles);
    for (size_t first = 0; first < tiles.size(); first += chunk_tiles) {
        int64_t more = 0;
        if (tiles.size() > chunk_tiles && split.least_sharing > 1)
            for (size_t t = first; t < std::min(first + chunk_tiles, tiles.size()); ++t)
                for (int64_t r = 0; r < groups; ++r)
                    more += tile_slots(tiles[t], ids, r, split.least_sharing);
        const bool new_schedule =
            first > 0 && first / chunk_tiles % static_cast<size_t>(split.scheduled_chunks) == 0;
        if (new_schedule || slots + more > room) ends[first - 1] = true, slots = 0;
        slots += more;
    }
    return ends;
}

}  // namespace

SplitWork split_work(const Problem& p, View<const int32_t, 3> ids, const Split& split,
                     int64_t cache_blocks) {
    const std::vector<int64_t> first_block = block_starts(p), sequence = query_sequences(p);
    const std::vector<QueryRange> tiles = query_tiles(p, split.tile_queries);
    SplitWork work;
    const std::vector<bool> ends = round_ends(tiles, ids, split);
    UseCounter uses(first_block.back(), p.group_size());
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        LruCache cache(first_block.back(), cache_blocks);
        for (size_t t = 0; t < tiles.size(); ++t) {
            const std::vector<int32_t> blocks = blocks_of(tiles[t], ids, r);
            const int64_t s = sequence[static_cast<size_t>(tiles[t].begin)];
            const int64_t first = first_block[static_cast<size_t>(s)];
            for (auto at = blocks.begin(); at != blocks.end();) {
                const auto end = std::upper_bound(at, blocks.end(), *at);
                if (end - at >= split.least_sharing) {
                    work.unions.misses += cache.miss(first + *at) ? 1 : 0;
                    ++work.unions.reads;
                } else {
                    uses.add(first + *at, end - at);
                }
                at = end;
            }
            if (ends[t]) uses.flush(work.blocks);
        }
        uses.flush(work.blocks);
        work.unions.tiles += std::ssize(tiles);
    }
    return work;
}

TileReads tile_reads(const Problem& p, View<const int32_t, 3> ids, int64_t tile_queries,
                     int64_t cache_blocks) {
    return split_work(p, ids, {.tile_queries = tile_queries}, cache_blocks).unions;
}

SelectionCost selection_cost(const Problem& p, View<const int32_t, 3> ids, Element element,
                             const Hardware& on) {
    const Units unit(p, element);
    const auto cache_blocks = static_cast<int64_t>(on.cache() / unit.kv_block);
    SelectionCost cost;
    const int64_t mma_tiles = count_queries_per_block(p, ids, cost);
    cost.useful_flops = sparse_attention_flops(p, ids);
    cost.gathered_q_bytes = real(cost.pairs) * unit.group_row;

    const int64_t full = cuda::sparse_tile_queries(p.group_size());
    for (int64_t queries = 1; queries < full; queries *= 2)
        cost.unions.emplace_back(queries, tile_reads(p, ids, queries, cache_blocks));
    const int64_t bytes = element_bytes(element);
    const auto sharing = [&](int64_t least) {
        const int64_t chunk_tiles = cuda::sparse_chunk_tiles(p.query_heads, p.group_size(),
                                                             p.head_dim, ids.extent(2), bytes);
        return split_work(p, ids,
                          {full, least, chunk_tiles, cuda::sparse_scheduled_chunks(p.group_size())},
                          cache_blocks);
    };
    const SplitWork tiled = sharing(1), by_block = sharing(full + 1),
                    mixed = sharing(cuda::sparse_least_sharing(p.group_size(), p.head_dim, bytes,
                                                               p.blocks(), ids.extent(2)));
    cost.unions.emplace_back(full, tiled.unions);
    cost.work_items = by_block.blocks.items;
    cost.pass_fill =
        real(cost.pairs * p.group_size()) / (real(by_block.blocks.passes) * unit.pass_rows);
    cost.union_share = real(cost.pairs - mixed.blocks.uses) / real(cost.pairs);

    const auto order = [&](const char* name, const SplitWork& work) {
        return order_of(name, tiled_phases(unit, work, ids.size()), element, on);
    };
    cost.orders = {
        order_of("q_outer", {q_outer_phase(unit, cost.unions.front().second, ids.size())}, element,
                 on),
        order("union", tiled), order("kv_outer", by_block), order("automatic", mixed)};
    cost.paper_orders = paper_orders(unit, cost, real(mma_tiles), element, on);
    const double other = std::min(cost.orders[0].seconds, cost.orders[2].seconds);
    cost.break_even_union_blocks =
        other * on.peak(element) /
        (real(tiled.unions.tiles) * unit.tile_rows * unit.block_row_flops);
    return cost;
}

}  // namespace msa::analysis
