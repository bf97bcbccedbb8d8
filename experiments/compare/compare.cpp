// SPDX-License-Identifier: MIT
#include <omp.h>

#include <algorithm>
#include <iostream>
#include <sstream>

#include "experiments/compare/layer.h"
#include "experiments/compare/policies.h"
#include "experiments/compare/summary.h"
#include "experiments/driver/own_attention.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/sample.h"
#include "experiments/driver/write_text.h"
#include "experiments/programs.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::compare {
namespace {

/// The nearest layer before `layer` in the file, if it has the same sizes.
const io::LayerInfo* layer_before(const io::ActivationsReader& file, const io::LayerInfo& layer) {
    const io::LayerInfo* before = nullptr;
    for (const io::LayerInfo& other : file.info().layers)
        if (other.layer < layer.layer) before = &other;
    return before != nullptr && same_sizes(*before, layer) ? before : nullptr;
}

/// The selectors that run on a layer: those chosen, or all that can.
std::vector<std::string> selectors_for(const CompareOptions& o, const io::ActivationsReader& file,
                                       const io::LayerInfo& layer) {
    const bool has_before = layer_before(file, layer) != nullptr;
    std::vector<std::string> names = o.selectors.empty() ? list_policies() : o.selectors;
    std::erase_if(names, [&](const std::string& name) {
        const std::string why = why_unusable(o, layer, has_before, name);
        require(why.empty() || o.selectors.empty(), file.path().string(), ": selector ", name,
                " cannot run on layer ", layer.layer, ": ", why);
        return !why.empty();
    });
    return names;
}

/// The compared queries: in the decode phase, those behind the prompt of their sequence.
std::vector<int64_t> choose_queries(const CompareOptions& o, const io::ActivationsInfo& info) {
    std::vector<int64_t> tokens, chosen;
    for (size_t s = 0; s + 1 < info.cu_seqlens.size(); ++s)
        for (int64_t j = info.cu_seqlens[s] + o.prompt; j < info.cu_seqlens[s + 1]; ++j)
            tokens.push_back(j);
    require(!tokens.empty(), "--prompt is ", o.prompt, ", no sequence is longer");
    for (int64_t n : stratified_sample(std::ssize(tokens), o.sample_queries, o.seed))
        chosen.push_back(tokens[static_cast<size_t>(n)]);
    return chosen;
}

void resolve(CompareOptions& o, const io::ActivationsReader& file) {
    if (o.layers.empty())
        for (const io::LayerInfo& layer : file.info().layers) o.layers.push_back(layer.layer);
    for (int64_t number : o.layers) {
        io::require_post_rope(file, number);
        selectors_for(o, file, file.layer(number));
    }
}

}  // namespace

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    std::optional<CompareOptions> parsed = parse_compare_options(args, out);
    if (!parsed) return 0;
    CompareOptions& o = *parsed;
    const io::ActivationsReader file(o.file);
    resolve(o, file);
    for (int64_t number : o.layers) warn_of_own_attention(o.file, file.layer(number), err);
    const std::vector<int64_t> tokens = choose_queries(o, file.info());
    register_cuda_backend();
    const std::unique_ptr<Backend> backend = make_backend(o.backend, o.backend_options);
    if (o.backend_options.threads > 0) omp_set_num_threads(o.backend_options.threads);

    std::filesystem::create_directories(o.out);
    io::RunRecord record = start_record("msa-compare", args, {o.file});
    record.options = o.identity();
    record.definitions = compare_definitions();
    record.device = backend->device();
    std::vector<LayerElements> elements;
    for (int64_t number : o.layers)
        elements.push_back(layer_elements(*backend, file.layer(number), o.element));
    record_elements(elements, record);
    record.seed = o.seed;
    const std::filesystem::path results_path = o.out / "results.h5";
    io::ResultsWriter writer(results_path, record,
                             o.overwrite ? io::IfExists::overwrite
                             : o.resume  ? io::IfExists::resume
                                         : io::IfExists::refuse);
    for (int64_t number : o.layers) {
        const std::string unit = text("layer ", number);
        if (writer.done(unit)) {
            err << unit << ": done before\n";
            continue;
        }
        writer.begin_unit(unit);
        const io::LayerInfo& layer = file.layer(number);
        compare_layer(o, file, layer, layer_before(file, layer), selectors_for(o, file, layer),
                      tokens, *backend, writer, err);
        writer.end_unit();
    }
    writer.finish(utc_now());

    const io::ResultsReader results(results_path);
    check_compare_order(results);
    std::ostringstream tables;
    print_compare_tables(results, tables);
    tables << '\n' << elements_text(results.run()) << '\n';
    write_text(o.out / "summary.json", compare_summary(results));
    write_text(o.out / "metrics.csv", compare_csv(results));
    write_text(o.out / "tables.txt", tables.str());
    write_text(o.out / "timing.json", compare_timing(results));
    out << (o.json ? compare_summary(results) : tables.str());
    return 0;
}

}  // namespace msa::experiments::compare
