// SPDX-License-Identifier: MIT
// What one layer costs at a setting: the kernels' accounting of analysis/stage_cost.h at the
// context, with the scores of the selector in the Index Branch's place.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "analysis/hardware.h"
#include "analysis/stage_cost.h"
#include "core/io/activations.h"
#include "experiments/advise/setting.h"

namespace msa::experiments::advise {

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

}  // namespace msa::experiments::advise
