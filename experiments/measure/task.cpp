// SPDX-License-Identifier: MIT
#include <algorithm>
#include <memory>

#include "core/select/selector.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/program.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::measure {

Task task_of(const SizeOptions& sizes, const OracleOptions& oracle, uint64_t seed,
             const LayerData& data, const LayerQueries& queries, Backend& backend) {
    return {.data = data,
            .queries = queries,
            .part = {0, std::ssize(queries.tokens)},
            .backend = backend,
            .block_sizes = {sizes.block_size},
            .seed = seed,
            .oracle_by_logit = oracle.oracle_by_logit,
            .oracle_without_local = oracle.oracle_without_local};
}

Choice choice_of(const SizeOptions& sizes, const std::string& selector) {
    return {.key = selector,
            .block_size = sizes.block_size,
            .rule = sizes.rule,
            .used = make_selector(selector)->adjust(sizes.rule, 0),
            .selector = selector};
}

void write_layer_of(const Task& task, io::UnitWriter& to) {
    const Problem p = task.data.problem(task.block_sizes.front());
    write_layer(to, task.data.info, p,
                {{"block_size", p.block_size},
                 {"tokens", p.keys()},
                 {"longest_sequence", p.batch.longest_keys()},
                 {"queries", std::ssize(task.queries.tokens)}});
    write_tokens(to, concat("/queries/", task.data.info.layer), task.queries.tokens);
}

Tensor<int32_t, 3> pick_all(const Task& task, const Choice& choice) {
    const LayerView view(task.backend, task.data);
    const Problem whole = task.data.problem(choice.block_size),
                  all = whole.with_query_rows(task.queries.tokens);
    const SelectorLayer layer = view.selector_layer(whole, task.seed);
    const std::unique_ptr<Selector> selector = make_selector(choice.selector);
    selector->prepare(layer);
    Tensor<int32_t, 3> ids({all.queries(), whole.kv_heads, choice.used.top_k});
    const int64_t most = chunk_queries(task.backend, whole, task.of_blocks, task.of_heads);
    for (const QueryRange range : chunks(task.queries.blocks, {0, all.queries()}, most)) {
        stop_if_asked();
        const ChunkView queries(layer, view, all.with_queries(range),
                                task.queries.tokens_of(range));
        const Tensor<int32_t, 3> picked =
            fetch(task.backend, selector->select(layer, queries.chunk, choice.used));
        std::copy_n(picked.data(), picked.size(), ids.view()[range.begin].data());
    }
    return ids;
}

}  // namespace msa::experiments::measure
