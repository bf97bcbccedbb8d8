// SPDX-License-Identifier: MIT
#include <algorithm>

#include "analysis/selection_cost.h"
#include "core/io/results.h"
#include "experiments/cost/cost.h"
#include "experiments/driver/selected_blocks.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::cost {
namespace {

using analysis::OrderCost, analysis::SelectionCost;
using report::Column, report::ColumnOf, report::Form;

/// One selector on one layer.
struct Arm {
    std::string selector;
    int64_t layer, queries, group_size, block_size, top_k;
    SelectionCost cost;
    const OrderCost& fastest() const {
        return *std::min_element(
            cost.orders.begin(), cost.orders.end(),
            [](const OrderCost& a, const OrderCost& b) { return a.seconds < b.seconds; });
    }
};

std::vector<Arm> read_arms(const CostOptions& o, const analysis::Hardware& on) {
    const std::string file = o.results.string();
    const io::ResultsReader results(file);
    require_of_analyze(file, results);
    const std::vector<std::string> selectors = pick_selectors(results, o.selectors);
    std::vector<Arm> arms;
    for (int64_t layer : pick_layers(results, o.layers)) {
        const Problem p = read_queries(file, results, layer,
                                       "the loop orders need neighbours, so run msa-analyze "
                                       "without --sample-queries");
        for (const std::string& selector : selectors) {
            if (!results.has(ids_dataset(selector, layer))) continue;
            const Tensor<int32_t, 3> ids = read_ids(file, results, p, selector, layer);
            arms.push_back({selector, layer, p.queries(), p.group_size(), p.block_size,
                            ids.extent(2), selection_cost(p, ids, *o.element, on)});
        }
    }
    require(!arms.empty(), file, ": holds no selected blocks of these layers and selectors");
    return arms;
}

constexpr Form kGflop{.decimals = -4, .per = kGiga}, kMb{.decimals = -4, .per = kMega};

// A selector on a layer.

using Get = double (*)(const SelectionCost&);

ColumnOf<Arm> real_column(Column column, Get get) {
    return {std::move(column), [get](const Arm& arm) { return get(arm.cost); }};
}

const report::TableOf<Arm> kSelections{
    "selections",
    "by layer and selector",
    2,
    {{report::kLayer, &Arm::layer},
     {report::kSelector, &Arm::selector},
     {report::kQueries, &Arm::queries},
     {{"group_size", "", "G: query heads of a group"}, &Arm::group_size},
     {report::kBlockSize, &Arm::block_size},
     {report::kTopK, &Arm::top_k},
     {{"selected_pairs", "", "selected (query, group, block) triples"},
      [](const Arm& arm) { return arm.cost.pairs; }},
     real_column({"used_slots",
                  "1",
                  "selected blocks over all k of each query and group",
                  "slots\nused",
                  {.decimals = 3}},
                 [](const SelectionCost& of) { return of.used_slots; }),
     {{"used_blocks", "", "(group, block) pairs that any query selected"},
      [](const Arm& arm) { return arm.cost.used_blocks; }},
     real_column({"mean_queries_per_block",
                  "queries",
                  "queries that selected a block, mean over the used ones",
                  "queries\n/ block",
                  {.decimals = -4}},
                 [](const SelectionCost& of) { return of.mean_queries; }),
     {{"most_queries_per_block", "queries", "the same, most of one block", "most"},
      [](const Arm& arm) { return arm.cost.most_queries; }},
     {{"work_items", "", "pieces of a block's queries that kv_outer gives to one thread block",
       "work\nitems"},
      [](const Arm& arm) { return arm.cost.work_items; }},
     real_column(
         {"pass_fill", "1", "used rows of kv_outer's passes of 64", "pass\nfill", {.decimals = 3}},
         [](const SelectionCost& of) { return of.pass_fill; }),
     real_column({"union_share",
                  "1",
                  "share of the selected blocks that automatic walks as a union",
                  "by union\n%",
                  {.decimals = 0, .times = 100}},
                 [](const SelectionCost& of) { return of.union_share; }),
     real_column(
         {"useful_flops", "FLOP", "operations on visible selected keys", "useful\nGFLOP", kGflop},
         [](const SelectionCost& of) { return of.useful_flops; }),
     real_column({"gathered_q_bytes", "B",
                  "queries of kv_outer, read once for each selected block; as much is written as "
                  "partial outputs",
                  "gathered\nq MB", kMb},
                 [](const SelectionCost& of) { return of.gathered_q_bytes; }),
     {kTileQueries, [](const Arm& arm) { return arm.cost.unions.back().first; }},
     real_column(kTileUnionBlocks,
                 [](const SelectionCost& of) { return of.unions.back().second.union_blocks(); }),
     real_column({"break_even_union_blocks",
                  "blocks",
                  "up to this tile_union_blocks the arithmetic of the union order takes no longer "
                  "than the better of q_outer and kv_outer",
                  "break-even\nunion",
                  {.decimals = 1}},
                 [](const SelectionCost& of) { return of.break_even_union_blocks; }),
     {{"paper_chunks", "", "pieces of at most 2 k Bk queries of a block, by the paper"},
      [](const Arm& arm) { return arm.cost.paper_chunks; }},
     real_column({"paper_mma_fill", "1", "used rows of the paper's tiles of 128 rows"},
                 [](const SelectionCost& of) { return of.paper_mma_fill; })}};

// Neighbouring queries.

struct Union {
    const Arm* arm;
    int64_t queries;
    const analysis::TileReads* reads;
};

std::vector<Union> unions_of(const std::vector<Arm>& arms) {
    std::vector<Union> all;
    for (const Arm& arm : arms)
        for (const auto& [queries, reads] : arm.cost.unions) all.push_back({&arm, queries, &reads});
    return all;
}

const report::TableOf<Union> kUnions{
    "unions",
    "neighbouring queries in tiles of several sizes",
    3,
    {{report::hidden(report::kLayer), [](const Union& of) { return of.arm->layer; }},
     {report::hidden(report::kSelector), [](const Union& of) { return of.arm->selector; }},
     {{"neighbours", "queries", "neighbouring queries that walk the union of their blocks"},
      &Union::queries},
     {{"union_blocks", "blocks", "distinct blocks that so many neighbours select, mean"},
      [](const Union& of) { return of.reads->union_blocks(); }},
     {{"union_reads", "blocks", "blocks that they read, all together"},
      [](const Union& of) { return of.reads->reads; }},
     {{"union_misses", "blocks",
       "of these, blocks that are not in a least-recently-used cache of the chip's size"},
      [](const Union& of) { return of.reads->misses; }}}};

// A loop order.

struct OrderRow {
    const Arm* arm = nullptr;
    const OrderCost* order = nullptr;
    const char* accounting = nullptr;
};

std::vector<OrderRow> order_rows(const std::vector<Arm>& arms) {
    std::vector<OrderRow> rows;
    for (const Arm& arm : arms) {
        for (const OrderCost& order : arm.cost.orders) rows.push_back({&arm, &order, "kernels"});
        for (const OrderCost& order : arm.cost.paper_orders)
            rows.push_back({&arm, &order, "paper"});
    }
    return rows;
}

const report::TableOf<OrderRow> kOrders{
    "orders",
    "loop orders",
    4,
    {{report::kLayer, [](const OrderRow& row) { return row.arm->layer; }},
     {report::kSelector, [](const OrderRow& row) { return row.arm->selector; }},
     {kAccounting, &OrderRow::accounting},
     {report::kOrder, [](const OrderRow& row) { return row.order->name; }},
     {{"executed_flops", "FLOP", "operations with padded rows and masked keys", "executed\nGFLOP",
       kGflop},
      [](const OrderRow& row) { return row.order->executed_flops; }},
     {{"memory_bytes", "B", "misses of a least-recently-used cache of the chip's size",
       "memory\nMB", kMb},
      [](const OrderRow& row) { return row.order->memory_bytes; }},
     {{"read_bytes", "B", "all reads, through the cache", "cache\nMB", kMb},
      [](const OrderRow& row) { return row.order->cache_bytes; }},
     {{"order_seconds",
       "s",
       "time of sparse attention by the roofline of the chip, phase by phase",
       "us",
       {.decimals = -4, .per = kMicro}},
      [](const OrderRow& row) { return row.order->seconds; }},
     {{"is_fastest", "", "the fastest order of the kernels", "fastest"},
      [](const OrderRow& row) { return row.order == &row.arm->fastest(); }}}};

std::string orders_note(int64_t tile, const analysis::Hardware& on) {
    return concat(
        "Orders: q_outer, each query walks its blocks, one query at a time; union, the ", tile,
        " neighbours of a tile walk the union of their blocks; kv_outer, each block gathers "
        "its queries; automatic, union for blocks that enough of a tile's queries share, "
        "kv_outer for the rest. Accounting: what the kernels of gpu/ do, or the paper's "
        "formulas, which have no cache and no handles. Useful: visible selected keys; "
        "executed: with padded rows and masked keys. Memory: misses of a least-recently-used "
        "cache of the chip's size; cache: all reads. Time: the slowest of arithmetic, memory",
        on.cache_bytes_per_second ? " and cache" : " (the cache's bandwidth is not known)",
        ", phase by phase. Break-even union: up to this union the union order's arithmetic "
        "takes no longer than the better of q_outer and kv_outer.");
}

constexpr const char* kSelectionsNote =
    "Slots used: selected blocks of all k per query and group. Queries / block: over the blocks "
    "that any query selected; most: of one block. Work items: pieces of a block's queries that "
    "kv_outer gives to one thread block. Pass fill: used rows of kv_outer's passes of 64. By "
    "union: share of the selected blocks that automatic walks as a union. Gathered q: read once "
    "per selected block, and as much is written as partial outputs. Union of a tile: mean number "
    "of blocks that its neighbouring queries select.";

}  // namespace

std::vector<report::Shape> tables_from_results() {
    return {kSelections.shape(), kOrders.shape(), kUnions.shape()};
}

report::Report cost_from_results(const CostOptions& o, const analysis::Hardware& on) {
    const std::vector<Arm> arms = read_arms(o, on);
    const Arm& arm = arms.front();
    report::Report report{
        .title = concat(arm.queries, " consecutive queries, G ", arm.group_size, ", Bk ",
                        arm.block_size, ", k ", arm.top_k, "; ", to_string(*o.element), '\n',
                        chip_text(on, o.ceilings, {*o.element})),
        .tables = {kSelections.of(arms), kOrders.of(order_rows(arms)),
                   kUnions.of(unions_of(arms))}};
    report.note("selections", kSelectionsNote);
    report.note("orders", orders_note(arm.cost.unions.back().first, on));
    return report;
}

}  // namespace msa::experiments::cost
