// SPDX-License-Identifier: MIT
// What one layer costs at a setting: the kernels' accounting of analysis/stage_cost.h at the
// context, with the scores of the selector in the Index Branch's place.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>

#include "analysis/hardware.h"
#include "analysis/stage_cost.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "core/selection.h"
#include "experiments/driver/option_table.h"
#include "experiments/driver/presets.h"

namespace msa::experiments {

/// What costs are of.
struct PricingOptions {
    std::optional<int64_t> context;       // absent until resolve_pricing()
    std::optional<int64_t> model_layers;  // likewise
    bool decode = false;
    std::string hardware = "h100";
    Ceilings ceilings = Ceilings::peak;
};
/// "prefill of 8K tokens on h100 (peak rates), 4 layers for the 30 of the model", for costs of so
/// many layers; where the context is longer than any sequence captured, it says so.
std::string pricing_text(const PricingOptions&, int64_t measured_layers, int64_t longest_sequence);
/// What was not given: the context is the longest sequence captured, and the layers are those of
/// the model, as it says, or the `measured` ones. InputError where there are more of these.
void resolve_pricing(PricingOptions&, const io::ActivationsInfo&, int64_t measured);
/// Layers of the model for each one measured.
double layers_share(const PricingOptions&, int64_t measured);
/// --context, --model-layers, --phase, --hardware, --ceilings. `beside`: what is not of the
/// context, as in "; mass is that of FILE".
void add_pricing(OptionTable&, PricingOptions&, const std::string& beside = "");
/// Throws InputError as the other read_hardware(), and where the chip has no rate for bf16.
analysis::Hardware read_hardware(const PricingOptions&);

struct Setting {  // what is priced: a selection of blocks
    std::string selector;
    int64_t block_size = 0;
    SelectionRule rule;  // what the selector makes of the one asked for

    int64_t tokens() const { return block_size * rule.top_k; }  // of a whole budget
    bool operator==(const Setting&) const = default;
};

inline constexpr const char* kOrders[] = {"dense", "q_outer", "union", "kv_outer", "automatic"};

struct Price {
    analysis::Cost work;
    double seconds = 0;
    int64_t order = 0;  // of kOrders: the one that answers first
};

/// Operands are bf16. Work is done in the fastest loop order.
class Pricer {
public:
    Pricer(const io::LayerInfo&, int64_t context, bool decode, const analysis::Hardware&);
    Price dense() const;
    /// `tile_union`: blocks that the queries of a tile select together, mean; else by chance.
    Price operator()(const Setting&, std::optional<double> tile_union) const;
    /// The same with ids that are there: attention alone.
    Price of_given_ids(const Setting&, std::optional<double> tile_union) const;

private:
    analysis::LayerSizes sizes(int64_t block_size, int64_t top_k) const;
    /// The fastest loop order behind `selection`; behind the Index Branch where that is absent.
    Price fastest(const Setting&, std::optional<double> tile_union,
                  const std::optional<analysis::Cost>& selection) const;
    /// Arithmetic of the scores of all queries, bytes of what they are made of, q or the indexer's
    /// own queries, and of what stands for the keys, as the last query sees it: they cross the bus
    /// once.
    analysis::Cost scores(const Setting&) const;
    analysis::Cost selection(const Setting&) const;

    const io::LayerInfo& layer_;
    int64_t context_;
    bool decode_;
    const analysis::Hardware& on_;
    mutable std::map<std::pair<std::string, int64_t>, analysis::Cost> known_;  // scores
};

/// Seconds, FLOPs and bytes of the roofline.
struct Cost {
    double seconds = 0, flops = 0, bytes = 0;
    Cost operator+(const Cost& other) const {
        return {seconds + other.seconds, flops + other.flops, bytes + other.bytes};
    }
    Cost operator-(const Cost& other) const {
        return {seconds - other.seconds, flops - other.flops, bytes - other.bytes};
    }
    Cost operator*(double times) const { return {seconds * times, flops * times, bytes * times}; }
};
nlohmann::ordered_json cost_json(const Cost&);
/// The attributes <name>_seconds, <name>_flops and <name>_bytes of a group of results.
void write_price(io::UnitWriter&, const std::string& group, const std::string& name, const Price&);
Cost read_cost(const io::ResultsReader&, const std::string& group, const std::string& name);

}  // namespace msa::experiments
