// SPDX-License-Identifier: MIT
#include <algorithm>
#include <ostream>

#include "core/cu_seqlens.h"
#include "experiments/advise/advice.h"
#include "experiments/advise/layer.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/windowed.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::advise {
namespace {

const std::vector<std::string> kDefaultSelectors{"index", "oracle", "mean-key", "window", "quest"};

/// What the first layer lacks that lacks something for a selector on blocks of a size: "layer 3 has
/// no ...". Empty where none does.
std::string lack_of(const AdviseOptions& o, const io::ActivationsReader& file,
                    const std::string& selector, int64_t block_size) {
    const PolicyNeeds needs = make_selector(selector)->needs();
    for (int64_t number : o.layers)
        if (const std::string lacks = lacking(needs, file.layer(number), block_size);
            !lacks.empty())
            return concat("layer ", number, " has no ", lacks);
    return "";
}

/// Fills in what depends on the file, and checks the options against it.
void resolve(AdviseOptions& o, const io::ActivationsReader& file,
             std::vector<WindowedLayer>& windowed, std::ostream& err) {
    pick_without_window(o, file, windowed, err);
    resolve_pricing(o, file.info(), o.layers, windowed);
    const bool chosen = !o.selectors.empty();
    if (!chosen) o.selectors = kDefaultSelectors;
    std::erase_if(o.selectors, [&](const std::string& name) {
        std::string lacks;
        for (int64_t block_size : o.block_sizes) {
            lacks = lack_of(o, file, name, block_size);
            if (lacks.empty()) return false;
        }
        require(!chosen, file.name(), ": ", lacks, ", which selector ", name,
                " needs; msa-fit-indexer makes them");
        err << "note: " << lacks << ": " << name << " is left out; msa-fit-indexer makes them\n";
        return true;
    });
}

/// Settings that compare on the same queries, that are sparse at the context, and that the layers
/// have operands for.
Grid grid_for(const AdviseOptions& o, const io::ActivationsReader& file, std::ostream& err) {
    const int64_t half = longest_sequence(file.info().cu_seqlens) / 2;
    const bool by_context = *o.context < half;
    const int64_t most = std::min(*o.context, half);
    const std::string why = by_context ? "the context" : "half of the longest sequence";
    Grid grid = make_grid(o, o.selectors, most, why);
    if (grid.too_large > 0)
        err << "note: " << grid.too_large << " settings of more than " << most << " tokens, " << why
            << ", are left out\n";
    const size_t impossible = std::erase_if(grid.settings, [&](const Setting& setting) {
        return !lack_of(o, file, setting.selector, setting.block_size).empty();
    });
    if (impossible > 0)
        err << "note: " << impossible
            << " settings are left out: what their selectors need is for another block size\n";
    require(!grid.settings.empty(), "--block-size leaves no setting of at most ", most,
            " tokens for the block size that ", file.name(), " has operands for");
    return grid;
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<AdviseOptions> parsed = parse_advise_options(args, out);
    if (!parsed) return 0;
    AdviseOptions& o = *parsed;
    const analysis::Hardware on = read_hardware(o);
    const io::ActivationsReader file(o.files);
    std::vector<WindowedLayer> windowed;
    resolve(o, file, windowed, err);
    const Grid grid = grid_for(o, file, err);
    for (int64_t number : o.layers)  // throws where there are too few
        advised_queries(o, file.info(), file.layer(number), grid.largest());
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_own_backend(o);

    UnitRun job(kProgram.name, args, o, inputs_of(o, o), {"summary.json", "advice.txt", "tables"},
                err);
    job.describe(option_table(o), report::definitions(tables()), *backend, file, o.element);
    std::vector<Unit> units = layer_units(
        file, o.layers, [&](const io::LayerInfo& layer, const Worker& worker, io::UnitWriter& to) {
            advise_layer(o, file, layer, grid.settings, on, worker, to);
        });
    std::ranges::move(windowed_units(file, windowed, o, on), std::back_inserter(units));
    return job.run(std::move(units), o, *backend, answer, out);
}

RunAnswer answer(const io::ResultsReader& results) { return {make_report(results), "advice.txt"}; }

}  // namespace msa::experiments::advise
