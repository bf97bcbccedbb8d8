// SPDX-License-Identifier: MIT
#include <algorithm>
#include <ostream>
#include <sstream>

#include "experiments/advise/layer.h"
#include "experiments/advise/summary.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/run.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::advise {
namespace {

const std::vector<std::string> kDefaultSelectors{"index", "oracle", "mean-key", "window", "quest"};

/// Fills in what depends on the file, and checks the options against it.
void resolve(AdviseOptions& o, const io::ActivationsReader& file, std::ostream& err) {
    pick_layers(o, file, err);
    const bool chosen = !o.selectors.empty();
    if (!chosen) o.selectors = kDefaultSelectors;
    std::erase_if(o.selectors, [&](const std::string& name) {
        const PolicyNeeds needs = make_selector(name)->needs();
        const auto without = std::find_if(o.layers.begin(), o.layers.end(), [&](int64_t number) {
            return !lacking(needs, file.layer(number)).empty();
        });
        if (without == o.layers.end()) return false;
        require(!chosen, file.name(), ": layer ", *without, " has no ",
                lacking(needs, file.layer(*without)), ", which selector ", name, " needs");
        err << "note: layer " << *without << " has no Index Branch: " << name
            << " is left out; msa-fit-indexer makes one\n";
        return true;
    });
}

/// Settings that compare on the same queries, and that are sparse at the context.
Grid grid_for(const AdviseOptions& o, const io::ActivationsInfo& info, std::ostream& err) {
    int64_t longest = 0;
    for (size_t s = 1; s < info.cu_seqlens.size(); ++s)
        longest = std::max(longest, info.cu_seqlens[s] - info.cu_seqlens[s - 1]);
    const bool by_context = o.context < longest / 2;
    const int64_t most = by_context ? o.context : longest / 2;
    const std::string why = by_context ? "the context" : "half of the longest sequence";
    Grid grid = make_grid(o, o.selectors, most, why);
    if (grid.too_large > 0)
        err << "note: " << grid.too_large << " settings of more than " << most << " tokens, " << why
            << ", are left out\n";
    return grid;
}

Advice write_advice(const Completed& run) {
    Advice advice = make_advice(run.results);
    const io::RunRecord& record = run.results.run();
    std::ostringstream page;
    print_advice(advice, record, page);
    write_page(run, "advice.txt", page.str(), advise_summary(advice, record));
    return advice;
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<AdviseOptions> parsed = parse_advise_options(args, out);
    if (!parsed) return 0;
    AdviseOptions& o = *parsed;
    const analysis::Hardware on = read_hardware(o);
    const io::ActivationsReader file(o.files);
    resolve(o, file, err);
    const Grid grid = grid_for(o, file.info(), err);
    for (int64_t number : o.layers)  // throws where there are too few
        choose_blocks(o, file.info(), file.layer(number), grid.largest());
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_backend(o.backend, o.backend_options);

    UnitRun job("msa-advise", args, o, inputs_of(o, o), {"summary.json", "advice.txt"}, err);
    job.describe(option_table(o), advise_definitions(), *backend, file, o.element);
    job.begin(layer_units(
        file, o.layers, [&](const io::LayerInfo& layer, const Worker& worker, io::UnitWriter& to) {
            advise_layer(o, file, layer, grid.settings, on, worker, to);
        }));
    if (!job.work(o, *backend, OnError::stop)) return 0;
    const io::ResultsReader results = job.finish();
    const Advice advice = write_advice({results, o.out, o.files, o.json, 0, out});
    return target_code("msa-advise", nearest_text(advice), err);
}

void complete(const Completed& run) { write_advice(run); }

}  // namespace msa::experiments::advise
