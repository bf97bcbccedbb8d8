// SPDX-License-Identifier: MIT
#include "experiments/reuse/ids.h"

#include <algorithm>

#include "core/select/selector.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/measured_queries.h"
#include "experiments/driver/own_attention.h"
#include "experiments/driver/program.h"

namespace msa::experiments::reuse {

using io::Field;

Tensor<int32_t, 3> select_ids(const ReuseOptions& o, const io::ActivationsReader& file,
                              const io::LayerInfo& layer, const std::string& name,
                              std::span<const int64_t> tokens, Backend& backend) {
    const LayerElements elements = layer_elements(backend, layer, o.element);
    const LayerReader read(file, layer, elements);
    const Problem whole = io::layer_problem(file.info(), layer, o.block_size);
    const Problem all = whole.with_query_rows(tokens);
    const Tensor<float, 3> host_k = read.all(Field::k), host_index_k = read.all(Field::index_k);
    const Operand<3> k(backend, host_view(host_k), elements.main.computed);
    const Operand<2> index_k(backend, rows_of(host_view(host_index_k)), elements.index.computed);
    const Tensor<float, 1> host_sinks = io::layer_sinks(layer);
    const Sinks sinks(backend, host_sinks.view());
    const SelectorLayer of{.problem = whole,
                           .backend = backend,
                           .k = {backend, k.view(), host_view(host_k)},
                           .index_k = host_index_k.data() == nullptr
                                          ? Mirror<2>()
                                          : Mirror<2>(backend, index_k.view()),
                           .seed = o.seed,
                           .read_learned = read.learned(),
                           .sinks = sinks};
    const std::unique_ptr<Selector> selector = make_selector(name);
    const SelectionRule rule = selector->adjust(o.rule, 0);
    selector->prepare(of);
    const int64_t step = chunk_queries(whole);
    Tensor<int32_t, 3> ids({all.queries(), whole.kv_heads, rule.top_k});
    for (int64_t begin = 0; begin < all.queries(); begin += step) {
        stop_if_asked();
        const QueryRange range{begin, std::min(begin + step, all.queries())};
        const std::span<const int64_t> rows = tokens.subspan(
            static_cast<size_t>(begin), static_cast<size_t>(range.end - range.begin));
        const Tensor<float, 3> host_q = read.rows(Field::q, rows);
        const Tensor<float, 3> host_index_q = read.rows(Field::index_q, rows);
        const Operand<3> q(backend, host_view(host_q), elements.main.computed);
        const Operand<3> index_q(backend, host_view(host_index_q), elements.index.computed);
        const Problem p = all.with_queries(range);
        const SelectorChunk chunk(
            of, p, rows, {backend, q.view(), host_view(host_q)},
            host_index_q.data() == nullptr ? Mirror<3>() : Mirror<3>(backend, index_q.view()));
        const Mirror<3> scores = selector->score(of, chunk);
        const Tensor<int32_t, 3> picked = pick(backend, p, rule, scores.floats());
        std::copy_n(picked.data(), picked.size(), ids.view()[begin].data());
    }
    return ids;
}

View<const int32_t, 3> OwnIds::of(int64_t layer, Backend& backend) {
    Once& once = ids_.at(layer);
    std::call_once(once.flag, [&] {
        once.ids = select_ids(o_, file_, file_.layer(layer), o_.selector, tokens_, backend);
    });
    return std::as_const(once.ids).view();
}

}  // namespace msa::experiments::reuse
