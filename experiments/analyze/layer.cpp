// SPDX-License-Identifier: MIT
#include "experiments/analyze/layer.h"

#include <algorithm>

#include "core/select/selector.h"
#include "core/tolerance.h"
#include "experiments/analyze/sums.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/measure/measured_chunk.h"

namespace msa::experiments::analyze {
namespace {

/// A selector, whose sums have the same number.
struct Config {
    std::unique_ptr<Selector> selector;
    SelectionRule rule;
};

class LayerAnalysis {
public:
    LayerAnalysis(const AnalyzeOptions& options, const io::ActivationsReader& file,
                  const LayerPart& part, const measure::LayerQueries& queries, Backend& backend,
                  io::UnitWriter& to)
        : o_(options),
          queries_(queries),
          backend_(backend),
          to_(to),
          info_(part.layer),
          part_(part.queries),
          name_(std::to_string(info_.layer)),
          whole_(io::layer_problem(file.info(), info_, options.block_size)),
          all_(whole_.with_query_rows(queries.tokens)),
          data_(file, info_, layer_elements(backend, info_, options.element)),
          view_(backend, data_),
          layer_(view_.selector_layer(whole_, options.seed)),
          sums_({whole_.query_heads, whole_.kv_heads, whole_.block_size, block_starts(whole_),
                 options.sink_tokens, options.oracle_without_local},
                Curve::points(whole_, options.rule)),
          k_norm_(largest_norm(host_view(data_.k))) {
        sums_.sums = measure::Sums(queries.blocks, part.queries);
        for (const std::string& selector : options.selectors) {
            std::unique_ptr<Selector> made = make_selector(selector);
            const SelectionRule rule = made->adjust(options.rule, 0);
            needs_logits_ |= made->needs().max_logit;
            made->prepare(layer_);
            sums_.add_selector(
                {made->label(), made->name() == "oracle", rule.top_k, Curve::points(whole_, rule)});
            configs_.push_back({std::move(made), rule});
        }
        needs_logits_ |= options.oracle_by_logit;
        create_datasets();
    }

    int64_t chunk_queries() const { return measure::chunk_queries(backend_, whole_, 4, 6); }
    /// Of the analysed queries, some of this part.
    void add(QueryRange range);
    /// What is known at the end: the datasets of the layer, or of a part of it its sums.
    void write(const LayerPart& part, std::ostream& err) const;

private:
    void create_datasets();
    void add_dense(const measure::MeasuredChunk& chunk);
    void add_config(size_t number, const measure::MeasuredChunk& chunk, QueryRange range,
                    View<const int32_t, 3> oracle_ids);
    void write_queries() const;
    void write_sizes() const;
    /// The row of a query in the datasets of this part.
    int64_t row(int64_t query) const { return query - part_.begin; }

