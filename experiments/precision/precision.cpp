// SPDX-License-Identifier: MIT
#include <algorithm>
#include <bit>
#include <map>
#include <ostream>
#include <utility>

#include "experiments/driver/completed.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/fit/indexer_file.h"
#include "experiments/measure/queries.h"
#include "experiments/precision/findings.h"
#include "experiments/precision/layer.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::precision {
namespace {

/// Why the heads of a layer cannot be rotated; empty where they can.
std::string rotation_lacks(const io::LayerInfo& layer) {
    for (io::Field field : {io::Field::k, io::Field::index_k})
        if (layer.has(field) && !std::has_single_bit(static_cast<uint64_t>(layer.channels(field))))
            return concat("layer ", layer.layer, " has heads of ", layer.channels(field),
                          " channels in ", io::to_string(field),
                          ", the Hadamard rotation takes powers of two");
    return "";
}

void resolve_rotations(PrecisionOptions& o, bool asked, const io::ActivationsReader& file,
                       const std::vector<io::LayerInfo>& layers, std::ostream& err) {
    const auto hadamard = std::find(o.rotations.begin(), o.rotations.end(), kHadamard);
    if (hadamard == o.rotations.end()) return;
    for (const io::LayerInfo& layer : layers) {
        const std::string lacks = rotation_lacks(layer);
        if (lacks.empty()) continue;
        require(!asked, "--rotations ", kHadamard, ": ", file.name(), ": ", lacks);
        err << "note: --rotations leaves out " << kHadamard << ": " << lacks << '\n';
        o.rotations.erase(hadamard);
        return;
    }
}

/// Fills in what depends on the file, and checks the options against it. Gives the Index Branches
/// of --indexer, by layer.
std::map<int64_t, IndexWeights> resolve(PrecisionOptions& o, std::span<const std::string> args,
                                        const io::ActivationsReader& file, std::ostream& err) {
    fit::FittedBranches fitted;
    if (!o.indexer.empty()) fitted = fit::read_branches(o.indexer, file, o.layers);
    std::vector<io::LayerInfo> layers = pick_full_layers(o, file, err);
    for (io::LayerInfo& layer : layers) {
        if (o.indexer.empty()) break;
        layer.index_dim = fitted.weights.at(layer.layer).form().index_dim;
        layer.own_block_size = fitted.sizes.block_size;
        layer.own_top_k = fitted.sizes.rule.top_k;
    }
    std::vector<int64_t> without;
    for (const io::LayerInfo& layer : layers)
        if (!layer.has(io::Field::index_q)) without.push_back(layer.layer);
    if (!without.empty())
        err << "note: no index_q and index_k in " << layers_text(without)
            << ": only the KV cache is measured there; msa-fit-indexer makes them\n";
    resolve_rotations(o, given(args, "rotations"), file, layers, err);
    resolve_sizes(o, args, layers, file.info().cu_seqlens, err);
    for (const io::LayerInfo& layer : layers)  // throws where there are too few
        measure::counted_queries(o, o, o.all_rows, o.seed, file.info(), layer);
    return std::move(fitted.weights);
}

void record_types(const PrecisionOptions& o, const io::ActivationsReader& file,
                  io::RunRecord& record) {
    std::vector<LayerElements> elements;
    bool has_index = false;
    for (int64_t number : o.layers) {
        const io::LayerInfo& layer = file.layer(number);
        elements.push_back(float_elements(layer, {}));
        has_index |= layer.has(io::Field::index_q);
    }
    record_elements(elements, record);
    if (!o.indexer.empty())
        record.index_element = to_string(Element::f32);
    else if (!has_index)
        record.index_element.clear();
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<PrecisionOptions> parsed = parse_precision_options(args, out);
    if (!parsed) return 0;
    PrecisionOptions& o = *parsed;
    const io::ActivationsReader file(o.files);
    const std::map<int64_t, IndexWeights> weights = resolve(o, args, file, err);
    const std::vector<Precision> all = precisions(o.formats, o.scales, o.rotations);
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_own_backend(o);

    std::vector<std::filesystem::path> inputs = inputs_of(o, o);
    if (!o.indexer.empty()) inputs.push_back(o.indexer);
    UnitRun job(kProgram.name, args, o, inputs, {"summary.json", "precision.txt", "tables"}, err);
    job.describe(option_table(o), report::definitions(tables()), backend->device());
    record_types(o, file, job.record);
    record_captures(file, job.record);
    return job.run(
        layer_units(file, o.layers,
                    [&](const io::LayerInfo& layer, const Worker& worker, io::UnitWriter& to) {
                        const auto branch = weights.find(layer.layer);
                        precision_layer(o, all, file, layer,
                                        branch == weights.end() ? nullptr : &branch->second, worker,
                                        to);
                    }),
        o, *backend, answer, out);
}

RunAnswer answer(const io::ResultsReader& results) {
    return {make_report(results), "precision.txt"};
}

}  // namespace msa::experiments::precision
