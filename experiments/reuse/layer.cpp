// SPDX-License-Identifier: MIT
#include "experiments/reuse/layer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "analysis/metrics.h"
#include "analysis/output_error.h"
#include "analysis/recall.h"
#include "core/select/selector.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/driver/progress.h"
#include "experiments/measure/layer.h"

namespace msa::experiments::reuse {
namespace {

using analysis::RowKind;

constexpr const char* kFloor = "random";

/// One choice of blocks for all queries: recalls against the oracle's and the layer's own ids, and
/// the output error.
struct Measured {
    Measured(const Problem& p, const analysis::RecallOptions& options)
        : oracle(p.kv_heads, options), own(p.kv_heads, options), error(p.query_heads) {}
    analysis::Recall oracle, own;
    analysis::OutputError error;
};

/// What a chunk has to be compared with, all on the host.
struct Reference {
    View<const float, 3> mass, dense;
    View<const int32_t, 3> oracle_ids, own_ids;
    Reference slice(int64_t first, int64_t count) const {
        return {mass.slice(first, count), dense.slice(first, count), oracle_ids.slice(first, count),
                own_ids.slice(first, count)};
    }
};

void add(const Problem& p, const Reference& to, View<const int32_t, 3> ids,
         View<const float, 3> sparse, Measured& kept) {
    const std::vector<RowKind> kinds(static_cast<size_t>(p.queries()), RowKind::counted);
    kept.oracle.add(p, kinds, ids, to.oracle_ids, to.mass);
    kept.own.add(p, kinds, ids, to.own_ids, to.mass);
    kept.error.add(kinds, sparse, to.dense);
}

class LayerMeasurement {
public:
    LayerMeasurement(const ReuseOptions& o, const io::ActivationsReader& file,
                     const io::LayerInfo& layer, const MeasuredQueries& queries,
                     std::vector<View<const int32_t, 3>> ids, Backend& backend)
        : o_(o),
          queries_(queries),
          ids_(std::move(ids)),
          backend_(backend),
          options_{o.oracle_without_local},
          data_(file, layer, layer_elements(backend, layer, o.element)),
          view_(backend, data_),
          whole_(data_.problem(o.block_size)),
          all_(whole_.with_query_rows(queries.tokens)),
          kept_(ids_.size(), Measured(whole_, options_)),
          mass_({std::ssize(ids_), queries.blocks()}),
          oracle_recall_(mass_.shape()),
          own_recall_(mass_.shape()),
          difference_({std::ssize(ids_), queries.blocks(), whole_.query_heads}),
          norm_({queries.blocks(), whole_.query_heads}) {}

    void run(Progress& progress) {
        const int64_t most = chunk_queries(whole_);
        for (int64_t block = 0; block < queries_.blocks();) {
            stop_if_asked();
            int64_t end = block + 1;
            while (end < queries_.blocks() && first(end + 1) - first(block) <= most) ++end;
            add_chunk(block, end);
            progress.advance(first(end) - first(block));
            block = end;
        }
    }
    /// The last choice of blocks is the floor, the others are those of layers.
    void write(const std::string& group, io::UnitWriter& to) const {
        const int64_t layers = std::ssize(ids_) - 1;
        Tensor<double, 2> means({layers, 4});
        for (int64_t s = 0; s < layers; ++s)
            write_means(kept_[static_cast<size_t>(s)], means.view()[s]);
        to.write<double, 2>(group + "/means", std::as_const(means).view(),
                            {"source,column", "",
                             "columns: mass_kept, block_recall, own_recall, output_error over all "
                             "queries"});
        Tensor<double, 1> floor({4});
        write_means(kept_.back(), floor);
        to.write<double, 1>(group + "/floor", std::as_const(floor).view(),
                            {"column", "", "the same with random blocks"});
        to.attribute(group, "oracle_mass", analysis::average(kept_.back().oracle.oracle_mass()));
        const auto of_layers = [&](const char* name, const auto& values, const char* unit,
                                   const char* what, const char* axes) {
            to.write(group + "/" + name, std::as_const(values).view().slice(0, layers),
                     {axes, unit, what});
        };
        const char* blocks = "source,block";
        of_layers("mass_kept", mass_, "probability",
                  "mass kept, mean over the queries of a block and the groups", blocks);
        of_layers("block_recall", oracle_recall_, "1", "recall of the oracle's blocks likewise",
                  blocks);
        of_layers("own_recall", own_recall_, "1", "recall of the layer's own ids likewise", blocks);
        of_layers("difference", difference_, "",
                  "sum of |o_sparse - o_dense|^2 over the queries of a block", "source,block,head");
        to.write<double, 2>(group + "/norm", norm_.view(),
                            {"block,head", "", "sum of |o_dense|^2 likewise"});
    }

private:
    int64_t first(int64_t block) const { return queries_.first(block); }

