// SPDX-License-Identifier: MIT
#include <string>

#include "core/io/dataset_reader.h"
#include "experiments/compare/sums.h"
#include "experiments/driver/parts.h"
#include "experiments/programs.h"

namespace msa::experiments::compare {
namespace {

/// The groups whose datasets have a row for each stored query.
constexpr const char* kRows[] = {"/queries", "/select"};

}  // namespace

void join_layer(const std::vector<std::filesystem::path>& parts, io::UnitWriter& to) {
    join_rows(parts, kRows, to);
    const io::DatasetReader first(parts.front());
    const std::string layer = first.list("/layers").at(0);
    LayerSums sums;
    for (const std::filesystem::path& part : parts) sums.append(io::DatasetReader(part), layer);
    for (const char* group : {"/layers", "/metrics"})
        if (first.has(group)) to.copy(first, group);
    sums.write(to, layer);
}

}  // namespace msa::experiments::compare
