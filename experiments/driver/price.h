// SPDX-License-Identifier: MIT
// The cost of one layer at a setting: the kernels' accounting of analysis/stage_cost.h at the
// context, with the selector's scores in place of the Index Branch's.
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

/// Context, phase and chip of the costs.
struct PricingOptions {
    std::optional<int64_t> context;       // absent until resolve_pricing()
    std::optional<int64_t> model_layers;  // likewise
    bool decode = false;
    std::string hardware = "h100";
    Ceilings ceilings = Ceilings::peak;
};
/// The target of a search, one of these.
struct TargetOptions {
    std::optional<double> keep, lose, error;
    std::optional<int64_t> budget;

    /// {"keep": 0.95}
    nlohmann::ordered_json target() const;
    /// "mass kept of at least 0.95"; `of_error`: the name of the error.
    std::string target_text(const std::string& of_error) const;
    /// InputError if several are given; if none is, `otherwise` becomes `value`.
    void check_target(std::optional<double> TargetOptions::*otherwise, double value);
};

/// "prefill of 8K tokens on h100 (peak rates), 4 layers for the 30 of the model", for costs of so
/// many layers; where the context is longer than any sequence captured, it says so.
std::string pricing_text(const PricingOptions&, int64_t measured_layers, int64_t longest_sequence);
/// What was not given: the context is the longest sequence captured, and the layers are the `all`
/// of the model, or the `measured` ones. InputError where there are more of these.
void resolve_pricing(PricingOptions&, const io::ActivationsInfo&, int64_t measured, int64_t all);
/// Layers of the model for each one measured.
double layers_share(const PricingOptions&, int64_t measured);
/// --context, --model-layers, --phase, --hardware, --ceilings. `not_priced` ends the help of
/// --context; it says what does not depend on it, as in "; mass is that of FILE".
void add_pricing(OptionTable&, PricingOptions&, const std::string& not_priced = "");
/// Throws InputError like the other read_hardware(), and if the chip has no rate for bf16.
analysis::Hardware read_hardware(const PricingOptions&);

struct Setting {  // a selection of blocks to be priced
    std::string selector;
    int64_t block_size = 0;
    SelectionRule rule;  // the selector's own rule

    int64_t tokens() const { return block_size * rule.top_k; }  // of a full budget
    bool operator==(const Setting&) const = default;
};

inline constexpr const char* kOrders[] = {"dense", "q_outer", "union", "kv_outer", "automatic"};

struct Price {
    analysis::Cost work;
    double seconds = 0;
    int64_t order = 0;  // index in kOrders of the fastest
};

/// Computes costs for bf16 operands and the fastest loop order.
class Pricer {
public:
    Pricer(const io::LayerInfo&, int64_t context, bool decode, const analysis::Hardware&);
    /// Over the layer's sliding window, if it has one.
    Price dense() const;
    /// `union_blocks`: mean number of blocks that the queries of a tile select together; absent: as
    /// if chosen at random.
    Price operator()(const Setting&, std::optional<double> union_blocks) const;
    /// The same for given ids: attention alone.
    Price of_given_ids(const Setting&, std::optional<double> union_blocks) const;

private:
    analysis::LayerSizes sizes(int64_t block_size, int64_t top_k) const;
    /// The fastest loop order after `selection`, or after the Index Branch if that is absent.
    Price fastest(const Setting&, std::optional<double> union_blocks,
                  const std::optional<analysis::Cost>& selection) const;
    /// FLOPs of all queries' scores, and bytes of their operands, each read once: q or the
    /// indexer's queries, and the keys or their summaries that the last query sees.
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
/// The attributes <name>_seconds, <name>_flops and <name>_bytes of a group of results.
void write_price(io::UnitWriter&, const std::string& group, const std::string& name, const Price&);
Cost read_cost(const io::ResultsReader&, const std::string& group, const std::string& name);

}  // namespace msa::experiments
