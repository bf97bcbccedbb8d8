// SPDX-License-Identifier: MIT
#include "experiments/cost/from_sizes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <ostream>
#include <span>

#include "analysis/stage_cost.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/table.h"

namespace msa::experiments::cost {
namespace {

using analysis::LayerSizes, analysis::Pipeline, analysis::Stage;
using nlohmann::ordered_json;

struct PhaseCost {
    std::string name;  // "prefill", "decode"
    std::vector<Pipeline> kernels, paper;
};

/// One context: what there is to print of it.
struct Context {
    LayerSizes sizes;
    std::vector<PhaseCost> phases;
};

Context cost_context(const CostOptions& o, const Model& model, int64_t tokens) {
    const LayerSizes sizes = sizes_of(o, model, tokens);
    return {sizes,
            {{"prefill", prefill_pipelines(sizes), paper_prefill_pipelines(sizes)},
             {"decode", decode_pipelines(sizes), paper_decode_pipelines(sizes)}}};
}

/// Dense attention of the windowed layers, where only some have a window: prefill and decode.
std::optional<std::array<double, 2>> window_seconds(const Model& model, LayerSizes sizes,
                                                    const analysis::Hardware& on) {
    if (!model.window || sizes.window) return std::nullopt;
    sizes.window = model.window;
    return std::array{prefill_pipelines(sizes)[0].seconds(on),
                      decode_pipelines(sizes)[0].seconds(on)};
}

/// Dense attention over the pipeline that answers first.
double speedup(const std::vector<Pipeline>& pipelines, const analysis::Hardware& on) {
    double fastest = pipelines[1].seconds(on);
    for (const Pipeline& pipeline : std::span(pipelines).subspan(2))
        fastest = std::min(fastest, pipeline.seconds(on));
    return pipelines[0].seconds(on) / fastest;
}

ordered_json sizes_json(const LayerSizes& s) {
    ordered_json json{
        {"query_heads", s.query_heads},     {"kv_heads", s.kv_heads},
        {"head_dim", s.head_dim},           {"index_dim", s.index_dim},
        {"block_size", s.block_size},       {"top_k", s.top_k},
        {"element", to_string(s.element)},  {"index_element", to_string(s.index_element)},
        {"tile_queries", s.tile_queries()}, {"union_blocks", nullptr}};
    if (s.given_union_blocks) json["union_blocks"] = *s.given_union_blocks;
    return json;
}

constexpr std::ptrdiff_t kPlaces = 3;  // first columns of a stage: where it stands

/// A stage of a pipeline, by the kernels' accounting or the paper's.
struct StageRow {
    std::string phase{}, accounting{}, pipeline{};
    const Stage* stage = nullptr;
};

/// Of the stages: the table and the objects of JSON.
std::vector<ColumnOf<StageRow>> stage_columns(const analysis::Hardware& on) {
    using Of = const StageRow&;
    const auto bytes = [&](Of row) { return row.stage->memory_bytes(on); };
    return {
        {{"phase", "phase"}, &StageRow::phase},
        {{"accounting", "accounting"}, &StageRow::accounting},
        {{"pipeline", "pipeline"}, &StageRow::pipeline},
        {{"stage", "stage"}, [](Of row) { return row.stage->name; }},
        {{"flops", "TFLOP", {.decimals = -4, .per = kTera}},
         [](Of row) { return row.stage->cost.flops; }},
        {{"bytes", "GB", {.decimals = -4, .per = kGiga}}, bytes},
        {{"", "FLOP/byte", {.decimals = -3}},
         [bytes](Of row) { return row.stage->cost.flops / bytes(row); }},
        {{"cache_bytes"}, [](Of row) { return row.stage->cache_bytes(); }},
        {{"", "limit"}, [&](Of row) { return std::string(row.stage->limit(on)); }},
        {{"seconds", "ms", {.decimals = -4, .per = kMilli}},
         [&](Of row) { return row.stage->seconds(on); }},
        {{"bound"}, [&](Of row) { return std::string(row.stage->limit(on)); }},
        {{"flops_formula", "FLOPs"}, [](Of row) { return row.stage->flops_formula; }},
        {{"bytes_formula", "bytes"}, [](Of row) { return row.stage->bytes_formula; }},
    };
}

ordered_json pipelines_json(const std::vector<Pipeline>& pipelines, const analysis::Hardware& on) {
    const std::vector<ColumnOf<StageRow>> columns = stage_columns(on);
    ordered_json all = ordered_json::array();
    for (const Pipeline& pipeline : pipelines) {
        const analysis::Cost total = pipeline.total(on);
        std::vector<StageRow> stages;
        for (const Stage& stage : pipeline.stages) stages.push_back({.stage = &stage});
        const std::vector<ColumnOf<StageRow>> of_stage(columns.begin() + kPlaces, columns.end());
        all.push_back({{"pipeline", pipeline.name},
                       {"flops", total.flops},
                       {"bytes", total.bytes},
                       {"seconds", pipeline.seconds(on)},
                       {"stages", Rows(of_stage, stages).json()}});
    }
    return all;
}

ordered_json training_json(const LayerSizes& sizes) {
    ordered_json json;
    for (const bool on_selected : {false, true}) {
        const analysis::IndexTraining training = index_training(sizes, on_selected);
        json[on_selected ? "selected" : "full"] = {{"scores", training.scores},
                                                   {"loss", training.loss},
                                                   {"gradients", training.gradients},
                                                   {"total", training.total()}};
    }
    return json;
}

ordered_json context_json(const Model& model, const Context& context,
                          const analysis::Hardware& on) {
    const LayerSizes& sizes = context.sizes;
    ordered_json json{{"tokens", sizes.tokens}, {"union_blocks", sizes.union_blocks()}};
    ordered_json paper{{"flop_ratio", paper_flop_ratio(sizes)},
                       {"q_outer_intensity", paper_q_outer_cost(sizes).intensity()},
                       {"kv_outer_intensity", paper_kv_outer_cost(sizes).intensity()},
                       {"slot_buffer_bytes", paper_slot_buffer_bytes(sizes)},
                       {"index_training_flops", training_json(sizes)}};
    for (const PhaseCost& phase : context.phases) {
        json[phase.name + "_speedup"] = speedup(phase.kernels, on);
        json[phase.name] = pipelines_json(phase.kernels, on);
        paper[phase.name + "_speedup"] = speedup(phase.paper, on);
        paper[phase.name] = pipelines_json(phase.paper, on);
    }
    json["paper"] = paper;
    if (const auto seconds = window_seconds(model, sizes, on))
        json["windowed_layer"] = {{"prefill_seconds", seconds->front()},
                                  {"decode_seconds", seconds->back()}};
    return json;
}

void print_json(const CostOptions& o, const Model& model, const std::vector<Context>& contexts,
                const analysis::Hardware& on, std::ostream& out) {
    ordered_json json{{"format", "msa-cost"},
                      {"format_version", kRecordVersion},
                      {"model", model.name},
                      {"layers", model.layers},
                      {"windowed_layers", model.windowed_layers},
                      {"window", model.window ? ordered_json(*model.window) : ordered_json()},
                      {"sizes", sizes_json(contexts.front().sizes)},
                      {"assumed", assumed_sizes(model)},
                      {"hardware", hardware_json(on, o.ceilings)},
                      {"contexts", ordered_json::array()}};
    for (const Context& context : contexts)
        json["contexts"].push_back(context_json(model, context, on));
    out << json.dump(2) << '\n';
}

std::vector<StageRow> stage_rows(const Context& context) {
    std::vector<StageRow> rows;
    for (const char* accounting : {"kernels", "paper"})
        for (const PhaseCost& phase : context.phases)
            for (const Pipeline& pipeline :
                 accounting == std::string("paper") ? phase.paper : phase.kernels)
                for (const Stage& stage : pipeline.stages)
                    rows.push_back({phase.name, accounting, pipeline.name, &stage});
    return rows;
}

/// One row per context: seconds of every pipeline and the speed-up over dense.
void print_times(const std::vector<Context>& contexts, size_t phase, const char* unit,
                 double seconds, const analysis::Hardware& on, std::ostream& out) {
    const PhaseCost& first = contexts.front().phases[phase];
    std::vector<std::string> header{"context", "union of\na tile"};
    for (const Pipeline& pipeline : first.kernels)
        header.push_back(first.name + "\n" + pipeline.name + "\n" + unit);
    header.emplace_back("speed-up");
    Table table(header);
    for (const Context& context : contexts) {
        const std::vector<Pipeline>& pipelines = context.phases[phase].kernels;
        std::vector<std::string> row{count_text(context.sizes.tokens),
                                     fixed_text(context.sizes.union_blocks(), 1)};
        for (const Pipeline& pipeline : pipelines)
            row.push_back(number_text(pipeline.seconds(on) / seconds));
        row.push_back(fixed_text(speedup(pipelines, on), 1));
        table.add(row);
    }
    table.print(out);
    out << '\n';
}

void print_paper(const std::vector<Context>& contexts, const analysis::Hardware& on,
                 std::ostream& out) {
    out << "The paper's accounting:\n\n";
    Table table({"context", "FLOPs\ndense /\nMSA", "prefill\ndense ms", "prefill\nq_outer ms",
                 "prefill\nkv_outer ms", "prefill\nspeed-up", "slot\nbuffers\nGB",
                 "decode\nspeed-up"});
    for (const Context& context : contexts) {
        std::vector<std::string> row{count_text(context.sizes.tokens),
                                     fixed_text(paper_flop_ratio(context.sizes), 2)};
        for (const Pipeline& pipeline : context.phases[0].paper)
            row.push_back(number_text(pipeline.seconds(on) / kMilli));
        row.push_back(fixed_text(speedup(context.phases[0].paper, on), 1));
        row.push_back(number_text(paper_slot_buffer_bytes(context.sizes) / kGiga));
        row.push_back(fixed_text(speedup(context.phases[1].paper, on), 1));
        table.add(row);
    }
    table.print(out);
}

/// The scores, which are the same for both supports, and what each support adds.
void print_training(const std::vector<Context>& contexts, std::ostream& out) {
    out << "\nTeaching the Index Branch by the KL loss, TFLOP of one layer and sequence:\n\n";
    Table table({"context", "scores of\nall keys", "full support\nloss", "full support\ngradients",
                 "selected\nloss", "selected\ngradients", "full /\nselected"});
    for (const Context& context : contexts) {
        const analysis::IndexTraining full = index_training(context.sizes, false),
                                      selected = index_training(context.sizes, true);
        std::vector<std::string> row{count_text(context.sizes.tokens)};
        for (const double flops :
             {full.scores, full.loss, full.gradients, selected.loss, selected.gradients})
            row.push_back(number_text(flops / kTera));
        row.push_back(fixed_text(full.total() / selected.total(), 1));
        table.add(row);
    }
    table.print(out);
}

void print_stages(const Context& context, const analysis::Hardware& on, std::ostream& out) {
    out << "\nStages at " << count_text(context.sizes.tokens) << " (--json has every context):\n\n";
    Rows(stage_columns(on), stage_rows(context)).print(out);
}

std::string assumed_text(const Model& model) {
    const std::vector<std::string> assumed = assumed_sizes(model);
    return assumed.empty() ? "" : "; assumed, not given by the source: " + join(assumed);
}

void print_windows(const Model& model, const std::vector<Context>& contexts,
                   const analysis::Hardware& on, std::ostream& out) {
    if (!model.window) return;
    std::string times;
    for (const Context& context : contexts)
        if (const auto seconds = window_seconds(model, context.sizes, on))
            times += concat(times.empty() ? "" : ", ", count_text(context.sizes.tokens), ": ",
                            number_text(seconds->front() / kMilli), " ms and ",
                            number_text(seconds->back() / kMicro), " us");
    print_paragraph(
        out, times.empty()
                 ? concat("Dense attention is the model's own, with a window of ", *model.window,
                          " tokens in every layer. MSA selects among all tokens.")
                 : concat(model.windowed_layers, " of the ", model.layers,
                          " layers attend to a window of ", *model.window,
                          " tokens; the tables are of a layer without one. Prefill and decode of a "
                          "layer with the window take, at ",
                          times, "."));
    out << '\n';
}

void print_tables(const CostOptions& o, const Model& model, const std::vector<Context>& contexts,
                  const analysis::Hardware& on, std::ostream& out) {
    const LayerSizes& s = contexts.front().sizes;
    out << model.name << ", one of " << model.layers << " layers: " << sizes_text(s) << "; "
        << to_string(s.element) << ", index " << to_string(s.index_element) << assumed_text(model)
        << '\n'
        << hardware_text(on, o.ceilings, {s.element, s.index_element}) << "\n\n";
    print_windows(model, contexts, on, out);
    print_times(contexts, 0, "ms", kMilli, on, out);
    print_times(contexts, 1, "us", kMicro, on, out);
    print_paper(contexts, on, out);
    print_training(contexts, out);
    print_stages(contexts.back(), on, out);
    out << '\n';
    print_paragraph(
        out,
        concat(
            "Times are the roofline's, one stage after the other. Prefill is one causal sequence, "
            "decode one token of one sequence. q_outer: one query at a time walks its blocks; "
            "union: the ",
            s.tile_queries(),
            " neighbouring queries of a tile walk the union of their blocks; kv_outer: each block "
            "gathers its queries; automatic: union for the blocks that a tile shares, kv_outer "
            "for the rest. Union of a tile: ",
            o.union_blocks ? "as given." : "as if each query chose by chance (--union-blocks)."));
    print_paragraph(
        out,
        concat(
            "The accounting 'kernels' describes the kernels of gpu/: padded rows, masked "
            "keys, 16-byte handles, keys read again less the share that the cache holds. The "
            "accounting 'paper' is the paper's formulas: sparse attention alone has ",
            number_text(paper_q_outer_cost(s).intensity(), 3), " FLOP/byte in q_outer, ",
            number_text(paper_kv_outer_cost(s).intensity(), 3),
            " in kv_outer; the chip's ridge is at ", number_text(on.ridge(s.element), 3),
            ". Letters: Nq queries, P visible (query, key) pairs, Pw and Nw pairs and keys within "
            "the window w, B = N / Bk, e and e_i bytes "
            "of an element, T queries and R rows of a tile, U blocks of its union, s blocks "
            "of a query that kv_outer takes, R1 and Rs rows of a query alone and in a pass, C "
            "rounds of slots."));
}

}  // namespace

Model model_of(const CostOptions& o) {
    Model model = read_model(o.preset);
    const auto replace = [&](std::optional<int64_t>& size, const std::optional<int64_t>& given,
                             const char* name) {
        if (!given) return;
        size = given;
        std::erase(model.assumed, name);
    };
    replace(model.index_dim, o.index_dim, "index_dim");
    replace(model.block_size, o.block_size, "block_size");
    replace(model.top_k, o.top_k, "top_k");
    return model;
}

LayerSizes sizes_of(const CostOptions& o, const Model& model, int64_t tokens) {
    LayerSizes sizes = layer_sizes(model);
    sizes.tokens = tokens;
    sizes.element = o.element;
    sizes.index_element = o.index_element;
    sizes.given_union_blocks = o.union_blocks;
    sizes.validate();
    return sizes;
}

void cost_from_sizes(const CostOptions& o, const analysis::Hardware& on, std::ostream& out) {
    const Model model = model_of(o);
    std::vector<Context> contexts;
    for (int64_t tokens : o.contexts) contexts.push_back(cost_context(o, model, tokens));
    if (o.json) return print_json(o, model, contexts, on, out);
    print_tables(o, model, contexts, on, out);
}

}  // namespace msa::experiments::cost
