// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "analysis/stage_cost.h"
#include "experiments/cost/cost.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::cost {
namespace {

using analysis::IndexTraining, analysis::LayerSizes, analysis::Pipeline, analysis::Stage;
using report::Column, report::ColumnOf, report::Form;

constexpr Form kTflop{.decimals = -4, .per = kTera}, kGb{.decimals = -4, .per = kGiga},
    kFigures{.decimals = -3};
constexpr const char* kPhases[] = {"prefill", "decode"};

/// Pipelines of prefill and of decode.
using Phases = std::array<std::vector<Pipeline>, 2>;

/// One context: what there is to print of it.
struct Context {
    LayerSizes sizes;
    Phases kernels, paper;
    const analysis::Hardware* on;
    /// Dense attention of the windowed layers, where only some have a window.
    std::optional<std::array<double, 2>> windowed;
};

/// Prefill and decode in dense attention of the windowed layers, where only some have a window.
std::optional<std::array<double, 2>> window_seconds(const Model& model, LayerSizes sizes,
                                                    const analysis::Hardware& on) {
    if (!model.window || sizes.window) return std::nullopt;
    sizes.window = model.window;
    return std::array{prefill_pipelines(sizes)[0].seconds(on),
                      decode_pipelines(sizes)[0].seconds(on)};
}

Context cost_context(const CostOptions& o, const Model& model, int64_t tokens,
                     const analysis::Hardware& on) {
    const LayerSizes sizes = sizes_of(o, model, tokens);
    return {sizes,
            {prefill_pipelines(sizes), decode_pipelines(sizes)},
            {paper_prefill_pipelines(sizes), paper_decode_pipelines(sizes)},
            &on,
            window_seconds(model, sizes, on)};
}

// A layer in one order.

struct Total {
    analysis::Cost cost;
    double seconds = 0;
};

struct LayerRow {
    const char* phase;
    int64_t tokens;
    std::string pipeline;
    std::optional<Total> kernels{}, paper{};
    std::optional<double> speedup{};
};

std::vector<LayerRow> layer_rows(const std::vector<Context>& contexts) {
    std::vector<LayerRow> rows;
    for (size_t phase = 0; phase < std::size(kPhases); ++phase)
        for (const Context& context : contexts) {
            const size_t first = rows.size();
            const auto total = [&](const Pipeline& of) {
                return Total{of.total(*context.on), of.seconds(*context.on)};
            };
            for (const Pipeline& of : context.kernels[phase]) {
                LayerRow& row = rows.emplace_back(
                    LayerRow{kPhases[phase], context.sizes.tokens, of.name, total(of)});
                row.speedup = rows[first].kernels->seconds / row.kernels->seconds;
            }
            for (const Pipeline& of : context.paper[phase]) {
                auto row =
                    std::find_if(rows.begin() + static_cast<std::ptrdiff_t>(first), rows.end(),
                                 [&](const LayerRow& known) { return known.pipeline == of.name; });
                if (row == rows.end())
                    row = rows.insert(row, {kPhases[phase], context.sizes.tokens, of.name});
                row->paper = total(of);
            }
        }
    return rows;
}

/// The columns of one accounting; `whose`: before their headings.
std::vector<ColumnOf<LayerRow>> accounting_columns(const std::string& key, const std::string& whose,
                                                   std::optional<Total> LayerRow::*of,
                                                   const std::string& words,
                                                   const std::string& null) {
    const auto column = [&](const char* what, const char* unit, const char* definition,
                            const char* heading, const Form& form, double (*get)(const Total&)) {
        return ColumnOf<LayerRow>{{.key = key + "_" + what,
                                   .unit = unit,
                                   .definition = concat(definition, ", ", words),
                                   .heading = concat(whose, "\n", heading),
                                   .form = form,
                                   .null = null},
                                  [of, get](const LayerRow& row) {
                                      return row.*of ? std::optional(get(*(row.*of)))
                                                     : std::nullopt;
                                  }};
    };
    return {column("flops", "FLOP", "floating-point operations of the layer", "TFLOP", kTflop,
                   [](const Total& total) { return total.cost.flops; }),
            column("bytes", "B", "bytes to and from memory", "GB", kGb,
                   [](const Total& total) { return total.cost.bytes; }),
            column("intensity", "FLOP/B", "operations over bytes", "FLOP/byte", kFigures,
                   [](const Total& total) { return total.cost.intensity(); }),
            column("seconds", "s", "time of the layer by the roofline of the chip", "time", kTime,
                   [](const Total& total) { return total.seconds; })};
}

constexpr const char* kByKernels = "as the kernels of gpu/ do it";
constexpr const char* kByPaper = "by the paper's formulas";

std::vector<ColumnOf<LayerRow>> layer_columns() {
    std::vector<ColumnOf<LayerRow>> columns{
        {{"phase", "",
          "prefill: one causal sequence of so many tokens. decode: one token of one sequence, "
          "after "
          "so many",
          "phase"},
         [](const LayerRow& row) { return row.phase; }},
        {report::kTokens, &LayerRow::tokens},
        {{"pipeline", "",
          "dense: attention over all tokens. Else index and sparse attention in a loop order. "
          "q_outer: one query at a time walks its blocks. union: the neighbouring queries of a "
          "tile walk the union of their blocks. kv_outer: each block gathers its queries. "
          "automatic: union for the blocks that a tile shares, kv_outer for the rest. msa: of "
          "the paper, where one token has no order",
          "loop order"},
         &LayerRow::pipeline}};
    for (const auto& more :
         {accounting_columns("kernels", "kernels", &LayerRow::kernels, kByKernels,
                             "the paper alone has this pipeline"),
          std::vector<ColumnOf<LayerRow>>{{{.key = "speedup",
          .unit = "1",
          .definition = "kernels_seconds of dense attention over those of the pipeline",
          .heading = "kernels\nspeed-up",
          .form = {.decimals = 1},
          .null = "the paper alone has this pipeline"},
                                           &LayerRow::speedup}},
          accounting_columns("paper", "paper", &LayerRow::paper, kByPaper,
                             "the paper does not have this pipeline")})
        columns.insert(columns.end(), more.begin(), more.end());
    return columns;
}

const report::TableOf<LayerRow> kLayerTable{
    "layer",
    "a layer by context and loop order: what the kernels of gpu/ do, and the paper's formulas", 3,
    layer_columns()};

// A context.

/// Dense attention over the pipeline that answers first.
double speedup(const std::vector<Pipeline>& pipelines, const analysis::Hardware& on) {
    double fastest = pipelines[1].seconds(on);
    for (const Pipeline& pipeline : std::span(pipelines).subspan(2))
        fastest = std::min(fastest, pipeline.seconds(on));
    return pipelines[0].seconds(on) / fastest;
}

ColumnOf<Context> speedup_column(size_t phase, const std::string& whose, Phases Context::*pipelines,
                                 const char* words) {
    return {{.key = concat(whose, whose.empty() ? "" : "_", kPhases[phase], "_speedup"),
             .unit = "1",
             .definition = concat("time of dense attention over that of the fastest loop order in ",
                                  kPhases[phase], ", ", words),
             .heading = concat(whose, "\n", kPhases[phase], "\nspeed-up"),
             .form = {.decimals = 1}},
            [=](const Context& of) { return speedup((of.*pipelines)[phase], *of.on); }};
}

ColumnOf<Context> windowed_column(size_t phase) {
    return {{.key = concat("windowed_", kPhases[phase], "_seconds"),
             .unit = "s",
             .definition = concat("time of ", kPhases[phase], " in a layer with the window"),
             .null = "no layer has a window, or all have"},
            [phase](const Context& of) {
                return of.windowed ? std::optional((*of.windowed)[phase]) : std::nullopt;
            }};
}

const report::TableOf<Context> kContexts{
    "contexts",
    "by context, the fastest loop order; and more of the paper's formulas",
    1,
    {{report::kTokens, [](const Context& of) { return of.sizes.tokens; }},
     {kTileUnionBlocks, [](const Context& of) { return of.sizes.union_blocks(); }},
     speedup_column(0, "", &Context::kernels, kByKernels),
     speedup_column(1, "", &Context::kernels, kByKernels),
     speedup_column(0, "paper", &Context::paper, kByPaper),
     speedup_column(1, "paper", &Context::paper, kByPaper),
     {{"paper_flop_ratio",
       "1",
       "FLOPs of dense attention over those of MSA (sec:msa-flops)",
       "FLOPs\ndense /\nMSA",
       {.decimals = 2}},
      [](const Context& of) { return paper_flop_ratio(of.sizes); }},
     {{"paper_q_outer_intensity", "FLOP/B", "FLOP/byte of sparse attention alone in q_outer",
       "q_outer\nFLOP/byte", kFigures},
      [](const Context& of) { return paper_q_outer_cost(of.sizes).intensity(); }},
     {{"paper_kv_outer_intensity", "FLOP/B",
       "FLOP/byte of sparse attention alone in kv_outer, with its combine", "kv_outer\nFLOP/byte",
       kFigures},
      [](const Context& of) { return paper_kv_outer_cost(of.sizes).intensity(); }},
     {{"paper_slot_buffer_bytes", "B", "slots of kv_outer for all queries at once",
       "slot\nbuffers\nGB", kGb},
      [](const Context& of) { return paper_slot_buffer_bytes(of.sizes); }},
     windowed_column(0),
     windowed_column(1)}};

// Training of the Index Branch.

struct TrainingRow {
    int64_t tokens;
    const char* support;
    IndexTraining flops;
};

std::vector<TrainingRow> training_rows(const std::vector<Context>& contexts) {
    std::vector<TrainingRow> rows;
    for (const Context& of : contexts)
        for (const bool on_selected : {false, true})
            rows.push_back({of.sizes.tokens, on_selected ? "selected" : "full",
                            index_training(of.sizes, on_selected)});
    return rows;
}

const report::TableOf<TrainingRow> kTraining{
    "index_training",
    "Teaching the Index Branch by the KL loss, one layer and sequence",
    2,
    {{report::kTokens, &TrainingRow::tokens},
     {{"support", "", "keys of the loss: all visible ones, or those of the selected blocks",
       "support"},
      &TrainingRow::support},
     {{"scores_flops", "FLOP", "scores of all keys, which the selection needs", "scores\nTFLOP",
       kTflop},
      [](const TrainingRow& row) { return row.flops.scores; }},
     {{"loss_flops", "FLOP", "logits of teacher and student on the support, anew", "loss\nTFLOP",
       kTflop},
      [](const TrainingRow& row) { return row.flops.loss; }},
     {{"gradients_flops", "FLOP", "gradients of index_q and index_k", "gradients\nTFLOP", kTflop},
      [](const TrainingRow& row) { return row.flops.gradients; }},
     {{"training_flops", "FLOP", "scores, loss and gradients together", "together\nTFLOP", kTflop},
      [](const TrainingRow& row) { return row.flops.total(); }}}};

// A stage.

struct StageRow {
    const char *phase, *accounting;
    const Context* context;
    const Pipeline* pipeline;
    const Stage* stage;
    double bytes() const { return stage->memory_bytes(*context->on); }
};

std::vector<StageRow> stage_rows(const std::vector<Context>& contexts) {
    std::vector<StageRow> rows;
    for (const Context& context : contexts)
        for (const auto& [accounting, phases] :
             {std::pair{"kernels", &context.kernels}, {"paper", &context.paper}})
            for (size_t phase = 0; phase < phases->size(); ++phase)
                for (const Pipeline& pipeline : (*phases)[phase])
                    for (const Stage& stage : pipeline.stages)
                        rows.push_back({kPhases[phase], accounting, &context, &pipeline, &stage});
    return rows;
}

const report::TableOf<StageRow> kStages{
    "stages",
    "stages, one after the other",
    5,
    {{layer_columns()[0].column, &StageRow::phase},
     {report::kTokens, [](const StageRow& row) { return row.context->sizes.tokens; }},
     {kAccounting, &StageRow::accounting},
     {layer_columns()[2].column, [](const StageRow& row) { return row.pipeline->name; }},
     {report::kStage, [](const StageRow& row) { return row.stage->name; }},
     {report::shown(report::kStageFlops, "TFLOP", kTflop),
      [](const StageRow& row) { return row.stage->cost.flops; }},
     {report::shown(report::kStageBytes, "GB", kGb), &StageRow::bytes},
     {{"stage_intensity", "FLOP/B", "stage_flops over stage_bytes", "FLOP/byte", kFigures},
      [](const StageRow& row) { return row.stage->cost.flops / row.bytes(); }},
     {{"stage_cache_bytes", "B", "bytes through the cache"},
      [](const StageRow& row) { return row.stage->cache_bytes(); }},
     {{"limit", "", "what takes longest: arithmetic, memory or cache", "limit"},
      [](const StageRow& row) { return row.stage->limit(*row.context->on); }},
     {{"stage_seconds", "s", "time of the stage by the roofline of the chip", "time", kTime},
      [](const StageRow& row) { return row.stage->seconds(*row.context->on); }},
     {{"flops_formula", "", "formula of stage_flops", "FLOPs"},
      [](const StageRow& row) { return row.stage->flops_formula; }},
     {{"bytes_formula", "",
       "formula of the bytes where every operand crosses the memory bus once; without the reads "
       "that miss in the cache",
       "bytes"},
      [](const StageRow& row) { return row.stage->bytes_formula; }}}};

// Words.

std::string assumed_text(const Model& model) {
    const std::vector<std::string> assumed = assumed_sizes(model);
    return assumed.empty() ? "" : "; assumed, not given by the source: " + join(assumed);
}

std::string windows_note(const Model& model, const std::vector<Context>& contexts) {
    if (!model.window) return "";
    std::string times;
    for (const Context& of : contexts)
        if (of.windowed)
            add_item(times, ", ", count_text(of.sizes.tokens), ": ",
                     time_text(of.windowed->front()), " and ", time_text(of.windowed->back()));
    if (times.empty())
        return concat("Dense attention is the model's own, with a window of ", *model.window,
                      " tokens in every layer. MSA selects among all tokens.");
    return concat(model.windowed_layers, " of the ", model.layers, " layers attend to a window of ",
                  *model.window,
                  " tokens; the tables are of a layer without one. Prefill and decode of a layer "
                  "with the window take, at ",
                  times, ".");
}

std::string orders_note(const CostOptions& o, const LayerSizes& sizes) {
    return concat(
        "Times are the roofline's, one stage after the other. Prefill is one causal sequence, "
        "decode one token of one sequence. q_outer: one query at a time walks its blocks; union: "
        "the ",
        sizes.tile_queries(),
        " neighbouring queries of a tile walk the union of their blocks; kv_outer: each block "
        "gathers its queries; automatic: union for the blocks that a tile shares, kv_outer for "
        "the rest. Union of a tile: ",
        o.union_blocks ? "as given." : "as if each query chose by chance (--union-blocks).");
}

std::string accountings_note(const LayerSizes& sizes, const analysis::Hardware& on) {
    return concat(
        "'Kernels' describes the kernels of gpu/: padded rows, masked keys, 16-byte handles, keys "
        "read again less the share that the cache holds. 'Paper' is the paper's formulas. The "
        "chip's ridge is at ",
        number_text(on.ridge(sizes.element), 3),
        " FLOP/byte. --stages prints the stages and their formulas.");
}

constexpr const char* kLetters =
    "Letters: Nq queries, P visible (query, key) pairs, Pw and Nw pairs and keys within the window "
    "w, B = N / Bk, e and e_i bytes of an element, T queries and R rows of a tile, U blocks of its "
    "union, s blocks of a query that kv_outer takes, R1 and Rs rows of a query alone and in a "
    "pass, C rounds of slots.";

}  // namespace

