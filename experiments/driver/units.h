// SPDX-License-Identifier: MIT
// The units of work that a run is cut into.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "core/io/activations.h"
#include "core/io/unit_writer.h"

namespace msa::experiments {

/// The resources of a process.
struct Worker {
    Backend& backend;
    std::ostream& err;       // for messages of a unit
    std::ostream& progress;  // for progress within a unit; silent if units are counted
    int threads;
};

/// A unit of work: one process does it. Its name is its unique key in /done. Units are independent:
/// who does them, when, and how often, changes no bit. Results over several units are joined at the
/// end, in order.
struct Unit {
    std::string name;
    std::function<void(const Worker&, io::UnitWriter&)> work;
    std::function<void()> done = [] {
    };                    // called when it is finished, by this process or another, perhaps twice
    std::string whole{};  // the unit of the results of which it is a part; empty: itself
};

/// One unit for each layer, "layer L".
std::vector<Unit> layer_units(
    const io::ActivationsReader&, std::span<const int64_t> layers,
    const std::function<void(const io::LayerInfo&, const Worker&, io::UnitWriter&)>& work);

/// A layer, and a range of its analysed queries.
struct LayerPart {
    const io::LayerInfo& layer;
    QueryRange queries;
    bool is_whole;

    /// "layer L, queries A:B", or "layer L" if it is whole.
    std::string name() const;
};
/// Cuts each layer's analysed queries into units of whole blocks, as few as have `unit_queries`
/// queries; the units are parts of "layer L". begins(layer) gives the first query of each block,
/// and the end. unit_queries 0: one unit per layer.
std::vector<Unit> query_units(
    const io::ActivationsReader&, std::span<const int64_t> layers, int64_t unit_queries,
    const std::function<std::vector<int64_t>(const io::LayerInfo&)>& begins,
    const std::function<void(const LayerPart&, const Worker&, io::UnitWriter&)>& work);

}  // namespace msa::experiments
