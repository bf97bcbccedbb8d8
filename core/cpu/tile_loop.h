// SPDX-License-Identifier: MIT
// The loop shared by all operations over every visible key: tiles of (query, head) rows in
// parallel, steps of keys inside, strips of logits innermost. Each tile packs its own keys, so
// memory does not grow with the sequence; a tile has enough rows to make that cheap.
#pragma once

#include <omp.h>

#include <algorithm>
#include <array>
#include <vector>

#include "core/cpu/tile.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa::cpu {

inline constexpr int64_t kTileRows = 32 * kStrip;

/// The queries of one tile times the heads that share keys. Row (i, h) is i * heads + h.
struct RowTile {
    QueryRange queries;
    int64_t group;  // its heads are [group * heads, (group + 1) * heads)
    int64_t heads;
    const KeyRange* visible;  // [queries], not decreasing
    const float* rows;        // [queries * heads, width], times the factor
    int64_t width;
    float cap;       // of TileLoop
    int64_t window;  // likewise

    int64_t size() const { return (queries.end - queries.begin) * heads; }
    int64_t query(int64_t row) const { return queries.begin + row / heads; }
    int64_t head(int64_t row) const { return group * heads + row % heads; }
    KeyRange seen(int64_t row) const { return visible[row / heads]; }
    /// First position that the row attends to; not decreasing.
    int64_t first(int64_t row) const { return window_start(seen(row).count, window); }
};

/// How a loop cuts its work.
struct TileLoop {
    int64_t heads;                 // of q that share keys
    float factor;                  // on q
    int64_t step;                  // keys packed at a time
    int64_t max_rows = kTileRows;  // of a tile, unless one query has more heads
    int threads;
    float cap = 0;               // as in LogitRule
    int64_t window = kNoWindow;  // as in Problem

    int64_t tile_queries() const { return std::max<int64_t>(1, max_rows / heads); }
    int64_t tile_rows() const { return tile_queries() * heads; }
};

/// Scratch memory of one thread, from the start of a loop to its end.
struct Scratch {
    float* rows;    // [tile_rows, width]
    float* panels;  // of `step` keys
    float* logits;  // [kBatch, padded(step)]
    int thread;     // below TileLoop::threads: the body's key to scratch memory of its own
};

/// Calls body(RowTile, Scratch) for every tile and group of q [Nq, groups * heads, width], in
/// parallel; the tiles with most keys first. The body must not throw.
template <typename Body>
void for_each_tile(const Problem& p, View<const float, 3> q, const TileLoop& loop, Body body) {
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<QueryRange> tiles = query_tiles(p, loop.tile_queries());
    const int64_t groups = q.extent(1) / loop.heads, width = q.extent(2);
    const auto lines = [](int64_t floats) { return ceil_div(floats, 16) * 16; };
    const int64_t rows = lines(loop.tile_rows() * width);
    const int64_t panels = lines(panel_floats(width, loop.step));
    const int64_t logits = lines(kBatch * padded(loop.step) + kLanes);
    Tensor<float, 2> memory({loop.threads, rows + panels + logits});
    const auto items = static_cast<int64_t>(tiles.size()) * groups;
#pragma omp parallel for schedule(dynamic) num_threads(loop.threads)
    for (int64_t item = items - 1; item >= 0; --item) {
        const int thread = omp_get_thread_num();
        float* mine = memory.view()[thread].data();
        const Scratch scratch{mine, mine + rows, mine + rows + panels, thread};
        const QueryRange queries = tiles[static_cast<size_t>(item / groups)];
        const RowTile tile{queries,      item % groups, loop.heads, visible.data() + queries.begin,
                           scratch.rows, width,         loop.cap,   loop.window};
        pack_queries(q, queries, tile.group * loop.heads, loop.heads, loop.factor, scratch.rows);
        body(tile, scratch);
    }
}

/// The logits of one strip and one step of keys, to be overwritten at will.
struct LogitStrip {
    int64_t first_row;                   // of the tile
    int64_t rows;                        // 1 .. kBatch
    int64_t first_key;                   // of the sequence
    std::array<int64_t, kBatch> seen;    // [rows] keys of this step that the row sees: 0 .. step
    std::array<int64_t, kBatch> hidden;  // [rows] how many of these lie before its window
    float* data;  // row r at data + r * stride; those from hidden[r] to seen[r] are valid
    int64_t stride;

    float* row(int64_t r) const { return data + r * stride; }
};

/// The loop over the keys of one tile, of one head. Calls on_keys(first, count) before each step,
/// with its first token on the packed axis, and on_logits(LogitStrip) for each strip in which some
/// row attends to a key. Steps before all rows' windows are skipped.
template <typename OnKeys, typename OnLogits>
void for_each_strip(const RowTile& tile, const KeyTokens<float>& keys, int64_t head, int64_t step,
                    const Scratch& scratch, OnKeys on_keys, OnLogits on_logits) {
    const auto [start, end] = tile.seen(tile.size() - 1);
    for (int64_t first = tile.first(0) / step * step; first < end; first += step) {
        const int64_t count = std::min(step, end - first);
        const Panels packed = pack_keys(keys, head, start + first, count, scratch.panels);
        on_keys(start + first, count);
        for (int64_t row = 0; row < tile.size(); row += kBatch) {
            LogitStrip strip{
                row,         std::min(kBatch, tile.size() - row), first, {}, {}, scratch.logits,
                padded(step)};
            int64_t most = count;
            // The first row sees the whole step, and the last row's window hides none of it.
            if (tile.seen(row).count >= first + count && tile.first(row + strip.rows - 1) <= first)
                strip.seen.fill(count);
            else
                for (int64_t r = 0; r < strip.rows; ++r) {
                    const auto at = static_cast<size_t>(r);
                    most = std::clamp<int64_t>(tile.seen(row + r).count - first, 0, count);
                    strip.seen[at] = most;
                    strip.hidden[at] = std::clamp<int64_t>(tile.first(row + r) - first, 0, most);
                }
            if (strip.hidden[0] == most) continue;  // all of them: windows begin in order
            multiply({tile.rows + row * tile.width, tile.width, strip.rows},
                     {packed.data, packed.depth, most}, strip.data, strip.stride);
            for (int64_t r = 0; r < strip.rows; ++r)
                cap_row(strip.row(r), strip.seen[static_cast<size_t>(r)], tile.cap);
            on_logits(strip);
        }
    }
}

}  // namespace msa::cpu
