// SPDX-License-Identifier: MIT
#include "experiments/cost/from_sizes.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <ostream>

#include "analysis/stage_cost.h"
#include "experiments/cost/chip.h"
#include "experiments/driver/table.h"
#include "experiments/driver/units.h"

namespace msa::experiments::cost {
namespace {

using analysis::LayerSizes, analysis::Pipeline, analysis::Stage;
using nlohmann::ordered_json;

/// One context: what there is to print of it.
struct Context {
    LayerSizes sizes;
    std::vector<std::pair<std::string, std::vector<Pipeline>>> phases;  // "prefill", "decode"
};

Context cost_context(const CostOptions& o, const Model& model, int64_t tokens) {
    LayerSizes sizes = layer_sizes(model);
    sizes.tokens = tokens;
    sizes.element = o.element;
    sizes.index_element = o.index_element;
    sizes.validate();
    return {sizes, {{"prefill", prefill_pipelines(sizes)}, {"decode", decode_pipelines(sizes)}}};
}

/// The pipeline of a phase that answers first, dense attention aside.
const Pipeline& fastest(const std::vector<Pipeline>& pipelines, const analysis::Hardware& on) {
    return *std::min_element(
        pipelines.begin() + 1, pipelines.end(),
        [&](const Pipeline& a, const Pipeline& b) { return a.seconds(on) < b.seconds(on); });
}

ordered_json sizes_json(const LayerSizes& s) {
    return {{"query_heads", s.query_heads},    {"kv_heads", s.kv_heads},
            {"head_dim", s.head_dim},          {"index_dim", s.index_dim},
            {"block_size", s.block_size},      {"top_k", s.top_k},
            {"element", to_string(s.element)}, {"index_element", to_string(s.index_element)}};
}

ordered_json pipeline_json(const Pipeline& pipeline, const analysis::Hardware& on) {
    const analysis::Cost total = pipeline.total();
    ordered_json json{{"pipeline", pipeline.name},
                      {"flops", total.flops},
                      {"bytes", total.bytes},
                      {"seconds", pipeline.seconds(on)},
                      {"stages", ordered_json::array()}};
    for (const Stage& stage : pipeline.stages)
        json["stages"].push_back(
            {{"stage", stage.name},
             {"flops", stage.cost.flops},
             {"bytes", stage.cost.bytes},
             {"seconds", roofline_seconds(stage.cost, stage.element, on)},
             {"bound", memory_bound(stage.cost, stage.element, on) ? "memory" : "arithmetic"},
             {"flops_formula", stage.flops_formula},
             {"bytes_formula", stage.bytes_formula}});
    return json;
}

void print_json(const CostOptions& o, const Model& model, const std::vector<Context>& contexts,
                const analysis::Hardware& on, std::ostream& out) {
    ordered_json json{{"format", "msa-cost"},
                      {"format_version", 1},
                      {"model", model.name},
                      {"layers", model.layers},
                      {"sizes", sizes_json(contexts.front().sizes)},
                      {"hardware", hardware_json(on, o.ceilings)},
                      {"contexts", ordered_json::array()}};
    for (const Context& context : contexts) {
        ordered_json entry{{"tokens", context.sizes.tokens},
                           {"flop_ratio", flop_ratio(context.sizes)},
                           {"q_outer_intensity", q_outer_cost(context.sizes).intensity()},
                           {"kv_outer_intensity", kv_outer_cost(context.sizes).intensity()},
                           {"slot_buffer_bytes", slot_buffer_bytes(context.sizes)}};
        for (const auto& [phase, pipelines] : context.phases) {
            entry[phase + "_speedup"] =
                pipelines[0].seconds(on) / fastest(pipelines, on).seconds(on);
            for (const Pipeline& pipeline : pipelines)
                entry[phase].push_back(pipeline_json(pipeline, on));
        }
        json["contexts"].push_back(entry);
    }
    out << json.dump(2) << '\n';
}

void print_csv(const std::vector<Context>& contexts, const analysis::Hardware& on,
               std::ostream& out) {
    out << std::setprecision(9)
        << "context,phase,pipeline,stage,flops,bytes,seconds,bound,flops_formula,bytes_formula\n";
    for (const Context& context : contexts)
        for (const auto& [phase, pipelines] : context.phases)
            for (const Pipeline& pipeline : pipelines)
                for (const Stage& stage : pipeline.stages)
                    out << context.sizes.tokens << ',' << phase << ',' << pipeline.name << ','
                        << stage.name << ',' << stage.cost.flops << ',' << stage.cost.bytes << ','
                        << roofline_seconds(stage.cost, stage.element, on) << ','
                        << (memory_bound(stage.cost, stage.element, on) ? "memory" : "arithmetic")
                        << ",\"" << stage.flops_formula << "\",\"" << stage.bytes_formula << "\"\n";
}

void print_overview(const std::vector<Context>& contexts, const analysis::Hardware& on,
                    std::ostream& out) {
    Table table({"context", "FLOPs\ndense /\nMSA", "prefill\ndense ms", "prefill\nQ-outer ms",
                 "prefill\nKV-outer ms", "prefill\nspeed-up", "slot\nbuffers\nGB",
                 "decode\ndense us", "decode\nMSA us", "decode\nspeed-up"});
    for (const Context& context : contexts) {
        const std::vector<Pipeline>&prefill = context.phases[0].second,
              &decode = context.phases[1].second;
        std::vector<std::string> row{count_text(context.sizes.tokens),
                                     fixed_text(flop_ratio(context.sizes), 2)};
        for (const Pipeline& pipeline : prefill)
            row.push_back(number_text(pipeline.seconds(on) / kMilli));
        row.push_back(fixed_text(prefill[0].seconds(on) / fastest(prefill, on).seconds(on), 1));
        row.push_back(number_text(slot_buffer_bytes(context.sizes) / kGiga));
        for (const Pipeline& pipeline : decode)
            row.push_back(number_text(pipeline.seconds(on) / kMicro));
        row.push_back(fixed_text(decode[0].seconds(on) / decode[1].seconds(on), 1));
        table.add(row);
    }
    table.print(out);
}

void print_stages(const Context& context, const analysis::Hardware& on, std::ostream& out) {
    out << "\nStages at " << count_text(context.sizes.tokens)
        << " (--csv and --json have every context):\n\n";
    Table table({"phase", "pipeline", "stage", "TFLOP", "GB", "FLOP/byte", "limit", "ms", "FLOPs",
                 "bytes"});
    for (const auto& [phase, pipelines] : context.phases)
        for (const Pipeline& pipeline : pipelines)
            for (const Stage& stage : pipeline.stages)
                table.add({phase, pipeline.name, stage.name, number_text(stage.cost.flops / kTera),
                           number_text(stage.cost.bytes / kGiga),
                           number_text(stage.cost.intensity(), 3),
                           memory_bound(stage.cost, stage.element, on) ? "memory" : "arithmetic",
                           number_text(roofline_seconds(stage.cost, stage.element, on) / kMilli),
                           stage.flops_formula, stage.bytes_formula});
    table.print(out);
}

void print_tables(const CostOptions& o, const Model& model, const std::vector<Context>& contexts,
                  const analysis::Hardware& on, std::ostream& out) {
    const LayerSizes& s = contexts.front().sizes;
    out << model.name << ", one of " << model.layers << " layers: Hq " << s.query_heads << ", Hkv "
        << s.kv_heads << ", dh " << s.head_dim << ", didx " << s.index_dim << ", Bk "
        << s.block_size << ", k " << s.top_k << "; " << to_string(s.element) << ", index "
        << to_string(s.index_element) << '\n'
        << hardware_text(on, o.ceilings, {s.element, s.index_element}) << "\n\n";
    print_overview(contexts, on, out);
    print_stages(contexts.back(), on, out);
    out << '\n';
    print_paragraph(
        out, text("Times are the roofline's, one stage after the other: what no kernel can beat. "
                  "Prefill is one causal sequence, decode one token of one sequence. Sparse "
                  "attention alone: ",
                  number_text(q_outer_cost(s).intensity(), 3), " FLOP/byte Q-outer, ",
                  number_text(kv_outer_cost(s).intensity(), 3),
                  " KV-outer; the chip's ridge is at ", number_text(on.ridge(s.element), 3),
                  ". In the formulas e and e_i are the bytes of an element, B = N / Bk."));
}

}  // namespace

void cost_from_sizes(const CostOptions& o, const analysis::Hardware& on, std::ostream& out) {
    Model model = read_model(o.preset);
    if (o.index_dim) model.index_dim = o.index_dim;
    if (o.block_size) model.block_size = o.block_size;
    if (o.top_k) model.top_k = o.top_k;
    std::vector<Context> contexts;
    for (int64_t tokens : o.contexts) contexts.push_back(cost_context(o, model, tokens));
    if (o.format == Format::json) print_json(o, model, contexts, on, out);
    if (o.format == Format::csv) print_csv(contexts, on, out);
    if (o.format == Format::table) print_tables(o, model, contexts, on, out);
}

}  // namespace msa::experiments::cost
