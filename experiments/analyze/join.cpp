// SPDX-License-Identifier: MIT
#include "experiments/analyze/join.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/io/dataset_reader.h"
#include "experiments/analyze/sums.h"

namespace msa::experiments::analyze {
namespace {

namespace fs = std::filesystem;

/// The groups whose datasets have a row for each query.
constexpr const char* kRows[] = {"/queries", "/select", "/scores", "/outputs", "/mass"};

std::vector<io::DatasetInfo> row_datasets(const io::DatasetReader& part) {
    std::vector<io::DatasetInfo> all;
    for (const char* group : kRows)
        if (part.has(group)) std::ranges::copy(part.datasets(group), std::back_inserter(all));
    return all;
}

/// Every dataset of rows, those of the parts one behind the other.
void join_rows(const std::vector<fs::path>& parts, io::UnitWriter& to) {
    const io::DatasetReader first(parts.front());
    const std::vector<io::DatasetInfo> datasets = row_datasets(first);
    std::vector<int64_t> begins{0};  // of each part
    for (const fs::path& file : parts)
        begins.push_back(begins.back() + row_datasets(io::DatasetReader(file)).at(0).shape.at(0));
    for (const io::DatasetInfo& dataset : datasets)
        to.create_like(first, dataset.path, begins.back());
    for (size_t n = 0; n < parts.size(); ++n) {
        const io::DatasetReader part(parts[n]);
        for (const io::DatasetInfo& dataset : datasets) to.copy_rows(part, dataset.path, begins[n]);
    }
}

}  // namespace

void join_layer(const std::vector<fs::path>& parts, io::UnitWriter& to) {
    join_rows(parts, to);
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
