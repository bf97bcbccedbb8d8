// SPDX-License-Identifier: MIT

#include <algorithm>
#include <ostream>

#include "analysis/selection_cost.h"
#include "core/io/results.h"
#include "experiments/cost/from_sizes.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/selected_blocks.h"
#include "experiments/driver/table.h"

namespace msa::experiments::cost {
namespace {

using analysis::OrderCost, analysis::SelectionCost;
using nlohmann::ordered_json;

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
    const io::ResultsReader results(o.results);
    require_of_analyze(o.results, results);
    const std::vector<std::string> selectors = pick_selectors(results, o.selectors);
    std::vector<Arm> arms;
    for (int64_t layer : pick_layers(results, o.layers)) {
        const Problem p = read_queries(o.results, results, layer,
                                       "the loop orders need neighbours, so run msa-analyze "
                                       "without --sample-queries");
        for (const std::string& selector : selectors) {
            if (!results.has(ids_dataset(selector, layer))) continue;
            const Tensor<int32_t, 3> ids = read_ids(o.results, results, p, selector, layer);
            arms.push_back({selector, layer, p.queries(), p.group_size(), p.block_size,
                            ids.extent(2), selection_cost(p, ids, o.element, on)});
        }
    }
    require(!arms.empty(), o.results, ": holds no selected blocks of these layers and selectors");
    return arms;
}

ordered_json orders_json(const std::vector<OrderCost>& orders) {
    ordered_json json = ordered_json::array();
    for (const OrderCost& order : orders)
        json.push_back({{"order", order.name},
                        {"executed_flops", order.executed_flops},
                        {"memory_bytes", order.memory_bytes},
                        {"cache_bytes", order.cache_bytes},
                        {"seconds", order.seconds}});
    return json;
}

ordered_json arm_json(const Arm& arm) {
    const SelectionCost& c = arm.cost;
    ordered_json json{{"layer", arm.layer},
                      {"selector", arm.selector},
                      {"queries", arm.queries},
                      {"group_size", arm.group_size},
                      {"block_size", arm.block_size},
                      {"top_k", arm.top_k},
                      {"pairs", c.pairs},
                      {"used_slots", c.used_slots},
                      {"used_blocks", c.used_blocks},
                      {"mean_queries_per_block", c.mean_queries},
                      {"most_queries_per_block", c.most_queries},
                      {"work_items", c.work_items},
                      {"pass_fill", c.pass_fill},
                      {"union_share", c.union_share},
                      {"useful_flops", c.useful_flops},
                      {"gathered_q_bytes", c.gathered_q_bytes},
                      {"partial_out_bytes", c.gathered_q_bytes},
                      {"break_even_union_blocks", c.break_even_union_blocks},
                      {"fastest", arm.fastest().name},
                      {"unions", ordered_json::array()},
                      {"orders", orders_json(c.orders)},
                      {"paper",
                       {{"chunks", c.paper_chunks},
                        {"mma_fill", c.paper_mma_fill},
                        {"orders", orders_json(c.paper_orders)}}}};
    for (const auto& [queries, reads] : c.unions)
        json["unions"].push_back({{"tile_queries", queries},
                                  {"union_blocks", reads.union_blocks()},
                                  {"reads", reads.reads},
                                  {"cache_misses", reads.misses}});
    return json;
}

/// An order of an arm, with the accounting that it belongs to.
struct OrderRow {
    const Arm* arm = nullptr;
    const OrderCost* order = nullptr;
    std::string accounting;
};

/// Of the table of orders.
const std::vector<ColumnOf<OrderRow>>& order_columns() {
    using Of = const OrderRow&;
    constexpr Form kGflop{.decimals = -4, .per = kGiga}, kMb{.decimals = -4, .per = kMega};
    static const std::vector<ColumnOf<OrderRow>> columns{
        {{"layer", "layer"}, [](Of row) { return row.arm->layer; }},
        {{"selector", "selector"}, [](Of row) { return row.arm->selector; }},
        {{"order", "order"}, [](Of row) { return row.order->name; }},
        {{"accounting", "accounting"}, &OrderRow::accounting},
        {{"useful_flops", "useful\nGFLOP", kGflop},
         [](Of row) { return row.arm->cost.useful_flops; }},
        {{"executed_flops", "executed\nGFLOP", kGflop},
         [](Of row) { return row.order->executed_flops; }},
        {{"memory_bytes", "memory\nMB", kMb}, [](Of row) { return row.order->memory_bytes; }},
        {{"cache_bytes", "cache\nMB", kMb}, [](Of row) { return row.order->cache_bytes; }},
        {{"seconds", "us", {.decimals = -4, .per = kMicro}},
         [](Of row) { return row.order->seconds; }},
        {{"", "fastest"},
         [](Of row) { return std::string(row.order == &row.arm->fastest() ? "yes" : ""); }},
        {{"", "break-even\nunion"},
         [](Of row) {
             const bool is_union = row.order == &row.arm->cost.orders[1];
             return is_union ? fixed_text(row.arm->cost.break_even_union_blocks, 1) : std::string();
         }},
    };
    return columns;
}

Rows order_rows(const std::vector<Arm>& arms) {
    std::vector<OrderRow> rows;
    for (const Arm& arm : arms) {
        for (const OrderCost& order : arm.cost.orders) rows.push_back({&arm, &order, "kernels"});
        for (const OrderCost& order : arm.cost.paper_orders)
            rows.push_back({&arm, &order, "paper"});
    }
    return {order_columns(), rows};
}

void print_selections(const std::vector<Arm>& arms, std::ostream& out) {
    std::vector<std::string> header{"layer",      "selector",    "slots\nused", "queries\n/ block",
                                    "most",       "work\nitems", "pass\nfill",  "gathered\nq MB",
                                    "by union\n%"};
    for (const auto& [queries, reads] : arms.front().cost.unions)
        if (queries > 1) header.push_back("union\nof " + std::to_string(queries));
    Table table(header);
    for (const Arm& arm : arms) {
        const SelectionCost& c = arm.cost;
        std::vector<std::string> row{
            std::to_string(arm.layer),         arm.selector,
            fixed_text(c.used_slots, 3),       number_text(c.mean_queries),
            std::to_string(c.most_queries),    std::to_string(c.work_items),
            fixed_text(c.pass_fill, 3),        number_text(c.gathered_q_bytes / kMega),
            fixed_text(100 * c.union_share, 0)};
        for (const auto& [queries, reads] : c.unions)
            if (queries > 1) row.push_back(fixed_text(reads.union_blocks(), 1));
        table.add(row);
    }
    table.print(out);
}

void print_tables(const CostOptions& o, const std::vector<Arm>& arms, const analysis::Hardware& on,
                  std::ostream& out) {
    const Arm& arm = arms.front();
    out << arm.queries << " consecutive queries, G " << arm.group_size << ", Bk " << arm.block_size
        << ", k " << arm.top_k << "; " << to_string(o.element) << '\n'
        << hardware_text(on, o.ceilings, {o.element}) << "\n\n";
    print_selections(arms, out);
    out << '\n';
    order_rows(arms).print(out);
    out << '\n';
    print_paragraph(out,
                    "Slots used: selected blocks of all k per query and group. Queries / block: "
                    "over the blocks that any query selected; most: of one block. Work items: "
                    "pieces of a block's queries that kv_outer gives to one thread block. Pass "
                    "fill: used rows of kv_outer's passes of 64. Gathered q: read once per "
                    "selected block, and as much is written as partial outputs. By union: share of "
                    "the selected blocks that automatic walks as a union. Union of n: mean number "
                    "of blocks that n neighbours select.");
    print_paragraph(
        out,
        concat(
            "Orders: q_outer, each query walks its blocks, one query at a time; union, the ",
            arm.cost.unions.back().first,
            " neighbours of a tile walk the union of their blocks; kv_outer, each block gathers "
            "its queries; automatic, union for blocks that enough of a tile's queries share, "
            "kv_outer for the rest. Accounting: what the kernels of gpu/ do, or the paper's "
            "formulas, which have no cache and no handles. Useful: visible selected keys; "
            "executed: with padded rows and masked keys. Memory: misses of a least-recently-used "
            "cache of the chip's size; cache: all reads. Time: the slowest of arithmetic, memory",
            on.cache_bytes_per_second ? " and cache" : " (the cache's bandwidth is not known)",
            ", phase by phase. Break-even union: up to this union the union order's arithmetic "
            "takes no longer than the better of q_outer and kv_outer."));
}

}  // namespace

void cost_from_results(const CostOptions& o, const analysis::Hardware& on, std::ostream& out) {
    const std::vector<Arm> arms = read_arms(o, on);
    if (!o.json) return print_tables(o, arms, on, out);
    ordered_json json{{"format", "msa-cost-measured"},
                      {"format_version", kRecordVersion},
                      {"results", o.results},
                      {"element", to_string(o.element)},
                      {"hardware", hardware_json(on, o.ceilings)},
                      {"rows", ordered_json::array()}};
    for (const Arm& arm : arms) json["rows"].push_back(arm_json(arm));
    out << json.dump(2) << '\n';
}

}  // namespace msa::experiments::cost
