// SPDX-License-Identifier: MIT
// Model and chip: the tables that stand in files alone, and the lines at the top of the page.
#include "analysis/stage_cost.h"
#include "core/utf8.h"
#include "experiments/cost/cost.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::cost {
namespace {

using analysis::Hardware, analysis::LayerSizes;
using report::Column;

struct ModelRow {
    const Model* model;
    const LayerSizes* sizes;
};

Column windowed(Column column) {
    column.null = "no layer has a window";
    return column;
}

const report::TableOf<ModelRow> kModel{
    "model",
    "the model, and the sizes of a layer",
    0,
    {{report::kModel, [](const ModelRow& row) { return row.model->name; }},
     {{"layers_of_model", "layers", "attention layers of the model"},
      [](const ModelRow& row) { return row.model->layers; }},
     {{"layers_without_attention", "layers",
       "further layers, which have no softmax attention and no cost here"},
      [](const ModelRow& row) { return row.model->layers_without_attention(); }},
     {{"windowed_layers", "layers", "of the attention layers, those with a sliding window"},
      [](const ModelRow& row) { return row.model->windowed_layers; }},
     {windowed(report::kWindow), [](const ModelRow& row) { return row.model->window; }},
     {report::kQueryHeads, [](const ModelRow& row) { return row.sizes->query_heads; }},
     {report::kKvHeads, [](const ModelRow& row) { return row.sizes->kv_heads; }},
     {report::kHeadDim, [](const ModelRow& row) { return row.sizes->head_dim; }},
     {report::kIndexDim, [](const ModelRow& row) { return row.sizes->index_dim; }},
     {report::kBlockSize, [](const ModelRow& row) { return row.sizes->block_size; }},
     {report::kTopK, [](const ModelRow& row) { return row.sizes->top_k; }},
     {kTileQueries, [](const ModelRow& row) { return row.sizes->tile_queries(); }},
     {{"assumed", "", "sizes that the source of the model does not give, divided by spaces"},
      [](const ModelRow& row) { return join(assumed_sizes(*row.model), " "); }}}};

const char* text_of(Ceilings ceilings) { return ceilings == Ceilings::peak ? "peak" : "measured"; }

struct ChipRow {
    const Hardware* on;
    Ceilings ceilings;
};

using Rate = std::optional<double> (*)(const Hardware&);

report::ColumnOf<ChipRow> chip_column(const char* key, const char* unit, const char* definition,
                                      Rate of) {
    return {{.key = key, .unit = unit, .definition = definition, .null = "not known of this chip"},
            [of](const ChipRow& row) { return of(*row.on); }};
}

template <std::optional<Hardware::Link> Hardware::*kLink, double Hardware::Link::*kOf>
std::optional<double> of_link(const Hardware& on) {
    if (!(on.*kLink)) return std::nullopt;
    return *(on.*kLink).*kOf;
}

const report::TableOf<ChipRow> kChip{
    "chip",
    "the chip",
    0,
    {{{"chip", "", "name of the chip"}, [](const ChipRow& row) { return row.on->name; }},
     {{"ceilings", "", "whether its rates are published peaks or measured"},
      [](const ChipRow& row) { return text_of(row.ceilings); }},
     {{"memory_bytes_per_second", "B/s", "bandwidth of the GPU memory"},
      [](const ChipRow& row) { return row.on->bytes_per_second; }},
     chip_column("chip_cache_bytes", "B", "size of the last-level cache",
                 [](const Hardware& on) { return on.cache_bytes; }),
     chip_column("chip_cache_bytes_per_second", "B/s", "bandwidth of that cache",
                 [](const Hardware& on) { return on.cache_bytes_per_second; }),
     chip_column("link_bytes_per_second", "B/s",
                 "bandwidth into a chip from others of its host, with as much out at the same time",
                 of_link<&Hardware::link, &Hardware::Link::bytes_per_second>),
     chip_column("link_seconds", "s", "latency of a small message within a host",
                 of_link<&Hardware::link, &Hardware::Link::seconds>),
     chip_column("network_bytes_per_second", "B/s",
                 "bandwidth of a chip's share of the network between hosts",
                 of_link<&Hardware::network, &Hardware::Link::bytes_per_second>),
     chip_column("network_seconds", "s", "latency of a small message between hosts",
                 of_link<&Hardware::network, &Hardware::Link::seconds>),
     {{"chips_of_host", "", "chips of a host"},
      [](const ChipRow& row) { return row.on->chips_of_host; }}}};

using Peak = std::pair<const Element, double>;

const report::TableOf<Peak> kPeaks{
    "peaks",
    "rates of dense matrix products",
    1,
    {{report::kElement, [](const Peak& of) { return to_string(of.first); }},
     {{"flops_per_second", "FLOP/s", "rate of the chip, without structured sparsity"},
      [](const Peak& of) { return of.second; }}}};

}  // namespace

std::vector<report::Shape> tables_of_inputs() {
    return {kModel.shape(), kChip.shape(), kPeaks.shape()};
}

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
    sizes.element = *o.element;
    sizes.index_element = *o.index_element;
    sizes.given_union_blocks = o.union_blocks;
    sizes.validate();
    return sizes;
}

report::Table model_table(const Model& model, const LayerSizes& sizes) {
    return kModel.of(ModelRow{&model, &sizes});
}

std::string model_text(const Model& model, const LayerSizes& sizes) {
    const char* which = model.without_attention.empty() ? "" : " with attention";
    return concat(model.name, ", one of ", model.layers, " layers", which, ": ", sizes_text(sizes));
}

std::string without_attention_note(const Model& model) {
    std::string kinds;
    for (const auto& [kind, count] : model.without_attention)
        add_item(kinds, ", ", count, " ", printable(kind));
    if (kinds.empty()) return "";
    return concat("Further layers of the model have no softmax attention: ", kinds,
                  ". msalab leaves them as they are, and no cost here is theirs.");
}

std::vector<report::Table> chip_tables(const Hardware& on, Ceilings ceilings) {
    return {kChip.of(ChipRow{&on, ceilings}), kPeaks.of(on.flops_per_second)};
}

std::string chip_text(const Hardware& on, Ceilings ceilings, const std::set<Element>& used) {
    std::string line = concat(on.name, ", ", text_of(ceilings), " rates:");
    for (Element element : used)
        line += concat(" ", to_string(element), " ", number_text(on.peak(element) / kTera),
                       " TFLOP/s,");
    line += " memory " + number_text(on.bytes_per_second / kTera) + " TB/s";
    if (on.cache_bytes) line += ", cache " + number_text(*on.cache_bytes / kMebi) + " MiB";
    if (on.cache_bytes_per_second)
        line += " at " + number_text(*on.cache_bytes_per_second / kTera) + " TB/s";
    return line;
}

}  // namespace msa::experiments::cost