std::vector<report::Shape> tables_from_sizes() {
    return {kLayerTable.shape(), kContexts.shape(), kTraining.shape(), kStages.shape()};
}

report::Report cost_from_sizes(const CostOptions& o, const analysis::Hardware& on) {
    const Model model = model_of(o);
    std::vector<Context> contexts;
    for (int64_t tokens : o.contexts) contexts.push_back(cost_context(o, model, tokens, on));
    const LayerSizes& sizes = contexts.front().sizes;
    const report::Table stages = kStages.of(stage_rows(contexts));
    report::Report report{
        .title = concat(model_text(model, sizes), "; ", to_string(sizes.element), ", index ",
                        to_string(sizes.index_element), assumed_text(model), '\n',
                        chip_text(on, o.ceilings, {sizes.element, sizes.index_element})),
        .tables = {kLayerTable.of(layer_rows(contexts)), kContexts.of(contexts),
                   kTraining.of(training_rows(contexts)), o.stages ? stages : stages.hidden(),
                   model_table(model, sizes)}};
    report.note("without_attention", without_attention_note(model));
    report.note("windows", windows_note(model, contexts));
    report.note("orders", orders_note(o, sizes));
    report.note("accountings", accountings_note(sizes, on));
    if (o.stages) report.note("letters", kLetters);
    return report;
}

}  // namespace msa::experiments::cost
