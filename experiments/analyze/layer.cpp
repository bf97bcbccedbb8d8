// SPDX-License-Identifier: MIT
#include "experiments/analyze/layer.h"

#include <optional>

#include "analysis/entropy.h"
#include "analysis/popularity.h"
#include "core/select/selector.h"
#include "experiments/analyze/sums.h"
#include "experiments/driver/layers.h"
#include "experiments/measure/measure.h"
#include "experiments/measure/ties.h"
#include "experiments/programs.h"

namespace msa::experiments::analyze {
namespace {

using measure::BlockRows;
using measure::MeasuredChunk;

const measure::LayerForm kForm{
    {"/queries", "/select", "/scores", "/outputs", "/mass"}, {"/layers"}, write_metrics};

/// What msa-analyze measures beside the common sums, and the datasets with a row for each query.
class Analysis : public measure::Observer {
public:
    Analysis(const AnalyzeOptions& o, const Problem& whole, const std::string& layer,
             const measure::Task& task, io::UnitWriter& to, measure::Tally& tally)
        : o_(o),
          task_(task),
          about_{whole.query_heads, whole.kv_heads,      whole.block_size,
                 o.sink_tokens,     block_starts(whole), Curve::points(whole, o.rule)},
          layer_(layer),
          part_(task.part),
          to_(to),
          tally_(tally) {
        create_outputs(whole, "dense");
        if (o.dumps("mass"))
            create<float, 3>("/mass/" + layer, {rows(), whole.kv_heads, whole.blocks()},
                             {"query,group,block", "probability", "Main Branch probability P_b"});
    }

    /// Of several --forced-first a choice is named by what it keeps: "quest:first=1". Nothing where
    /// it is there already: the selector keeps these blocks in any case.
    std::optional<measure::Choice> add(const std::string& name, int64_t first,
                                       const Problem& whole) {
        const std::unique_ptr<Selector> selector = make_selector(name);
        auto sizes = static_cast<const SizeOptions&>(o_);
        sizes.rule.forced_first = first;
        measure::Choice choice = measure::choice_of(sizes, selector->label());
        const SelectionRule rule = choice.used;
        if (o_.forced_first.size() > 1 && rule.forced_first > 0)
            choice.key += concat(":first=", rule.forced_first);
        const std::string label = choice.key, at = at_layer(label);
        for (const auto& other : about_.selectors)
            if (other.label == label) return std::nullopt;
        about_.selectors.push_back(
            {label, label == "oracle", rule.top_k, Curve::points(whole, rule)});
        popularity_.emplace_back(about_.kv_heads, about_.first_block);
        create<int32_t, 3>("/select" + at + "/ids", {rows(), whole.kv_heads, rule.top_k},
                           {"query,group,slot", "block of the sequence", selector->rule_in_full()});
        if (o_.dumps("scores"))
            create<float, 3>("/scores" + at, {rows(), whole.kv_heads, whole.blocks()},
                             {"query,group,block", "1", "block scores"});
        create_outputs(whole, label);
        return choice;
    }

    void dense(const MeasuredChunk& chunk) override {
        const Attention mean_key =
            attend(chunk.queries.backend(), chunk.problem, chunk.queries.mean_key_input(), {});
        measure::Choice oracle;
        oracle.rule = oracle.used = o_.rule;
        const Curve::Picked picked = Curve::pick_all(
            chunk, oracle, about_.oracle_ks, chunk.masses.floats(), task_.oracle_without_local);
        tally_.sums.add(chunk.blocks, [&](const BlockRows& of) {
            RowCounts rows;
            Curve curve(about_.oracle_ks);
            FirstBlockMass first{std::vector<analysis::Mean>(static_cast<size_t>(about_.kv_heads))};
            rows.add(of.of(chunk.kinds));
            curve.add(of, of.of(chunk.kinds), picked, of.of(chunk.mass));
            first.add(of.of(chunk.kinds), of.of(chunk.mass));
            return measure::States{{"dense/rows", rows.state()},
                                   {"dense/oracle_curve", curve.state()},
                                   {"dense/entropy", entropy(of, chunk, mean_key, chunk.dense.lse)},
                                   {"dense/first_block", first.state()}};
        });
        write_outputs("dense", chunk, chunk.dense);
        if (o_.dumps("mass")) write("/mass/" + layer_, chunk, chunk.mass);
    }

    void scored(const MeasuredChunk& chunk, size_t n, const Mirror<3>& scores) override {
        const LayerAbout::OfSelector& selector = about_.selectors[n];
        const Curve::Picked picked = Curve::pick_all(chunk, task_.choices[n], selector.ks,
                                                     scores.floats(), task_.oracle_without_local);
        tally_.sums.add(chunk.blocks, [&](const BlockRows& of) {
            Curve curve(selector.ks);
            curve.add(of, of.of(chunk.kinds), picked, of.of(chunk.mass));
            return measure::States{{selector.label + "/curve", curve.state()}};
        });
        measure::add_ties(chunk, task_.choices[n], scores.host(), tally_);
        if (o_.dumps("scores")) write("/scores" + at_layer(selector.label), chunk, scores.host());
    }

