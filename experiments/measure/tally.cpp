// SPDX-License-Identifier: MIT
#include "experiments/measure/tally.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "core/io/dataset_reader.h"

namespace msa::experiments::measure {
namespace {

namespace fs = std::filesystem;

const std::string kTotals = "/state/totals";

void add(const analysis::State& more, analysis::State& to) {
    if (to.sums.empty() && to.counts.empty())
        to = {std::vector<double>(more.sums.size()), std::vector<int64_t>(more.counts.size())};
    analysis::require_state("totals", more, to.sums.size(), to.counts.size());
    std::ranges::transform(to.sums, more.sums, to.sums.begin(), std::plus<>());
    std::ranges::transform(to.counts, more.counts, to.counts.begin(), std::plus<>());
}

void append(const io::DatasetReader& part, const std::string& layer, Tally& to) {
    to.sums.append(part, layer);
    to.checks.join(stored_state(part, "/state/checks"));
    to.about = part.text("/state", "about");
    if (!part.has(kTotals)) return;
    for (const std::string& number : part.list(kTotals)) {
        const std::string group = kTotals + "/" + number;
        add(stored_state(part, group), to.totals[part.text(group, "name")]);
    }
}

}  // namespace

void Tally::write(io::UnitWriter& to, const std::string& layer) const {
    sums.write(to, layer);
    checks.write(to, layer);
}

void write_tally(const Tally& tally, const LayerForm& form, const LayerPart& part,
                 const Worker& worker, io::UnitWriter& to) {
    const std::string layer = std::to_string(part.layer.layer);
    tally.checks.warn(part.name(), worker.err);
    if (part.is_whole) {
        tally.write(to, layer);
        form.write(tally, layer, to);
        return;
    }
    tally.sums.write(to, layer);
    store_state(to, "/state/checks", tally.checks.state());
    to.attribute("/state", "about", tally.about);
    int64_t number = 0;
    for (const auto& [name, state] : tally.totals) {
        const std::string group = concat(kTotals, "/", number++);
        store_state(to, group, state);
        to.attribute(group, "name", name);
    }
}

void join_layer(const std::vector<fs::path>& parts, const LayerForm& form, io::UnitWriter& to) {
    join_rows(parts, form.rows, to);
    const io::DatasetReader first(parts.front());
    const std::string layer = first.list("/layers").at(0);
    Tally tally;
    for (const fs::path& file : parts) append(io::DatasetReader(file), layer, tally);
    for (const char* group : form.copied)
        if (first.has(group)) to.copy(first, group);
    tally.write(to, layer);
    form.write(tally, layer, to);
}

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

}  // namespace msa::experiments::measure
