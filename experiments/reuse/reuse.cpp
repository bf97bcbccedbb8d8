// SPDX-License-Identifier: MIT
#include <ostream>

#include "core/select/selector.h"
#include "experiments/driver/completed.h"
#include "experiments/driver/windowed.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"
#include "experiments/reuse/layer.h"
#include "experiments/reuse/sharing.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::reuse {
namespace {

/// Layers take each other's ids: their groups of heads and their blocks must be the same.
void require_alike(const std::string& file, const io::LayerInfo& a, const io::LayerInfo& b,
                   bool own_block_sizes) {
    require_same_groups(file, a, b);
    if (own_block_sizes && a.own_block_size && b.own_block_size)
        require(*a.own_block_size == *b.own_block_size, file, ": layer ", a.layer,
                " has block_size ", *a.own_block_size, ", layer ", b.layer, " has ",
                *b.own_block_size,
                ": ids can be shared only where they agree; --block-size gives one for all");
}

/// Fills in what depends on the file, and checks the options against it.
void resolve(ReuseOptions& o, std::span<const std::string> args, const io::ActivationsReader& file,
             std::vector<WindowedLayer>& windowed, std::ostream& err) {
    const std::string& name = file.name();
    const bool all = o.layers.empty();
    const std::vector<io::LayerInfo> layers = pick_without_window(o, file, windowed, err);
    const std::string missing = missing_layers(all_layers(o.layers, windowed));
    require(!all || missing.empty(), name, ": has layers ", join(o.layers), " and not ", missing,
            " between them, which would share ids, too; --layers with the numbers of "
            "those that are there measures them alone");
    require(layers.size() > 1, name, ": only layer ", o.layers.front(),
            all ? " is there" : " is chosen", ", ids are shared between at least 2");
    for (const io::LayerInfo& layer : layers)
        require_alike(name, layers.front(), layer, !given(args, "block-size"));
    resolve_sizes(o, args, layers, file.info().cu_seqlens, err);
    for (const io::LayerInfo& layer : layers) {
        const std::string lacks = lacking(make_selector(o.selector)->needs(), layer, o.block_size);
        require(lacks.empty(), name, ": layer ", layer.layer, " has no ", lacks,
                ", which --selectors ", o.selector, " needs; msa-fit-indexer makes them");
    }
    resolve_pricing(o, file.info(), o.layers, windowed);
    require(o.block_size * o.rule.top_k <= *o.context, "--context is ", *o.context,
            ", must be at least the ", o.block_size * o.rule.top_k, " tokens of k blocks");
    grouped(o.layers, o.groups);
    if (!missing.empty())
        err << "note: not measured: layers " << missing << "; distances count them\n";
}

/// The queries, the same in all layers.
measure::LayerQueries common_queries(const ReuseOptions& o, const io::ActivationsReader& file) {
    const int64_t first = o.layers.front();
    measure::LayerQueries queries =
        measure::counted_queries(o, o, o.all_rows, o.seed, file.info(), file.layer(first));
    for (int64_t number : o.layers) {
        const measure::LayerQueries others =
            measure::counted_queries(o, o, o.all_rows, o.seed, file.info(), file.layer(number));
        require(others == queries, "--held-out has other queries for layer ", number, " (",
                others.tokens.size(), ") than for layer ", first, " (", queries.tokens.size(),
                "): ids can be shared only between the same queries");
    }
    return queries;
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<ReuseOptions> parsed = parse_reuse_options(args, out);
    if (!parsed) return 0;
    ReuseOptions& o = *parsed;
    const analysis::Hardware on = read_hardware(o);
    const io::ActivationsReader file(o.files);
    std::vector<WindowedLayer> windowed;
    resolve(o, args, file, windowed, err);
    const measure::LayerQueries queries = common_queries(o, file);
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_own_backend(o);

    UnitRun job(kProgram.name, args, o, inputs_of(o, o), {"summary.json", "reuse.txt", "tables"},
                err);
    job.describe(option_table(o), report::definitions(tables()), *backend, file, o.element);
    OwnIds own(o, file, queries);
    std::vector<Unit> units = layer_units(
        file, o.layers, [&](const io::LayerInfo& layer, const Worker& worker, io::UnitWriter& to) {
            reuse_layer(o, file, layer, queries, own, on, worker, to);
        });
    std::ranges::move(windowed_units(file, windowed, o, on), std::back_inserter(units));
    return job.run(std::move(units), o, *backend, answer, out);
}

RunAnswer answer(const io::ResultsReader& results) { return {make_report(results), "reuse.txt"}; }

}  // namespace msa::experiments::reuse
