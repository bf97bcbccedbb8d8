// SPDX-License-Identifier: MIT
#include "experiments/analyze/layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "analysis/entropy.h"
#include "analysis/metrics.h"
#include "analysis/output_error.h"
#include "analysis/popularity.h"
#include "analysis/query_blocks.h"
#include "analysis/recall.h"
#include "analysis/sink.h"
#include "core/select/selector.h"
#include "core/tolerance.h"
#include "experiments/analyze/curve.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/block_intervals.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/metrics.h"
#include "experiments/driver/own_attention.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"

namespace msa::experiments::analyze {
namespace {

using analysis::RowKind;
using io::Field;

constexpr int64_t kDeviceChunkBytes = int64_t{1} << 30;

/// Everything that is kept of one selector while the chunks go by.
struct Config {
    std::unique_ptr<Selector> selector;
    SelectionRule rule;
    Curve curve;
    analysis::Recall recall;
    analysis::OutputError output_error;
    analysis::SinkMass sink;
    analysis::Entropy entropy;
    analysis::Popularity popularity;
    analysis::BlockMeans block_means;  // of the recalls
};

class LayerAnalysis {
public:
    LayerAnalysis(const AnalyzeOptions& options, const io::ActivationsReader& file,
                  const io::LayerInfo& info, const std::vector<int64_t>& tokens, Backend& backend,
                  io::UnitWriter& to)
        : o_(options),
          tokens_(tokens),
          backend_(backend),
          to_(to),
          info_(info),
          name_(std::to_string(info.layer)),
          whole_(io::layer_problem(file.info(), info, options.block_size)),
          all_(whole_.with_query_rows(tokens)),
          blocks_(analysis::query_blocks(
              all_, analysis::row_kinds(all_, options.rule.top_k, options.all_rows), kBlockTokens)),
          elements_(layer_elements(backend, info, options.element)),
          reader_(file, info, elements_),
          host_k_(reader_.all(Field::k)),
          host_v_(reader_.all(Field::v)),
          host_index_k_(reader_.all(Field::index_k)),
          k_(backend, host_view(host_k_), elements_.main.computed),
          v_(backend, host_view(host_v_), elements_.main.computed),
          index_k_(backend, rows_of(host_index_k_), elements_.index.computed),
          host_sinks_(io::layer_sinks(info)),
          sinks_(backend, host_sinks_),
          layer_{.problem = whole_,
                 .backend = backend,
                 .k = {backend, k_.view(), host_view(host_k_)},
                 .index_k = host_index_k_.data() == nullptr ? Mirror<2>()
                                                            : Mirror<2>(backend, index_k_.view()),
                 .seed = options.seed,
                 .read_learned = reader_.learned(),
                 .sinks = sinks_.view()},
          oracle_curve_(whole_, options.rule),
          dense_sink_(whole_.query_heads, options.sink_tokens),
          dense_entropy_(whole_.query_heads),
          first_block_(static_cast<size_t>(whole_.kv_heads)) {
        for (const std::string& selector : options.selectors) {
            std::unique_ptr<Selector> made = make_selector(selector);
            const SelectionRule rule = made->adjust(options.rule, 0);
            needs_logits_ |= made->needs().max_logit;
            made->prepare(layer_);
            configs_.push_back(
                {std::move(made),
                 rule,
                 Curve(whole_, rule),
                 analysis::Recall(whole_.kv_heads, {options.oracle_without_local}),
                 analysis::OutputError(whole_.query_heads),
                 analysis::SinkMass(whole_.query_heads, options.sink_tokens),
                 analysis::Entropy(whole_.query_heads),
                 analysis::Popularity(whole_),
                 {blocks_.count(), std::ssize(analysis::Recall::kColumns) * whole_.kv_heads}});
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

    void add(QueryRange range);
    void write() const;

private:
    void write_popularity(const Config& config, const std::string& dataset) const;
    void create_datasets();
    void add_config(Config& config, const SelectorChunk& chunk, In<3> q, QueryRange range,
                    const std::vector<RowKind>& kinds, const Attention& dense,
                    View<const int32_t, 3> oracle_ids);
    void write_queries() const;
    void write_sizes() const;
    void write_dense() const;
    void write_config(const Config& config) const;
    void count_rows(const std::string& group) const;

    const AnalyzeOptions& o_;
    const std::vector<int64_t>& tokens_;
    Backend& backend_;
    io::UnitWriter& to_;
    const io::LayerInfo& info_;
    std::string name_;
    Problem whole_, all_;  // all tokens as queries; the analysed queries
    analysis::QueryBlocks blocks_;
    LayerElements elements_;
    LayerReader reader_;
    Tensor<float, 3> host_k_, host_v_, host_index_k_;
    Operand<3> k_, v_;
    Operand<2> index_k_;
    Tensor<float, 1> host_sinks_;
    Sinks sinks_;
    SelectorLayer layer_;
    Curve oracle_curve_;
    analysis::SinkMass dense_sink_;
    analysis::Entropy dense_entropy_;
    std::vector<analysis::Mean> first_block_;
    std::vector<Config> configs_;
    bool needs_logits_ = false;
    int64_t counted_ = 0, trivial_ = 0;
    double q_norm_ = 0;  // the largest of the analysed queries
};

void LayerAnalysis::create_datasets() {
    const int64_t n = all_.queries();
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
    const Problem p = all_.with_queries(range);
    const std::span<const int64_t> tokens(tokens_.data() + range.begin, tokens_.data() + range.end);
    const Tensor<float, 3> host_q = reader_.rows(Field::q, tokens);
    const Operand<3> q(backend_, host_view(host_q), elements_.main.computed);
    q_norm_ = std::max(q_norm_, largest_norm(host_q.view()));
    const std::vector<RowKind> kinds = analysis::row_kinds(p, o_.rule.top_k, o_.all_rows);
    counted_ += std::count(kinds.begin(), kinds.end(), RowKind::counted);
    trivial_ += std::count(kinds.begin(), kinds.end(), RowKind::trivial);

    // The dense pass, shared by all selectors.
    const Attention dense = attend(backend_, p, {q, k_, v_, sinks_}, {});
    const Attention mean_key = attend(backend_, p, {q, k_, k_, sinks_}, {});
    dense_sink_.add(p, host_q, host_k_, dense.lse, {});
    dense_entropy_.add(p, host_q, mean_key.out, dense.lse, host_sinks_);
    const Tensor<float, 3> host_index_q = reader_.rows(Field::index_q, tokens);
    const Operand<3> index_q(backend_, host_view(host_index_q), elements_.index.computed);
    const SelectorChunk chunk(
        layer_, p, tokens, {backend_, q.view(), host_view(host_q)},
        host_index_k_.data() == nullptr ? Mirror<3>() : Mirror<3>(backend_, index_q.view()),
        needs_logits_);
    const View<const float, 3> mass = chunk.mass().host();
    for (int64_t i = 0; i < p.queries(); ++i)
        if (kinds[static_cast<size_t>(i)] != RowKind::blind)
            for (int64_t r = 0; r < p.kv_heads; ++r)
                first_block_[static_cast<size_t>(r)].add(mass(i, r, 0));
    if (o_.dumps("outputs")) {
        to_.write_rows<float, 3>("/outputs/dense/" + name_ + "/out", range.begin, dense.out);
        to_.write_rows<float, 2>("/outputs/dense/" + name_ + "/lse", range.begin, dense.lse);
    }
    if (o_.dumps("mass")) to_.write_rows<float, 3>("/mass/" + name_, range.begin, mass);

    const Tensor<int32_t, 3> oracle_ids = pick(
        backend_, p, o_.rule, (o_.oracle_by_logit ? chunk.max_logit() : chunk.mass()).floats());
    oracle_curve_.add(backend_, p, o_.rule, kinds, chunk.mass().floats(), mass);

    for (Config& config : configs_) add_config(config, chunk, q, range, kinds, dense, oracle_ids);
}

void LayerAnalysis::add_config(Config& config, const SelectorChunk& chunk, In<3> q,
                               QueryRange range, const std::vector<RowKind>& kinds,
                               const Attention& dense, View<const int32_t, 3> oracle_ids) {
    const Problem& p = chunk.problem;
    const std::string at = "/" + config.selector->label() + "/" + name_;
    const Mirror<3> scores = config.selector->score(layer_, chunk);
    const Tensor<int32_t, 3> ids = pick(backend_, p, config.rule, scores.floats());
    const View<const float, 3> mass = chunk.mass().host(), host_q = chunk.q.host();

    Tensor<int32_t, 3> copy;
    if (backend_.space() != Space::host) copy = backend_.upload(ids.view());
    const View<const int32_t, 3> backend_ids = copy.data() != nullptr ? copy.view() : ids.view();
    const Attention sparse = attend(backend_, p, {q, k_, v_, sinks_}, backend_ids);
    const Attention mean_key = attend(backend_, p, {q, k_, k_, sinks_}, backend_ids);

    config.recall.add(p, kinds, ids, oracle_ids, mass);
    config.block_means.add(
        std::span(blocks_.of_query).subspan(static_cast<size_t>(range.begin), kinds.size()),
        config.recall.measure(p, kinds, ids, oracle_ids, mass));
    config.output_error.add(kinds, sparse.out, dense.out);
    config.sink.add(p, host_q, host_k_, sparse.lse, ids);
    config.entropy.add(p, host_q, mean_key.out, sparse.lse, host_sinks_);
    config.popularity.add(p, ids);
    config.curve.add(backend_, p, config.rule, kinds, scores.floats(), mass);

    to_.write_rows<int32_t, 3>("/select" + at + "/ids", range.begin, ids);
    if (o_.dumps("scores")) to_.write_rows<float, 3>("/scores" + at, range.begin, scores.host());
    if (o_.dumps("outputs")) {
        to_.write_rows<float, 3>("/outputs" + at + "/out", range.begin, sparse.out);
        to_.write_rows<float, 2>("/outputs" + at + "/lse", range.begin, sparse.lse);
    }
}

void LayerAnalysis::write() const {
    write_queries();
    write_sizes();
    write_dense();
    write_query_blocks(to_, "/query_blocks/" + name_, blocks_);
    for (const Config& config : configs_) write_config(config);
}

void LayerAnalysis::write_queries() const {
    const auto n = static_cast<int64_t>(tokens_.size());
    std::vector<int64_t> position;
    for (const KeyRange& seen : visible_keys(all_)) position.push_back(seen.count - 1);
    const std::vector<int64_t> sequence = query_sequences(all_);
    const std::string queries = "/queries/" + name_;
    to_.write<int64_t, 1>(queries + "/token", {tokens_.data(), {n}},
                          {"query", "token", "packed token index of each analysed query"});
    to_.write<int64_t, 1>(queries + "/position", {position.data(), {n}},
                          {"query", "token", "position in its sequence"});
    to_.write<int64_t, 1>(queries + "/sequence", {sequence.data(), {n}},
                          {"query", "sequence", "sequence of each analysed query"});
}

void LayerAnalysis::write_sizes() const {
    write_layer(to_, info_, whole_,
                {{"block_size", whole_.block_size},
                 {"blocks", whole_.blocks()},
                 {"tokens", whole_.keys()}});
    const double logit = main_logit_bound(whole_, q_norm_, largest_norm(host_k_.view()));
    to_.attribute("/layers/" + name_, "mass_bound",
                  mass_bound(logit, static_cast<double>(whole_.batch.longest_keys())));
}

void LayerAnalysis::count_rows(const std::string& group) const {
    to_.attribute(group, "rows_counted", counted_);
    to_.attribute(group, "rows_trivial", trivial_);
}

void LayerAnalysis::write_dense() const {
    const std::string dense_group = "/metrics/dense/" + name_;
    Metrics dense(to_, dense_group);
    dense.add("sink_mass_dense", dense_sink_.first_token(), "sink_mass");
    dense.add("sink_mass_first_tokens", dense_sink_.first_tokens());
    dense.add("sink_mass_first_block", analysis::values(first_block_));
    dense.add("entropy_dense", dense_entropy_.nats(), "entropy");
    count_rows(dense_group);
    oracle_curve_.write(to_, "/curves/oracle/" + name_);
}

void LayerAnalysis::write_config(const Config& config) const {
    const std::string at = "/" + config.selector->label() + "/" + name_;
    Metrics metrics(to_, "/metrics" + at);
    metrics.add("block_recall", config.recall.block_recall());
    metrics.add("score_recall", config.recall.score_recall());
    metrics.add("mass_kept", config.recall.mass_kept());
    metrics.add("oracle_mass", config.recall.oracle_mass());
    metrics.add_with_mean("output_error", config.output_error.relative(),
                          config.output_error.mean());
    to_.attribute("/metrics" + at, "dead_heads", config.output_error.dead_heads());
    metrics.add("sink_mass_sparse", config.sink.first_token());
    metrics.add("entropy_sparse", config.entropy.nats());
    count_rows("/metrics" + at);
    if (config.selector->name() != "oracle") config.curve.write(to_, "/curves" + at);

    const auto& columns = analysis::Recall::kColumns;
    write_block_means(to_, "/blocks" + at, config.block_means, blocks_.count(), whole_.kv_heads,
                      {std::begin(columns), std::end(columns)});
    write_popularity(config, "/popularity" + at + "/queries_per_block");
}

void LayerAnalysis::write_popularity(const Config& config, const std::string& dataset) const {
    const View<const int64_t, 2> counts = config.popularity.queries_per_block();
    const analysis::Metric& of = analysis::metric("queries_per_block");
    to_.write<int64_t, 2>(dataset, counts, {of.axis, of.unit, of.definition});
    double gini = 0, fill = 0;
    int64_t chunks = 0;
    for (int64_t r = 0; r < whole_.kv_heads; ++r) {
        gini += analysis::gini(counts[r]) / static_cast<double>(whole_.kv_heads);
        fill += analysis::mma_fill(counts[r], whole_.group_size()) /
                static_cast<double>(whole_.kv_heads);
        chunks += analysis::chunks(counts[r], config.rule.top_k, whole_.block_size);
    }
    to_.attribute(dataset, "gini", gini);
    to_.attribute(dataset, "mma_fill", fill);
    to_.attribute(dataset, "chunks", chunks);
}

}  // namespace

std::vector<int64_t> choose_queries(const AnalyzeOptions& o, const std::vector<int64_t>& cu_seqlens,
                                    int64_t layer) {
    return sampled_queries(o, cu_seqlens, layer, o.seed);
}

void analyze_layer(const AnalyzeOptions& o, const io::ActivationsReader& file,
                   const io::LayerInfo& layer, const std::vector<int64_t>& tokens,
                   const Worker& worker, io::UnitWriter& to, int64_t chunk_queries) {
    LayerAnalysis analysis(o, file, layer, tokens, worker.backend, to);
    if (layer.own_attention.contains("softcap"))
        worker.err << "note: layer " << layer.layer
                   << " caps its logits: its entropies are not computed\n";
    const auto queries = static_cast<int64_t>(tokens.size());
    const int64_t step = chunk_queries > 0 ? chunk_queries : analysis.chunk_queries();
    Progress progress(worker.progress, text("layer ", layer.layer), queries, "queries");
    for (int64_t begin = 0; begin < queries; begin += step) {
        stop_if_asked();
        const QueryRange range{begin, std::min(begin + step, queries)};
        analysis.add(range);
        progress.advance(range.end - range.begin);
    }
    analysis.write();
}

}  // namespace msa::experiments::analyze
