// SPDX-License-Identifier: MIT
#include "experiments/driver/parts.h"

#include <algorithm>
#include <iterator>

namespace msa::experiments {
namespace {

namespace fs = std::filesystem;

std::vector<io::DatasetInfo> row_datasets(const io::DatasetReader& part,
                                          std::span<const char* const> groups) {
    std::vector<io::DatasetInfo> all;
    for (const char* group : groups)
        if (part.has(group)) std::ranges::copy(part.datasets(group), std::back_inserter(all));
    return all;
}

}  // namespace

void join_rows(const std::vector<fs::path>& parts, std::span<const char* const> groups,
               io::UnitWriter& to) {
    const io::DatasetReader first(parts.front());
    const std::vector<io::DatasetInfo> datasets = row_datasets(first, groups);
    if (datasets.empty()) return;
    std::vector<int64_t> begins{0};  // of each part
    for (const fs::path& file : parts)
        begins.push_back(begins.back() +
                         row_datasets(io::DatasetReader(file), groups).at(0).shape.at(0));
    for (const io::DatasetInfo& dataset : datasets)
        to.create_like(first, dataset.path, begins.back());
    for (size_t n = 0; n < parts.size(); ++n) {
        const io::DatasetReader part(parts[n]);
        for (const io::DatasetInfo& dataset : datasets) to.copy_rows(part, dataset.path, begins[n]);
    }
}

void store_list(io::UnitWriter& to, const std::string& dataset,
                const std::vector<int64_t>& values) {
    to.write<int64_t, 1>(dataset, {values.data(), {std::ssize(values)}}, {"number", "", ""});
}

std::vector<int64_t> stored_list(const io::DatasetReader& from, const std::string& dataset) {
    const Tensor<int64_t, 1> values = from.read<int64_t, 1>(dataset);
    return {values.data(), values.data() + values.size()};
}

void store_state(io::UnitWriter& to, const std::string& group, const analysis::State& state) {
    to.write<double, 1>(group + "/sums", {state.sums.data(), {std::ssize(state.sums)}},
                        {"number", "", ""});
    store_list(to, group + "/counts", state.counts);
}

analysis::State stored_state(const io::DatasetReader& from, const std::string& group) {
    const Tensor<double, 1> sums = from.read<double, 1>(group + "/sums");
    return {{sums.data(), sums.data() + sums.size()}, stored_list(from, group + "/counts")};
}

}  // namespace msa::experiments