    static void write_means(const Measured& kept, View<double, 1> to) {
        to(0) = analysis::average(kept.oracle.mass_kept());
        to(1) = analysis::average(kept.oracle.block_recall());
        to(2) = analysis::average(kept.own.block_recall());
        to(3) = kept.error.mean();
    }

    void add_chunk(int64_t block, int64_t end_block) {
        const QueryRange range{first(block), first(end_block)};
        const int64_t count = range.end - range.begin;
        const std::span<const int64_t> tokens =
            std::span(queries_.tokens)
                .subspan(static_cast<size_t>(range.begin), static_cast<size_t>(count));
        const measure::ChunkView queries(view_.selector_layer(whole_, o_.seed), view_,
                                         all_.with_queries(range), tokens, o_.oracle_by_logit);
        const Problem& p = queries.problem;
        const SelectorChunk& chunk = queries.chunk;
        const Tensor<float, 3> dense = attend(backend_, p, queries.input(), {}).out;
        const Tensor<int32_t, 3> oracle_ids = pick(
            backend_, p, o_.rule, (o_.oracle_by_logit ? chunk.max_logit() : chunk.mass()).floats());
        const Reference to{chunk.mass().host(), dense.view(), oracle_ids.view(),
                           own_ids().slice(range.begin, count)};
        for (size_t s = 0; s < ids_.size(); ++s) {
            const View<const int32_t, 3> ids = ids_[s].slice(range.begin, count);
            const Tensor<float, 3> sparse = attend_selected(backend_, p, queries.input(), ids).out;
            add(p, to, ids, sparse.view(), kept_[s]);
            for (int64_t b = block; b < end_block; ++b)
                add_block(static_cast<int64_t>(s), b, p, range.begin, to, ids, sparse.view());
        }
    }

    /// The layer is its own last source.
    View<const int32_t, 3> own_ids() const { return ids_[ids_.size() - 2]; }

    void add_block(int64_t s, int64_t block, const Problem& chunk, int64_t chunk_begin,
                   const Reference& to, View<const int32_t, 3> ids, View<const float, 3> sparse) {
        const int64_t begin = first(block) - chunk_begin, count = first(block + 1) - first(block);
        Measured kept(chunk, options_);
        add(chunk.with_queries({begin, begin + count}), to.slice(begin, count),
            ids.slice(begin, count), sparse.slice(begin, count), kept);
        mass_(s, block) = analysis::average(kept.oracle.mass_kept());
        oracle_recall_(s, block) = analysis::average(kept.oracle.block_recall());
        own_recall_(s, block) = analysis::average(kept.own.block_recall());
        std::copy(kept.error.differences().begin(), kept.error.differences().end(),
                  difference_.view()[s][block].data());
        std::copy(kept.error.norms().begin(), kept.error.norms().end(), norm_.view()[block].data());
    }

    const ReuseOptions& o_;
    const MeasuredQueries& queries_;
    std::vector<View<const int32_t, 3>> ids_;  // of o.layers up to this one, then of the floor
    Backend& backend_;
    analysis::RecallOptions options_;
    measure::LayerData data_;
    measure::LayerView view_;
    Problem whole_, all_;
    std::vector<Measured> kept_;
    Tensor<double, 2> mass_, oracle_recall_, own_recall_;  // [S + 1, M]
    Tensor<double, 3> difference_;                         // [S + 1, M, Hq]
    Tensor<double, 2> norm_;                               // [M, Hq]
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
                 const io::LayerInfo& layer, const MeasuredQueries& queries, OwnIds& own,
                 const analysis::Hardware& on, const Worker& worker, io::UnitWriter& to) {
    std::vector<int64_t> from;
    std::vector<View<const int32_t, 3>> ids;
    for (int64_t number : o.layers) {
        if (number > layer.layer) continue;
        from.push_back(number);
        ids.push_back(own.of(number, worker.backend));
    }
    const Tensor<int32_t, 3> floor =
        select_ids(o, file, layer, kFloor, queries.tokens, worker.backend);
    ids.push_back(floor.view());
    LayerMeasurement measurement(o, file, layer, queries, std::move(ids), worker.backend);
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
    write_queries(queries, "/queries/" + name, to);
    to.write<int64_t, 1>(group + "/sources", {from.data(), {std::ssize(from)}},
                         {"source", "layer", "whose ids the layer takes, its own last"});
    measurement.write(group, to);
    write_prices(o, layer, on, group, to);
}

}  // namespace msa::experiments::reuse