    const AnalyzeOptions& o_;
    const measure::LayerQueries& queries_;
    Backend& backend_;
    io::UnitWriter& to_;
    const io::LayerInfo& info_;
    QueryRange part_;  // of the analysed queries
    std::string name_;
    Problem whole_, all_;  // all tokens as queries; the analysed queries
    measure::LayerData data_;
    measure::LayerView view_;
    SelectorLayer layer_;
    LayerSums sums_;
    std::vector<Config> configs_;
    bool needs_logits_ = false;
    double k_norm_;      // longest key
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
    const measure::ChunkView queries(layer_, view_, all_.with_queries(range),
                                     queries_.tokens_of(range), needs_logits_);
    const Attention dense = queries.dense();
    const measure::MeasuredChunk chunk(queries, queries_, range, k_norm_, dense);
    q_norm_ = std::max(q_norm_, largest_norm(host_view(queries.host_q)));
    sums_.checks.begin(chunk.rows(), queries.tokens);
    add_dense(chunk);
    if (o_.dumps("outputs")) {
        const std::string at = "/outputs/dense/" + name_;
        to_.write_rows<float, 3>(at + "/out", row(range.begin), chunk.dense.out);
        to_.write_rows<float, 2>(at + "/lse", row(range.begin), chunk.dense.lse);
    }
    if (o_.dumps("mass")) to_.write_rows<float, 3>("/mass/" + name_, row(range.begin), chunk.mass);
    const SelectorChunk& of = queries.chunk;
    const Tensor<int32_t, 3> oracle_ids =
        pick(backend_, chunk.problem, o_.rule,
             (o_.oracle_by_logit ? of.max_logit() : of.mass()).floats());
    for (size_t n = 0; n < configs_.size(); ++n) add_config(n, chunk, range, oracle_ids);
}

/// The dense pass, shared by all selectors.
void LayerAnalysis::add_dense(const measure::MeasuredChunk& chunk) {
    const measure::ChunkView& queries = chunk.queries;
    const Attention mean_key = attend(backend_, chunk.problem, queries.mean_key_input(), {});
    const auto picked = Curve::pick_all(backend_, chunk.problem, o_.rule, sums_.oracle_ks,
                                        queries.chunk.mass().floats());
    sums_.sums.add(chunk.blocks, [&](const measure::BlockRows& of) {
        DenseSums sums(sums_.sizes, sums_.oracle_ks);
        const auto kinds = of.of(chunk.kinds);
        const View<const float, 3> q = of.of(queries.host_q), mass = of.of(chunk.mass);
        const View<const float, 2> lse = of.of(chunk.dense.lse);
        sums.rows.add(kinds);
        sums.oracle_curve.add(of, kinds, picked, mass);
        sums.sink.add(of.problem, q, data_.k, lse, {});
        sums.entropy.add(of.problem, q, of.of(mean_key.out), lse, view_.host_sinks);
        sums.first_block.add(kinds, mass);
        return states_of(sums);
    });
}

void LayerAnalysis::add_config(size_t number, const measure::MeasuredChunk& chunk, QueryRange range,
                               View<const int32_t, 3> oracle_ids) {
    const Config& config = configs_[number];
    const SelectorAbout& about = sums_.selectors[number];
    const measure::ChunkView& queries = chunk.queries;
    const Problem& p = chunk.problem;
    const Mirror<3> scores = config.selector->score(layer_, queries.chunk);
    const Tensor<int32_t, 3> ids = pick(backend_, p, config.rule, scores.floats());
    const auto picked = Curve::pick_all(backend_, p, config.rule, about.ks, scores.floats());

    Tensor<int32_t, 3> copy;
    if (backend_.space() != Space::host) copy = backend_.upload(ids.view());
    const View<const int32_t, 3> backend_ids = copy.data() != nullptr ? copy.view() : ids.view();
    const Attention sparse = attend(backend_, p, queries.input(), backend_ids);
    const Attention mean_key = attend(backend_, p, queries.mean_key_input(), backend_ids);
    sums_.checks.check(about.label, ids,
                       analysis::squared_differences(sparse.out, chunk.dense.out, p.kv_heads));
    sums_.popularity[number].add(p, ids);
    sums_.sums.add(chunk.blocks, [&](const measure::BlockRows& of) {
        SelectorSums sums(sums_.sizes, about);
        const auto kinds = of.of(chunk.kinds);
        const View<const int32_t, 3> kept = of.of(ids);
        const View<const float, 3> q = of.of(queries.host_q), mass = of.of(chunk.mass);
        const View<const float, 2> lse = of.of(sparse.lse);
        sums.curve.add(of, kinds, picked, mass);
        sums.recall.add(of.problem, kinds, kept, of.of(oracle_ids), mass);
        sums.output_error.add(kinds, of.of(sparse.out), of.of(chunk.dense.out));
        sums.sink.add(of.problem, q, data_.k, lse, kept);
        sums.entropy.add(of.problem, q, of.of(mean_key.out), lse, view_.host_sinks);
        return states_of(sums, about.label);
    });

    const std::string at = "/" + about.label + "/" + name_;
    to_.write_rows<int32_t, 3>("/select" + at + "/ids", row(range.begin), ids);
    if (o_.dumps("scores"))
        to_.write_rows<float, 3>("/scores" + at, row(range.begin), scores.host());
    if (o_.dumps("outputs")) {
        to_.write_rows<float, 3>("/outputs" + at + "/out", row(range.begin), sparse.out);
        to_.write_rows<float, 2>("/outputs" + at + "/lse", row(range.begin), sparse.lse);
    }
}

void LayerAnalysis::write(const LayerPart& part, std::ostream& err) const {
    write_queries();
    write_sizes();
    sums_.checks.warn(part.name(), err);
    if (part.is_whole)
        sums_.write(to_, name_);
    else
        sums_.store(to_, name_);
}

void LayerAnalysis::write_queries() const {
    const Problem p = all_.with_queries(part_);
    const Shape<1> shape{p.queries()};
    std::vector<int64_t> position;
    for (const KeyRange& seen : visible_keys(p)) position.push_back(seen.count - 1);
    const std::vector<int64_t> sequence = query_sequences(p);
    const std::string queries = "/queries/" + name_;
    to_.write<int64_t, 1>(queries + "/token", {queries_.tokens.data() + part_.begin, shape},
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
    const double logit = main_logit_bound(whole_, q_norm_, k_norm_);
    to_.attribute("/layers/" + name_, "mass_bound",
                  mass_bound(logit, static_cast<double>(whole_.batch.longest_keys())));
}

}  // namespace

measure::LayerQueries analyzed_queries(const AnalyzeOptions& o, const io::ActivationsReader& file,
                                       const io::LayerInfo& layer) {
    std::vector<int64_t> tokens = sampled_queries(o, file.info().cu_seqlens, layer.layer, o.seed);
    const Problem p = io::layer_problem(file.info(), layer, o.block_size).with_query_rows(tokens);
    return {p, std::move(tokens), analysis::row_kinds(p, o.rule.top_k, o.all_rows)};
}

void analyze_part(const AnalyzeOptions& o, const io::ActivationsReader& file, const LayerPart& part,
                  const Worker& worker, io::UnitWriter& to, int64_t chunk_queries) {
    const int64_t layer = part.layer.layer;
    const measure::LayerQueries queries = analyzed_queries(o, file, part.layer);
    LayerAnalysis analysis(o, file, part, queries, worker.backend, to);
    if (part.queries.begin == 0 && part.layer.own_attention.contains("softcap"))
        worker.err << "note: layer " << layer
                   << " caps its logits: its entropies are not computed\n";
    Progress progress(worker.progress, part.name(), part.queries.end - part.queries.begin,
                      "queries");
    for (const QueryRange range :
         measure::chunks(queries.blocks, part.queries,
                         chunk_queries > 0 ? chunk_queries : analysis.chunk_queries())) {
        stop_if_asked();
        analysis.add(range);
        progress.advance(range.end - range.begin);
    }
    analysis.write(part, worker.err);
}

}  // namespace msa::experiments::analyze
