// SPDX-License-Identifier: MIT
#include "experiments/reuse/layer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "core/select/selector.h"
#include "core/tolerance.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/measure/checks.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::reuse {
namespace {

/// Ids of all queries, and whose they are: the number of a layer, or kFloor.
struct Choice {
    std::string name;
    View<const int32_t, 3> ids;
};

/// One choice of blocks: recalls against the oracle's and the layer's own ids, and the output
/// error.
struct Measured {
    Measured(const Problem& p, const analysis::RecallOptions& options)
        : recall(p.kv_heads, options), own_recall(p.kv_heads, options), error(p.query_heads) {}
    measure::States states(const std::string& of) const {
        return {{of + "/recall", recall.state()},
                {of + "/own_recall", own_recall.state()},
                {of + "/output_error", error.state()}};
    }
    analysis::Recall recall, own_recall;
    analysis::OutputError error;
};

class LayerMeasurement {
public:
    LayerMeasurement(const ReuseOptions& o, const io::ActivationsReader& file,
                     const io::LayerInfo& layer, const measure::LayerQueries& queries,
                     std::vector<Choice> choices, Backend& backend)
        : o_(o),
          queries_(queries),
          choices_(std::move(choices)),
          backend_(backend),
          data_(file, layer, layer_elements(backend, layer, o.element)),
          view_(backend, data_),
          whole_(data_.problem(o.block_size)),
          all_(whole_.with_query_rows(queries.tokens)),
          k_norm_(largest_norm(host_view(data_.k))),
          sums_(queries.blocks, {0, all_.queries()}) {}

    void run(Progress& progress) {
        for (const QueryRange range :
             measure::chunks(queries_.blocks, {0, all_.queries()},
                             measure::chunk_queries(backend_, whole_, 4, 3))) {
            stop_if_asked();
            add(range);
            progress.advance(range.end - range.begin);
        }
    }
    void write(const std::string& layer, io::UnitWriter& to) const {
        sums_.write(to, layer);
        checks_.write(to, layer);
    }

private:
    void add(QueryRange range) {
        const measure::ChunkView queries(view_.selector_layer(whole_, o_.seed), view_,
                                         all_.with_queries(range), queries_.tokens_of(range),
                                         o_.oracle_by_logit);
        const Attention dense = queries.dense();
        const measure::MeasuredChunk chunk(queries, queries_, range, k_norm_, dense);
        checks_.begin(chunk.rows(), queries.tokens);
        const Problem& p = chunk.problem;
        const int64_t count = p.queries();
        const SelectorChunk& of = queries.chunk;
        const Tensor<int32_t, 3> oracle_ids =
            pick(backend_, p, o_.rule, (o_.oracle_by_logit ? of.max_logit() : of.mass()).floats());
        const View<const int32_t, 3> own = own_ids().slice(range.begin, count);
        for (const Choice& choice : choices_) {
            const View<const int32_t, 3> ids = choice.ids.slice(range.begin, count);
            const Tensor<float, 3> sparse = attend_selected(backend_, p, queries.input(), ids).out;
            checks_.check(choice.name, ids,
                          analysis::squared_differences(sparse, chunk.dense.out, p.kv_heads));
            sums_.add(chunk.blocks, [&](const measure::BlockRows& rows) {
                Measured kept(whole_, {o_.oracle_without_local});
                const auto kinds = rows.of(chunk.kinds);
                const auto mass = rows.of(chunk.mass);
                kept.recall.add(rows.problem, kinds, rows.of(ids), rows.of(oracle_ids), mass);
                kept.own_recall.add(rows.problem, kinds, rows.of(ids), rows.of(own), mass);
                kept.error.add(kinds, rows.of(sparse), rows.of(chunk.dense.out));
                return kept.states(choice.name);
            });
        }
    }

    /// The layer is its own last source.
    View<const int32_t, 3> own_ids() const { return choices_[choices_.size() - 2].ids; }

    const ReuseOptions& o_;
    const measure::LayerQueries& queries_;
    std::vector<Choice> choices_;  // of o.layers up to this one, then the floor
    Backend& backend_;
    measure::LayerData data_;
    measure::LayerView view_;
    Problem whole_, all_;
    double k_norm_;
    measure::Sums sums_;
    measure::SelfChecks checks_;
};

void write_prices(const ReuseOptions& o, const io::LayerInfo& layer, const analysis::Hardware& on,
                  const std::string& group, io::UnitWriter& to) {
    const Setting setting{o.selector, o.block_size, make_selector(o.selector)->adjust(o.rule, 0)};
    const Pricer pricer(layer, o.context, o.decode, on);
    write_price(to, group, "dense", pricer.dense());
    write_price(to, group, "own", pricer(setting, std::nullopt));
    write_price(to, group, "reused", pricer.of_given_ids(setting, std::nullopt));
}

}  // namespace

void reuse_layer(const ReuseOptions& o, const io::ActivationsReader& file,
                 const io::LayerInfo& layer, const measure::LayerQueries& queries, OwnIds& own,
                 const analysis::Hardware& on, const Worker& worker, io::UnitWriter& to) {
    std::vector<int64_t> from;
    std::vector<Choice> choices;
    for (int64_t number : o.layers) {
        if (number > layer.layer) continue;
        from.push_back(number);
        choices.push_back({std::to_string(number), own.of(number, worker.backend)});
    }
    const Tensor<int32_t, 3> floor =
        select_ids(o, file, layer, kFloor, queries.tokens, worker.backend);
    choices.push_back({kFloor, floor.view()});
    LayerMeasurement measurement(o, file, layer, queries, std::move(choices), worker.backend);
    Progress progress(worker.progress, text("layer ", layer.layer), std::ssize(queries.tokens),
                      "queries");
    measurement.run(progress);

    const std::string name = std::to_string(layer.layer), group = "/reuse/" + name;
    const Problem p = io::layer_problem(file.info(), layer, o.block_size);
    write_layer(to, layer, p,
                {{"block_size", p.block_size},
                 {"tokens", p.keys()},
                 {"longest_sequence", p.batch.longest_keys()},
                 {"queries", std::ssize(queries.tokens)}});
    measure::write_tokens(to, "/queries/" + name, queries.tokens);
    to.write<int64_t, 1>(group + "/sources", {from.data(), {std::ssize(from)}},
                         {"source", "layer", "whose ids the layer takes, its own last"});
    measurement.write(name, to);
    write_prices(o, layer, on, group, to);
}

}  // namespace msa::experiments::reuse
