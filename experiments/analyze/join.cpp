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
    LayerSums sums = LayerSums::like(first);
    double mass_bound = 0;
    for (const fs::path& file : parts) {
        const io::DatasetReader part(file);
        sums.append(part, layer);
        mass_bound = std::max(mass_bound, part.number(sizes, "mass_bound"));
    }
    to.copy(first, sizes);
    to.attribute(sizes, "mass_bound", mass_bound);
    sums.write(to, layer);
}

}  // namespace msa::experiments::analyze
