// SPDX-License-Identifier: MIT
#include "experiments/driver/units.h"

namespace msa::experiments {

std::vector<Unit> layer_units(
    const io::ActivationsReader& file, std::span<const int64_t> layers,
    const std::function<void(const io::LayerInfo&, const Worker&, io::UnitWriter&)>& work) {
    std::vector<Unit> units;
    for (int64_t number : layers)
        units.push_back({concat("layer ", number), [&layer = file.layer(number), work](
                                                       const Worker& worker, io::UnitWriter& to) {
                             work(layer, worker, to);
                         }});
    return units;
}

std::string LayerPart::name() const {
    const std::string whole = concat("layer ", layer.layer);
    return is_whole ? whole : concat(whole, ", queries ", queries.begin, ":", queries.end);
}

std::vector<Unit> query_units(
    const io::ActivationsReader& file, std::span<const int64_t> layers, int64_t unit_queries,
    const std::function<std::vector<int64_t>(const io::LayerInfo&)>& begins,
    const std::function<void(const LayerPart&, const Worker&, io::UnitWriter&)>& work) {
    std::vector<Unit> units;
    for (int64_t number : layers) {
        const io::LayerInfo& layer = file.layer(number);
        const std::string whole = concat("layer ", number);
        std::vector<QueryRange> pieces{{0, 0}};
        for (int64_t end : begins(layer)) {
            const int64_t queries = pieces.back().end - pieces.back().begin;
            if (unit_queries > 0 && queries >= unit_queries && end > pieces.back().end)
                pieces.push_back({pieces.back().end, end});
            pieces.back().end = end;
        }
        for (const QueryRange piece : pieces) {
            const LayerPart part{layer, piece, unit_queries == 0};
            units.push_back({part.name(), [part, work](const Worker& worker, io::UnitWriter& to) {
                                 work(part, worker, to);
                             }});
            if (!part.is_whole) units.back().whole = whole;
        }
    }
    return units;
}

}  // namespace msa::experiments
