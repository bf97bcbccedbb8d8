// SPDX-License-Identifier: MIT
// The three questions of msa-cost: a layer from its sizes, one that GPUs share, and selected
// blocks.
#pragma once

#include <set>

#include "analysis/hardware.h"
#include "experiments/cost/options.h"
#include "experiments/driver/presets.h"
#include "experiments/report/report.h"
#include "experiments/report/text.h"

namespace msa::experiments::cost {

/// A layer of the model at every context: prefill and decode, stage by stage.
report::Report cost_from_sizes(const CostOptions&, const analysis::Hardware&);
/// A layer of the model that is divided among GPUs, at every context: prefill and decode
/// (analysis/over_gpus.h).
report::Report cost_over_gpus(const CostOptions&, const analysis::Hardware&);
/// Sparse attention on the selected blocks of a results file. Throws InputError if its queries have
/// gaps, since the loop orders depend on neighbouring queries.
report::Report cost_from_results(const CostOptions&, const analysis::Hardware&);

// Their tables, besides those of model and chip.
std::vector<report::Shape> tables_from_sizes();
std::vector<report::Shape> tables_over_gpus();
std::vector<report::Shape> tables_from_results();

// Shared columns.
inline constexpr report::Form kTime{.words = time_text};
inline const report::Column kTileQueries{"tile_queries", "", "neighbouring queries of a tile"};
inline const report::Column kTileUnionBlocks{
    .key = "tile_union_blocks",
    .unit = "blocks",
    .definition = "distinct blocks that the neighbouring queries of a tile select, mean over tiles",
    .heading = "union of\na tile",
    .form = {.decimals = 1}};

inline const report::Column kAccounting{
    "accounting", "",
    "kernels: what the kernels of gpu/ do, with padded rows, masked keys, 16-byte handles and a "
    "cache. paper: the paper's formulas, which have none of these",
    "accounting"};

/// The model of --preset, with sizes replaced by options.
Model model_of(const CostOptions&);
/// The sizes of one of its layers over `tokens`. InputError if there are fewer than k blocks.
analysis::LayerSizes sizes_of(const CostOptions&, const Model&, int64_t tokens);
report::Table model_table(const Model&, const analysis::LayerSizes&);
/// "MSA paper, 109B, one of 41 layers: Hq 64, Hkv 4, dh 128, didx 128, Bk 128, k 16"
std::string model_text(const Model&, const analysis::LayerSizes&);
/// Names the kinds of its layers without attention; empty if each has one.
std::string without_attention_note(const Model&);

/// Name, bandwidths, cache and links; and the peak rate of each element type.
std::vector<report::Table> chip_tables(const analysis::Hardware&, Ceilings);
/// "NVIDIA H100, peak rates: bf16 989.4 TFLOP/s, memory 3.35 TB/s"
std::string chip_text(const analysis::Hardware&, Ceilings, const std::set<Element>& used);

/// Of model and chip.
std::vector<report::Shape> tables_of_inputs();

}  // namespace msa::experiments::cost
