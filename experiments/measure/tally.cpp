// SPDX-License-Identifier: MIT
#include "experiments/measure/tally.h"

#include <algorithm>
#include <functional>

#include "core/io/dataset_reader.h"
#include "experiments/driver/parts.h"

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

}  // namespace msa::experiments::measure
