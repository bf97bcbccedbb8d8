// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <numbers>
#include <ostream>

#include "experiments/cache/findings.h"
#include "experiments/cache/layer.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/selected_blocks.h"
#include "experiments/programs.h"

namespace msa::experiments::cache {
namespace {

/// The element of the results, where it is one of a cache.
Element element_of(const std::string& file, const io::ResultsReader& results) {
    const std::string& stored = results.run().element;
    for (Element element : {Element::bf16, Element::f16, Element::e4m3, Element::f32})
        if (stored == to_string(element)) return element;
    throw InputError(concat(file, ": /run says element = ", stored.empty() ? "nothing" : stored,
                            ", must be one type: name that of the cached keys and values with "
                            "--element"));
}

/// From `smallest` to `largest` in steps of sqrt 2.
std::vector<int64_t> default_sizes(int64_t smallest, int64_t largest) {
    std::vector<int64_t> sizes;
    for (double size = static_cast<double>(smallest); std::lround(size) < largest;
         size *= std::numbers::sqrt2)
        if (sizes.empty() || std::lround(size) > sizes.back()) sizes.push_back(std::lround(size));
    sizes.push_back(largest);
    return sizes;
}

/// What --prefetch asks for: a layer to guess from, right before each one but the file's first.
void require_guesses(const CacheOptions& o, const io::ResultsReader& results,
                     const std::vector<LayerSteps>& layers) {
    const int64_t first = pick_layers(results, {}).front();
    for (const LayerSteps& of : layers) {
        const std::string fault =
            concat("--prefetch is ", kByLayer, ", but layer ", of.layer, ": ");
        require(of.layer != first || layers.size() > 1, fault, of.note,
                "; two layers are needed, one right after the other");
        require(of.layer == first || of.note.empty(), fault, of.note);
        if (!of.previous) continue;
        for (const std::string& selector : o.selectors)
            require(results.has(ids_dataset(selector, *of.previous)), fault, o.results.string(),
                    " has no ", ids_dataset(selector, *of.previous));
    }
}

/// Fills in what depends on the file, and checks the options against it.
std::vector<LayerSteps> resolve(CacheOptions& o, const io::ResultsReader& results) {
    const std::string file = o.results.string();
    require_of_analyze(file, results);
    require(results.has("/select"), file, ": has no selected blocks (/select)");
    o.selectors = pick_selectors(results, o.selectors);
    o.layers = pick_layers(results, o.layers);
    if (!o.element) o.element = element_of(file, results);
    std::vector<LayerSteps> layers = read_steps(o, results);
    if (o.prefetch) require_guesses(o, results, layers);
    int64_t smallest = 0, largest = 0;
    for (const LayerSteps& of : layers) {
        smallest = std::max(smallest, of.smallest_cache());
        largest = std::max(largest, of.context_blocks);
    }
    require(smallest > 0, file, ": holds no selected blocks of these layers and selectors");
    if (o.sizes.empty()) o.sizes = default_sizes(smallest, largest);
    for (int64_t size : o.sizes)
        require(size >= smallest && size <= largest, "--sizes has ", size, ", must be from ",
                smallest, ", the blocks of a step of ", file, ", to ", largest,
                ", those of its longest context");
    const int64_t chosen = std::ssize(layers);
    if (!o.model_layers) o.model_layers = std::max(recorded_model_layers(results.run()), chosen);
    require(*o.model_layers >= chosen, "--model-layers is ", *o.model_layers,
            ", must be at least the ", chosen, " layers chosen of ", file);
    return layers;
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<CacheOptions> parsed = parse_cache_options(args, out);
    if (!parsed) return 0;
    CacheOptions& o = *parsed;
    const io::ResultsReader results(o.results);
    const std::vector<LayerSteps> layers = resolve(o, results);

    UnitRun job(kProgram.name, args, o, {o.results}, {"summary.json", "cache.txt", "tables"}, err);
    const ComputeOptions on_host;
    const std::unique_ptr<Backend> backend = make_backend(on_host.backend, {});
    job.describe(option_table(o), report::definitions(tables()), backend->device());
    job.record.captures = results.run().captures;  // that the analysis read
    std::vector<Unit> units;
    for (const LayerSteps& layer : layers)
        units.push_back({concat("layer ", layer.layer), [&](const Worker& worker, auto& to) {
                             measure_layer(o, io::ResultsReader(o.results), layer, worker, to);
                         }});
    return job.run(std::move(units), on_host, *backend, answer, out);
}

RunAnswer answer(const io::ResultsReader& results) { return {make_report(results), "cache.txt"}; }

}  // namespace msa::experiments::cache
