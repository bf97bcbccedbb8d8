// SPDX-License-Identifier: MIT
#include "experiments/analyze/layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/query_blocks.h"
#include "core/select/selector.h"
#include "core/tolerance.h"
#include "experiments/analyze/sums.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/block_intervals.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/measure/layer.h"

namespace msa::experiments::analyze {
namespace {

using analysis::RowKind;

constexpr int64_t kDeviceChunkBytes = int64_t{1} << 30;

/// A selector, whose sums have the same number.
struct Config {
    std::unique_ptr<Selector> selector;
    SelectionRule rule;
};

class LayerAnalysis {
public:
    LayerAnalysis(const AnalyzeOptions& options, const io::ActivationsReader& file,
                  const LayerPart& part, const std::vector<int64_t>& tokens, Backend& backend,
                  io::UnitWriter& to)
        : o_(options),
          tokens_(tokens),
          backend_(backend),
          to_(to),
          info_(part.layer),
          part_(part.queries),
          name_(std::to_string(info_.layer)),
          whole_(io::layer_problem(file.info(), info_, options.block_size)),
          all_(whole_.with_query_rows(tokens)),
          blocks_(analysis::query_blocks(
              all_, analysis::row_kinds(all_, options.rule.top_k, options.all_rows), kBlockTokens)),
          data_(file, info_, layer_elements(backend, info_, options.element)),
          view_(backend, data_),
          layer_(view_.selector_layer(whole_, options.seed)),
          sums_({whole_.query_heads, whole_.kv_heads, whole_.block_size, block_starts(whole_),
                 blocks_.count(), options.sink_tokens, options.oracle_without_local},
                Curve::points(whole_, options.rule)) {
        for (const std::string& selector : options.selectors) {
            std::unique_ptr<Selector> made = make_selector(selector);
            const SelectionRule rule = made->adjust(options.rule, 0);
            needs_logits_ |= made->needs().max_logit;
            made->prepare(layer_);
            sums_.selectors.emplace_back(
                sums_.sizes, SelectorAbout{made->label(), made->name() == "oracle", rule.top_k,
                                           Curve::points(whole_, rule)});
            configs_.push_back({std::move(made), rule});
        }
        needs_logits_ |= options.oracle_by_logit;
        create_datasets();
    }

    /// Queries whose buffers fit into the budget.
    int64_t chunk_queries() const {
        const int64_t row = std::max(whole_.blocks(), o_.rule.top_k);
        const int64_t per_block = 4 * whole_.kv_heads * row * 4;
        const int64_t per_head = 4 * whole_.query_heads * whole_.head_dim * 6;
        const int64_t bytes = backend_.space() == Space::host ? kChunkBytes : kDeviceChunkBytes;
        return std::clamp<int64_t>(bytes / (per_block + per_head), 1, 4096);
    }

    /// Of the analysed queries, some of this part.
    void add(QueryRange range);
    /// What is known at the end: the datasets of the layer, or of a part of it its sums.
    void write(bool is_whole) const;

private:
    void create_datasets();
    void add_config(const Config& config, SelectorSums& sums, const measure::ChunkView& queries,
                    QueryRange range, const std::vector<RowKind>& kinds, const Attention& dense,
                    View<const int32_t, 3> oracle_ids);
    void write_queries() const;
    void write_sizes() const;
    /// The row of a query in the datasets of this part.
    int64_t row(int64_t query) const { return query - part_.begin; }