    void chosen(const MeasuredChunk& chunk, size_t n, View<const int32_t, 3> ids,
                const Attention* over) override {
        const std::string& label = about_.selectors[n].label;
        const Attention mean_key = attend_selected(chunk.queries.backend(), chunk.problem,
                                                   chunk.queries.mean_key_input(), ids);
        tally_.sums.add(chunk.blocks, [&](const BlockRows& of) {
            return measure::States{{label + "/entropy", entropy(of, chunk, mean_key, over->lse)}};
        });
        popularity_[n].add(chunk.problem, ids);
        write("/select" + at_layer(label) + "/ids", chunk, ids);
        write_outputs(label, chunk, *over);
    }

    /// What the tally has to have of all queries.
    void finish() {
        for (size_t n = 0; n < popularity_.size(); ++n)
            tally_.totals[about_.selectors[n].label + "/popularity"] = popularity_[n].state();
        tally_.about = nlohmann::json(about_).dump();
    }

private:
    int64_t rows() const { return part_.end - part_.begin; }
    std::string at_layer(const std::string& of) const { return "/" + of + "/" + layer_; }

    analysis::State entropy(const BlockRows& of, const MeasuredChunk& chunk,
                            const Attention& mean_key, const Tensor<float, 2>& lse) const {
        analysis::Entropy entropy(about_.query_heads);
        entropy.add(of.problem, of.of(chunk.queries.host_q), of.of(mean_key.out), of.of(lse),
                    chunk.queries.host_sinks());
        return entropy.state();
    }

    template <typename T, int Rank>
    void create(const std::string& dataset, const Shape<Rank>& shape, const io::Describe& what) {
        to_.create<T, Rank>(dataset, shape, what);
    }
    template <typename T, int Rank>
    void write(const std::string& dataset, const MeasuredChunk& chunk, View<const T, Rank> of) {
        to_.write_rows<T, Rank>(dataset, chunk.range.begin - part_.begin, of);
    }
    void create_outputs(const Problem& p, const std::string& of) {
        if (!o_.dumps("outputs")) return;
        const std::string at = "/outputs" + at_layer(of);
        const char* kind = of == "dense" ? "dense" : "sparse";
        create<float, 3>(at + "/out", {rows(), p.query_heads, p.head_dim},
                         {"query,head,channel", "1", concat("output of ", kind, " attention")});
        create<float, 2>(at + "/lse", {rows(), p.query_heads},
                         {"query,head", "nats", "log of the sum of exponentials"});
    }
    void write_outputs(const std::string& of, const MeasuredChunk& chunk, const Attention& over) {
        if (!o_.dumps("outputs")) return;
        write("/outputs" + at_layer(of) + "/out", chunk, host_view(over.out));
        write("/outputs" + at_layer(of) + "/lse", chunk, host_view(over.lse));
    }

    const AnalyzeOptions& o_;
    const measure::Task& task_;
    LayerAbout about_;
    std::string layer_;
    QueryRange part_;
    io::UnitWriter& to_;
    measure::Tally& tally_;
    std::vector<analysis::Popularity> popularity_ = {};
};

void write_queries(const measure::LayerQueries& queries, const Problem& p, QueryRange part,
                   const std::string& group, io::UnitWriter& to) {
    std::vector<int64_t> position;
    for (const KeyRange& seen : visible_keys(p)) position.push_back(seen.count - 1);
    const std::vector<int64_t> sequence = query_sequences(p);
    const Shape<1> shape{p.queries()};
    to.write<int64_t, 1>(group + "/token", {queries.tokens.data() + part.begin, shape},
                         {"query", "token", "packed token index of each analysed query"});
    to.write<int64_t, 1>(group + "/position", {position.data(), shape},
                         {"query", "token", "position in its sequence"});
    to.write<int64_t, 1>(group + "/sequence", {sequence.data(), shape},
                         {"query", "sequence", "sequence of each analysed query"});
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
    const std::string layer = std::to_string(part.layer.layer);
    const measure::LayerQueries queries = analyzed_queries(o, file, part.layer);
    const measure::LayerData data(file, part.layer,
                                  layer_elements(worker.backend, part.layer, o.element));
    const Problem whole = data.problem(o.block_size);
    measure::Task task = measure::task_of(o, o, o.seed, data, queries, worker.backend);
    task.part = part.queries;
    task.sink_tokens = o.sink_tokens;
    task.chunk = chunk_queries;
    task.with_scores = true;
    measure::Tally tally{measure::Sums(queries.blocks, part.queries)};
    Analysis analysis(o, whole, layer, task, to, tally);
    for (const std::string& selector : o.selectors)
        for (int64_t first : o.forced_first)
            if (auto choice = analysis.add(selector, first, whole))
                task.choices.push_back(std::move(*choice));
    if (part.queries.begin == 0 && part.layer.own_attention.contains("softcap"))
        worker.err << "note: layer " << layer
                   << " caps its logits: its entropies are not computed\n";
    Progress progress(worker.progress, part.name(), part.queries.end - part.queries.begin,
                      "queries");
    measure::measure(task, tally, analysis, progress);
    analysis.finish();
    write_queries(queries, whole.with_query_rows(queries.tokens_of(part.queries)), part.queries,
                  "/queries/" + layer, to);
    write_layer(
        to, part.layer, whole,
        {{"block_size", whole.block_size}, {"blocks", whole.blocks()}, {"tokens", whole.keys()}});
    measure::write_tally(tally, kForm, part, worker, to);
}

void join_layer(const std::vector<std::filesystem::path>& parts, io::UnitWriter& to) {
    measure::join_layer(parts, kForm, to);
}

}  // namespace msa::experiments::analyze
