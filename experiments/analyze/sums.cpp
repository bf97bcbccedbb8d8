// SPDX-License-Identifier: MIT
#include "experiments/analyze/sums.h"

#include <algorithm>
#include <iterator>

#include "analysis/metrics.h"
#include "experiments/driver/block_intervals.h"
#include "experiments/driver/metrics.h"
#include "experiments/driver/parts.h"

namespace msa::experiments::analyze {
namespace {

using analysis::RowKind;
using analysis::State;

/// Calls visit(name, sums) of each list of sums there is.
template <typename Sums, typename Visit>
void visit_dense(Sums& of, const Visit& visit) {
    visit("/state/rows", of.rows);
    visit("/state/oracle_curve", of.oracle_curve);
    visit("/state/sink", of.sink);
    visit("/state/entropy", of.entropy);
    visit("/state/first_block", of.first_block);
}

template <typename Sums, typename Visit>
void visit_selector(Sums& of, const std::string& group, const Visit& visit) {
    visit(group + "/curve", of.curve);
    visit(group + "/recall", of.recall);
    visit(group + "/output_error", of.output_error);
    visit(group + "/sink", of.sink);
    visit(group + "/entropy", of.entropy);
    visit(group + "/popularity", of.popularity);
    visit(group + "/block_means", of.block_means);
}

std::string selector_group(size_t number) { return text("/state/selectors/", number); }

template <typename Sums, typename Visit>
void visit_all(Sums& of, const Visit& visit) {
    visit_dense(of.dense, visit);
    for (size_t n = 0; n < of.selectors.size(); ++n)
        visit_selector(of.selectors[n], selector_group(n), visit);
}

void write_popularity(io::UnitWriter& to, const std::string& dataset, const LayerSizes& sizes,
                      const SelectorSums& of) {
    const View<const int64_t, 2> counts = of.popularity.queries_per_block();
    const analysis::Metric& metric = analysis::metric("queries_per_block");
    to.write<int64_t, 2>(dataset, counts, {metric.axis, metric.unit, metric.definition});
    double gini = 0, fill = 0;
    int64_t chunks = 0;
    for (int64_t r = 0; r < sizes.kv_heads; ++r) {
        gini += analysis::gini(counts[r]) / static_cast<double>(sizes.kv_heads);
        fill +=
            analysis::mma_fill(counts[r], sizes.group_size()) / static_cast<double>(sizes.kv_heads);
        chunks += analysis::chunks(counts[r], of.about.top_k, sizes.block_size);
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

void RowCounts::add(const std::vector<RowKind>& kinds) {
    counted += std::count(kinds.begin(), kinds.end(), RowKind::counted);
    trivial += std::count(kinds.begin(), kinds.end(), RowKind::trivial);
}

void RowCounts::join(const State& state) {
    analysis::require_state("rows", state, 0, 2);
    counted += state.counts[0];
    trivial += state.counts[1];
}

void FirstBlockMass::add(const std::vector<RowKind>& kinds, View<const float, 3> mass) {
    for (int64_t i = 0; i < mass.extent(0); ++i)
        if (kinds[static_cast<size_t>(i)] != RowKind::blind)
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

SelectorSums::SelectorSums(const LayerSizes& sizes, SelectorAbout of)
    : about(std::move(of)),
      curve(about.ks),
      recall(sizes.kv_heads, {sizes.oracle_without_local}),
      output_error(sizes.query_heads),
      sink(sizes.query_heads, sizes.sink_tokens),
      entropy(sizes.query_heads),
      popularity(sizes.kv_heads, sizes.first_block),
      block_means(sizes.query_blocks, std::ssize(analysis::Recall::kColumns) * sizes.kv_heads) {}

void SelectorSums::write(io::UnitWriter& to, const std::string& layer, const LayerSizes& sizes,
                         const RowCounts& rows) const {
    const std::string at = "/" + about.label + "/" + layer;
    Metrics metrics(to, "/metrics" + at);
    metrics.add("block_recall", recall.block_recall());
    metrics.add("score_recall", recall.score_recall());
    metrics.add("mass_kept", recall.mass_kept());
    metrics.add("oracle_mass", recall.oracle_mass());
    metrics.add_with_mean("output_error", output_error.relative(), output_error.mean());
    to.attribute("/metrics" + at, "dead_heads", output_error.dead_heads());
    metrics.add("sink_mass_sparse", sink.first_token());
    metrics.add("entropy_sparse", entropy.nats());
    count_rows(to, "/metrics" + at, rows);
    if (!about.is_oracle) curve.write(to, "/curves" + at);

    const auto& columns = analysis::Recall::kColumns;
    write_block_means(to, "/blocks" + at, block_means, sizes.query_blocks, sizes.kv_heads,
                      {std::begin(columns), std::end(columns)});
    write_popularity(to, "/popularity" + at + "/queries_per_block", sizes, *this);
}

void LayerSums::write(io::UnitWriter& to, const std::string& layer) const {
    dense.write(to, layer);
    for (const SelectorSums& selector : selectors) selector.write(to, layer, sizes, dense.rows);
}

void LayerSums::store(io::UnitWriter& to) const {
    for (const auto& [name, value] :
         {std::pair{"query_heads", sizes.query_heads}, std::pair{"kv_heads", sizes.kv_heads},
          std::pair{"block_size", sizes.block_size}, std::pair{"query_blocks", sizes.query_blocks},
          std::pair{"sink_tokens", sizes.sink_tokens},
          std::pair{"oracle_without_local", int64_t{sizes.oracle_without_local}}})
        to.attribute("/state", name, value);
    store_list(to, "/state/first_block_of", sizes.first_block);
    store_list(to, "/state/ks", dense.oracle_curve.ks());
    for (size_t n = 0; n < selectors.size(); ++n) {
        const std::string group = selector_group(n);
        const SelectorAbout& about = selectors[n].about;
        to.attribute(group, "label", about.label);
        to.attribute(group, "is_oracle", int64_t{about.is_oracle});
        to.attribute(group, "top_k", about.top_k);
        store_list(to, group + "/ks", about.ks);
    }
    visit_all(*this,
              [&](const std::string& name, const auto& of) { store_state(to, name, of.state()); });
}

LayerSums LayerSums::stored(const io::DatasetReader& from) {
    const auto size = [&](const char* name) { return stored_integer(from, "/state", name); };
    LayerSums sums({size("query_heads"), size("kv_heads"), size("block_size"),
                    stored_list(from, "/state/first_block_of"), size("query_blocks"),
                    size("sink_tokens"), size("oracle_without_local") != 0},
                   stored_list(from, "/state/ks"));
    for (const std::string& number : from.list("/state/selectors")) {
        const std::string group = "/state/selectors/" + number;
        sums.selectors.emplace_back(
            sums.sizes,
            SelectorAbout{from.text(group, "label"), stored_integer(from, group, "is_oracle") != 0,
                          stored_integer(from, group, "top_k"), stored_list(from, group + "/ks")});
    }
    sums.join(from);
    return sums;
}

void LayerSums::join(const io::DatasetReader& from) {
    visit_all(*this, [&](const std::string& name, auto& of) { of.join(stored_state(from, name)); });
}

}  // namespace msa::experiments::analyze