    const AnalyzeOptions& o_;
    const std::vector<int64_t>& tokens_;
    Backend& backend_;
    io::UnitWriter& to_;
    const io::LayerInfo& info_;
    QueryRange part_;  // of the analysed queries
    std::string name_;
    Problem whole_, all_;  // all tokens as queries; the analysed queries
    analysis::QueryBlocks blocks_;
    measure::LayerData data_;
    measure::LayerView view_;
    SelectorLayer layer_;
    LayerSums sums_;
    std::vector<Config> configs_;
    bool needs_logits_ = false;
    double q_norm_ = 0;  // the largest of the analysed queries
};

void LayerAnalysis::create_datasets() {
    const int64_t n = part_.end - part_.begin;
    const io::Describe scores{"query,group,block", "1", "block scores"};
    for (const Config& config : configs_) {
        const std::string at = "/" + config.selector->label() + "/" + name_;
        to_.create<int32_t, 3>(
            "/select" + at + "/ids", {n, all_.kv_heads, config.rule.top_k},
            {"query,group,slot", "block of the sequence", config.selector->rule_in_full()});
        if (o_.dumps("scores"))
            to_.create<float, 3>("/scores" + at, {n, all_.kv_heads, all_.blocks()}, scores);
        if (o_.dumps("outputs")) {
            to_.create<float, 3>("/outputs" + at + "/out", {n, all_.query_heads, all_.head_dim},
                                 {"query,head,channel", "1", "output of sparse attention"});
            to_.create<float, 2>("/outputs" + at + "/lse", {n, all_.query_heads},
                                 {"query,head", "nats", "log of the sum of exponentials"});
        }
    }
    if (o_.dumps("outputs")) {
        const std::string at = "/outputs/dense/" + name_;
        to_.create<float, 3>(at + "/out", {n, all_.query_heads, all_.head_dim},
                             {"query,head,channel", "1", "output of dense attention"});
        to_.create<float, 2>(at + "/lse", {n, all_.query_heads},
                             {"query,head", "nats", "log of the sum of exponentials"});
    }
    if (o_.dumps("mass"))
        to_.create<float, 3>("/mass/" + name_, {n, all_.kv_heads, all_.blocks()},
                             {"query,group,block", "probability", "Main Branch probability P_b"});
}

void LayerAnalysis::add(QueryRange range) {
    const std::span<const int64_t> tokens(tokens_.data() + range.begin, tokens_.data() + range.end);
    const measure::ChunkView queries(layer_, view_, all_.with_queries(range), tokens,
                                     needs_logits_);
    const Problem& p = queries.problem;
    const SelectorChunk& chunk = queries.chunk;
    q_norm_ = std::max(q_norm_, largest_norm(host_view(queries.host_q)));
    const std::vector<RowKind> kinds = analysis::row_kinds(p, o_.rule.top_k, o_.all_rows);
    sums_.dense.rows.add(kinds);

    // The dense pass, shared by all selectors.
    const Attention dense = attend(backend_, p, queries.input(), {});
    const Attention mean_key = attend(backend_, p, queries.mean_key_input(), {});
    sums_.dense.sink.add(p, queries.host_q, data_.k, dense.lse, {});
    sums_.dense.entropy.add(p, queries.host_q, mean_key.out, dense.lse, view_.host_sinks);
    const View<const float, 3> mass = chunk.mass().host();
    sums_.dense.first_block.add(kinds, mass);
    if (o_.dumps("outputs")) {
        to_.write_rows<float, 3>("/outputs/dense/" + name_ + "/out", row(range.begin), dense.out);
        to_.write_rows<float, 2>("/outputs/dense/" + name_ + "/lse", row(range.begin), dense.lse);
    }
    if (o_.dumps("mass")) to_.write_rows<float, 3>("/mass/" + name_, row(range.begin), mass);

    const Tensor<int32_t, 3> oracle_ids = pick(
        backend_, p, o_.rule, (o_.oracle_by_logit ? chunk.max_logit() : chunk.mass()).floats());
    sums_.dense.oracle_curve.add(backend_, p, o_.rule, kinds, chunk.mass().floats(), mass);

    for (size_t n = 0; n < configs_.size(); ++n)
        add_config(configs_[n], sums_.selectors[n], queries, range, kinds, dense, oracle_ids);
}

void LayerAnalysis::add_config(const Config& config, SelectorSums& sums,
                               const measure::ChunkView& queries, QueryRange range,
                               const std::vector<RowKind>& kinds, const Attention& dense,
                               View<const int32_t, 3> oracle_ids) {
    const Problem& p = queries.problem;
    const SelectorChunk& chunk = queries.chunk;
    const std::string at = "/" + config.selector->label() + "/" + name_;
    const Mirror<3> scores = config.selector->score(layer_, chunk);
    const Tensor<int32_t, 3> ids = pick(backend_, p, config.rule, scores.floats());
    const View<const float, 3> mass = chunk.mass().host();

    Tensor<int32_t, 3> copy;
    if (backend_.space() != Space::host) copy = backend_.upload(ids.view());
    const View<const int32_t, 3> backend_ids = copy.data() != nullptr ? copy.view() : ids.view();
    const Attention sparse = attend(backend_, p, queries.input(), backend_ids);
    const Attention mean_key = attend(backend_, p, queries.mean_key_input(), backend_ids);

    sums.recall.add(p, kinds, ids, oracle_ids, mass);
    sums.block_means.add(
        std::span(blocks_.of_query).subspan(static_cast<size_t>(range.begin), kinds.size()),
        sums.recall.measure(p, kinds, ids, oracle_ids, mass));
    sums.output_error.add(kinds, sparse.out, dense.out);
    sums.sink.add(p, queries.host_q, data_.k, sparse.lse, ids);
    sums.entropy.add(p, queries.host_q, mean_key.out, sparse.lse, view_.host_sinks);
    sums.popularity.add(p, ids);
    sums.curve.add(backend_, p, config.rule, kinds, scores.floats(), mass);

    to_.write_rows<int32_t, 3>("/select" + at + "/ids", row(range.begin), ids);
    if (o_.dumps("scores"))
        to_.write_rows<float, 3>("/scores" + at, row(range.begin), scores.host());
    if (o_.dumps("outputs")) {
        to_.write_rows<float, 3>("/outputs" + at + "/out", row(range.begin), sparse.out);
        to_.write_rows<float, 2>("/outputs" + at + "/lse", row(range.begin), sparse.lse);
    }
}

void LayerAnalysis::write(bool is_whole) const {
    write_queries();
    write_sizes();
    write_query_blocks(to_, "/query_blocks/" + name_, blocks_);
    if (is_whole)
        sums_.write(to_, name_);
    else
        sums_.store(to_);
}

void LayerAnalysis::write_queries() const {
    const Problem p = all_.with_queries(part_);
    const Shape<1> shape{p.queries()};
    std::vector<int64_t> position;
    for (const KeyRange& seen : visible_keys(p)) position.push_back(seen.count - 1);
    const std::vector<int64_t> sequence = query_sequences(p);
    const std::string queries = "/queries/" + name_;
    to_.write<int64_t, 1>(queries + "/token", {tokens_.data() + part_.begin, shape},
                          {"query", "token", "packed token index of each analysed query"});
    to_.write<int64_t, 1>(queries + "/position", {position.data(), shape},
                          {"query", "token", "position in its sequence"});
    to_.write<int64_t, 1>(queries + "/sequence", {sequence.data(), shape},
                          {"query", "sequence", "sequence of each analysed query"});
}

void LayerAnalysis::write_sizes() const {
    write_layer(to_, info_, whole_,
                {{"block_size", whole_.block_size},
                 {"blocks", whole_.blocks()},
                 {"tokens", whole_.keys()}});
    const double logit = main_logit_bound(whole_, q_norm_, largest_norm(host_view(data_.k)));
    to_.attribute("/layers/" + name_, "mass_bound",
                  mass_bound(logit, static_cast<double>(whole_.batch.longest_keys())));
}

}  // namespace

std::vector<int64_t> choose_queries(const AnalyzeOptions& o, const std::vector<int64_t>& cu_seqlens,
                                    int64_t layer) {
    return sampled_queries(o, cu_seqlens, layer, o.seed);
}

void analyze_part(const AnalyzeOptions& o, const io::ActivationsReader& file, const LayerPart& part,
                  const Worker& worker, io::UnitWriter& to, int64_t chunk_queries) {
    const int64_t layer = part.layer.layer;
    const std::vector<int64_t> tokens = choose_queries(o, file.info().cu_seqlens, layer);
    LayerAnalysis analysis(o, file, part, tokens, worker.backend, to);
    if (part.queries.begin == 0 && part.layer.own_attention.contains("softcap"))
        worker.err << "note: layer " << layer
                   << " caps its logits: its entropies are not computed\n";
    const int64_t step = chunk_queries > 0 ? chunk_queries : analysis.chunk_queries();
    Progress progress(worker.progress, part.name(), part.queries.end - part.queries.begin,
                      "queries");
    for (int64_t begin = part.queries.begin; begin < part.queries.end; begin += step) {
        stop_if_asked();
        const QueryRange range{begin, std::min(begin + step, part.queries.end)};
        analysis.add(range);
        progress.advance(range.end - range.begin);
    }
    analysis.write(part.is_whole);
}

}  // namespace msa::experiments::analyze
