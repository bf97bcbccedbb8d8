// SPDX-License-Identifier: MIT
#include <algorithm>
#include <string>

#include "core/io/dataset_reader.h"
#include "experiments/analyze/sums.h"
#include "experiments/driver/parts.h"
#include "experiments/programs.h"

namespace msa::experiments::analyze {
namespace {

namespace fs = std::filesystem;

/// The groups whose datasets have a row for each query.
constexpr const char* kRows[] = {"/queries", "/select", "/scores", "/outputs", "/mass"};

}  // namespace

void join_layer(const std::vector<fs::path>& parts, io::UnitWriter& to) {
    join_rows(parts, kRows, to);
    const io::DatasetReader first(parts.front());
    const std::string layer = first.list("/layers").at(0), sizes = "/layers/" + layer;
    LayerSums sums = LayerSums::stored(first);
    double mass_bound = first.number(sizes, "mass_bound");
    for (size_t n = 1; n < parts.size(); ++n) {
        const io::DatasetReader part(parts[n]);
        sums.join(part);
        mass_bound = std::max(mass_bound, part.number(sizes, "mass_bound"));
    }
    to.copy(first, sizes);
    to.attribute(sizes, "mass_bound", mass_bound);
    if (const std::string blocks = "/query_blocks/" + layer; first.has(blocks))
        to.copy(first, blocks);
    sums.write(to, layer);
}

}  // namespace msa::experiments::analyze
