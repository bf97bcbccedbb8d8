// SPDX-License-Identifier: MIT
#include "analysis/selection_cost.h"

#include <algorithm>
#include <list>

#include "analysis/cost_model.h"
#include "analysis/popularity.h"
#include "core/selection.h"

namespace msa::analysis {
namespace {

constexpr int64_t kSmallestMmaRows = 16;

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

/// Sizes that the bytes and operations of all three orders are made of.
struct Units {
    Units(const Problem& p, Element element) {
        const auto e = static_cast<double>(element_bytes(element));
        const auto dh = static_cast<double>(p.head_dim), bk = static_cast<double>(p.block_size);
        kv_block = 2 * e * dh * bk;
        group_row = e * static_cast<double>(p.group_size()) * dh;
        q_and_out = 2 * e * static_cast<double>(p.queries() * p.query_heads) * dh;
        block_row_flops = 4 * dh * bk;
        tile_rows = static_cast<double>(queries_per_tile(p.group_size()) * p.group_size());
        query_rows =
            static_cast<double>(ceil_div(p.group_size(), kSmallestMmaRows) * kSmallestMmaRows);
    }
    double kv_block;         // bytes of the keys and values of a block
    double group_row;        // bytes of one query's heads of one group
    double q_and_out;        // bytes of all queries and outputs
    double block_row_flops;  // Q K^T and P V of one head with a block
    double tile_rows, query_rows;
};

double slowest(const OrderCost& order, Element element, const Hardware& on) {
    const double main = roofline_seconds({order.executed_flops, order.memory_bytes}, element, on);
    return on.cache_bytes_per_second
               ? std::max(main, order.cache_bytes / *on.cache_bytes_per_second)
               : main;
}

/// Orders whose outputs stay on chip: tiles of `rows` MMA rows.
OrderCost on_chip_order(const char* name, const Units& unit, const TileReads& tiles, double rows,
                        Element element, const Hardware& on) {
    const auto reads = static_cast<double>(tiles.reads), misses = static_cast<double>(tiles.misses);
    OrderCost order{name, reads * rows * unit.block_row_flops,
                    unit.q_and_out + misses * unit.kv_block, unit.q_and_out + reads * unit.kv_block,
                    0};
    order.seconds = slowest(order, element, on);
    return order;
}

OrderCost kv_outer_order(const Units& unit, const SelectionCost& cost, double mma_tiles,
                         Element element, const Hardware& on) {
    const double partials = cost.gathered_q_bytes;
    const double blocks = static_cast<double>(cost.used_blocks) * unit.kv_block;
    const double chunk_loads = static_cast<double>(cost.chunks) * unit.kv_block;
    const OrderCost attend{"", mma_tiles * unit.tile_rows * unit.block_row_flops,
                           blocks + cost.gathered_q_bytes + partials,
                           chunk_loads + cost.gathered_q_bytes + partials, 0};
    const double combine = partials + unit.q_and_out / 2;
    return {"kv_outer", attend.executed_flops, attend.memory_bytes + combine,
            attend.cache_bytes + combine,
            slowest(attend, element, on) + combine / on.bytes_per_second};
}

/// Fills in what the popularity of the blocks tells; returns the MMA tiles of the KV-outer order.
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
        cost.chunks += chunks(counts, ids.extent(2), p.block_size);
        tiles += mma_tiles(counts, p.group_size());
    }
    const auto pairs = static_cast<double>(cost.pairs);
    cost.used_slots = pairs / static_cast<double>(ids.size());
    cost.mean_queries = pairs / static_cast<double>(cost.used_blocks);
    cost.mma_fill = pairs / static_cast<double>(tiles * queries_per_tile(p.group_size()));
    return tiles;
}

}  // namespace

TileReads tile_reads(const Problem& p, View<const int32_t, 3> ids, int64_t tile_queries,
                     int64_t cache_blocks) {
    const std::vector<int64_t> first_block = block_starts(p), sequence = query_sequences(p);
    const std::vector<QueryRange> tiles = query_tiles(p, tile_queries);
    TileReads sum;
    std::vector<int32_t> blocks;
    for (int64_t r = 0; r < p.kv_heads; ++r) {
        LruCache cache(first_block.back(), cache_blocks);
        for (const QueryRange& tile : tiles) {
            blocks.clear();
            for (int64_t i = tile.begin; i < tile.end; ++i)
                for (int32_t b : selected(ids, i, r)) blocks.push_back(b);
            std::sort(blocks.begin(), blocks.end());
            blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
            const int64_t s = sequence[static_cast<size_t>(tile.begin)];
            const int64_t first = first_block[static_cast<size_t>(s)];
            for (int32_t b : blocks) sum.misses += cache.miss(first + b) ? 1 : 0;
            sum.reads += static_cast<int64_t>(blocks.size());
        }
        sum.tiles += static_cast<int64_t>(tiles.size());
    }
    return sum;
}

SelectionCost selection_cost(const Problem& p, View<const int32_t, 3> ids, Element element,
                             const Hardware& on) {
    const Units unit(p, element);
    const auto cache_blocks = static_cast<int64_t>(on.cache() / unit.kv_block);
    SelectionCost cost;
    const auto mma_tiles = static_cast<double>(count_queries_per_block(p, ids, cost));
    cost.useful_flops = sparse_attention_flops(p, ids);
    cost.gathered_q_bytes = static_cast<double>(cost.pairs) * unit.group_row;
    const int64_t full = queries_per_tile(p.group_size());
    for (int64_t queries = 1; queries < full; queries *= 2)
        cost.unions.emplace_back(queries, tile_reads(p, ids, queries, cache_blocks));
    cost.unions.emplace_back(full, tile_reads(p, ids, full, cache_blocks));

    const TileReads &single = cost.unions.front().second, &tiled = cost.unions.back().second;
    cost.orders = {
        on_chip_order("q_outer", unit, single, unit.query_rows, element, on),
        kv_outer_order(unit, cost, mma_tiles, element, on),
        on_chip_order("union", unit, tiled, unit.tile_rows, element, on),
    };
    const double other = std::min(cost.orders[0].seconds, cost.orders[1].seconds);
    cost.break_even_union =
        other * on.peak(element) /
        (static_cast<double>(tiled.tiles) * unit.tile_rows * unit.block_row_flops);
    return cost;
}

}  // namespace msa::analysis
