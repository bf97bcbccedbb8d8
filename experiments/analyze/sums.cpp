// SPDX-License-Identifier: MIT
#include "experiments/analyze/sums.h"

#include <algorithm>

#include "analysis/metrics.h"
#include "experiments/driver/metrics.h"
#include "experiments/driver/parts.h"

namespace msa::experiments::analyze {
namespace {

using analysis::RowKind;
using analysis::State;

/// Calls visit(name, sums) of each accumulator.
template <typename Sums, typename Visit>
void visit_dense(Sums& of, const Visit& visit) {
    visit("dense/rows", of.rows);
    visit("dense/oracle_curve", of.oracle_curve);
    visit("dense/sink", of.sink);
    visit("dense/entropy", of.entropy);
    visit("dense/first_block", of.first_block);
}

template <typename Sums, typename Visit>
void visit_selector(Sums& of, const std::string& label, const Visit& visit) {
    visit(label + "/curve", of.curve);
    visit(label + "/recall", of.recall);
    visit(label + "/output_error", of.output_error);
    visit(label + "/sink", of.sink);
    visit(label + "/entropy", of.entropy);
}

std::string selector_group(size_t number) { return text("/state/selectors/", number); }

void write_popularity(io::UnitWriter& to, const std::string& dataset, const LayerSizes& sizes,
                      const SelectorAbout& about, const analysis::Popularity& of) {
    const View<const int64_t, 2> counts = of.queries_per_block();
    const analysis::Metric& metric = analysis::metric("queries_per_block");
    to.write<int64_t, 2>(dataset, counts, {metric.axis, metric.unit, metric.definition});
    double gini = 0, fill = 0;
    int64_t chunks = 0;
    for (int64_t r = 0; r < sizes.kv_heads; ++r) {
        gini += analysis::gini(counts[r]) / static_cast<double>(sizes.kv_heads);
        fill +=
            analysis::mma_fill(counts[r], sizes.group_size()) / static_cast<double>(sizes.kv_heads);
        chunks += analysis::chunks(counts[r], about.top_k, sizes.block_size);
    }
    to.attribute(dataset, "gini", gini);
    to.attribute(dataset, "mma_fill", fill);
    to.attribute(dataset, "chunks", chunks);
}

void count_rows(io::UnitWriter& to, const std::string& group, const RowCounts& rows) {
    to.attribute(group, "rows_counted", rows.counted);
    to.attribute(group, "rows_trivial", rows.trivial);
}

}  // namespace

void RowCounts::add(std::span<const RowKind> kinds) {
    counted += std::count(kinds.begin(), kinds.end(), RowKind::counted);
    trivial += std::count(kinds.begin(), kinds.end(), RowKind::trivial);
}

void RowCounts::join(const State& state) {
    analysis::require_state("rows", state, 0, 2);
    counted += state.counts[0];
    trivial += state.counts[1];
}

void FirstBlockMass::add(std::span<const RowKind> kinds, View<const float, 3> mass) {
    for (int64_t i = 0; i < mass.extent(0); ++i)
        if (kinds[static_cast<size_t>(i)] != RowKind::without_keys)
            for (int64_t r = 0; r < mass.extent(1); ++r)
                means[static_cast<size_t>(r)].add(mass(i, r, 0));
}

DenseSums::DenseSums(const LayerSizes& sizes, std::vector<int64_t> ks)
    : oracle_curve(std::move(ks)),
      sink(sizes.query_heads, sizes.sink_tokens),
      entropy(sizes.query_heads),
      first_block{std::vector<analysis::Mean>(static_cast<size_t>(sizes.kv_heads))} {}

void DenseSums::write(io::UnitWriter& to, const std::string& layer) const {
    const std::string group = "/metrics/dense/" + layer;
    Metrics metrics(to, group);
    metrics.add("sink_mass_dense", sink.first_token(), "sink_mass");
    metrics.add("sink_mass_first_tokens", sink.first_tokens());
    metrics.add("sink_mass_first_block", analysis::values(first_block.means));
    metrics.add("entropy_dense", entropy.nats(), "entropy");
    count_rows(to, group, rows);
    oracle_curve.write(to, "/curves/oracle/" + layer);
}

SelectorSums::SelectorSums(const LayerSizes& sizes, const SelectorAbout& of)
    : curve(of.ks),
      recall(sizes.kv_heads, {sizes.oracle_without_local}),
      output_error(sizes.query_heads),
      sink(sizes.query_heads, sizes.sink_tokens),
      entropy(sizes.query_heads) {}

measure::States states_of(const DenseSums& of) {
    measure::States states;
    visit_dense(of, [&](const std::string& name, const auto& sums) {
        states.emplace_back(name, sums.state());
    });
    return states;
}

measure::States states_of(const SelectorSums& of, const std::string& label) {
    measure::States states;
    visit_selector(of, label, [&](const std::string& name, const auto& sums) {
        states.emplace_back(name, sums.state());
    });
    return states;
}

void LayerSums::add_selector(SelectorAbout about) {
    popularity.emplace_back(sizes.kv_heads, sizes.first_block);
    selectors.push_back(std::move(about));
}

void LayerSums::write(io::UnitWriter& to, const std::string& layer) const {
    sums.write(to, layer);
    const auto total = [&](const std::string& name, auto& of) { sums.total(name, of); };
    DenseSums dense(sizes, oracle_ks);
    visit_dense(dense, total);
    dense.write(to, layer);
    for (size_t n = 0; n < selectors.size(); ++n) {
        const SelectorAbout& about = selectors[n];
        SelectorSums of(sizes, about);
        visit_selector(of, about.label, total);
        const std::string at = "/" + about.label + "/" + layer;
        Metrics metrics(to, "/metrics" + at);
        metrics.add("block_recall", of.recall.block_recall());
        metrics.add("score_recall", of.recall.score_recall());
        metrics.add("mass_kept", of.recall.mass_kept());
        metrics.add("oracle_mass", of.recall.oracle_mass());
        metrics.add_with_mean("output_error", of.output_error.relative(), of.output_error.mean());
        to.attribute("/metrics" + at, "dead_heads", of.output_error.dead_heads());
        metrics.add("sink_mass_sparse", of.sink.first_token());
        metrics.add("entropy_sparse", of.entropy.nats());
        count_rows(to, "/metrics" + at, dense.rows);
        if (!about.is_oracle) of.curve.write(to, "/curves" + at);
        write_popularity(to, "/popularity" + at + "/queries_per_block", sizes, about,
                         popularity[n]);
    }
    checks.write(to, layer);
}

void LayerSums::store(io::UnitWriter& to, const std::string& layer) const {
    sums.write(to, layer);
    for (const auto& [name, value] :
         {std::pair{"query_heads", sizes.query_heads}, std::pair{"kv_heads", sizes.kv_heads},
          std::pair{"block_size", sizes.block_size}, std::pair{"sink_tokens", sizes.sink_tokens},
          std::pair{"oracle_without_local", int64_t{sizes.oracle_without_local}}})
        to.attribute("/state", name, value);
    store_list(to, "/state/first_block_of", sizes.first_block);
    store_list(to, "/state/ks", oracle_ks);
    for (size_t n = 0; n < selectors.size(); ++n) {
        const std::string group = selector_group(n);
        to.attribute(group, "label", selectors[n].label);
        to.attribute(group, "is_oracle", int64_t{selectors[n].is_oracle});
        to.attribute(group, "top_k", selectors[n].top_k);
        store_list(to, group + "/ks", selectors[n].ks);
        store_state(to, group + "/popularity", popularity[n].state());
    }
    store_state(to, "/state/checks", checks.state());
}

LayerSums LayerSums::like(const io::DatasetReader& part) {
    const auto size = [&](const char* name) { return stored_integer(part, "/state", name); };
    LayerSums sums({size("query_heads"), size("kv_heads"), size("block_size"),
                    stored_list(part, "/state/first_block_of"), size("sink_tokens"),
                    size("oracle_without_local") != 0},
                   stored_list(part, "/state/ks"));
    for (const std::string& number : part.list("/state/selectors")) {
        const std::string group = "/state/selectors/" + number;
        sums.add_selector(
            SelectorAbout{part.text(group, "label"), stored_integer(part, group, "is_oracle") != 0,
                          stored_integer(part, group, "top_k"), stored_list(part, group + "/ks")});
    }
    return sums;
}

void LayerSums::append(const io::DatasetReader& part, const std::string& layer) {
    sums.append(part, layer);
    for (size_t n = 0; n < selectors.size(); ++n)
        popularity[n].join(stored_state(part, selector_group(n) + "/popularity"));
    checks.join(stored_state(part, "/state/checks"));
}

}  // namespace msa::experiments::analyze
