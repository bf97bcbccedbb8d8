// SPDX-License-Identifier: MIT
#include "experiments/reuse/ids.h"

#include <algorithm>

#include "core/select/selector.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/measured_queries.h"
#include "experiments/driver/program.h"
#include "experiments/measure/layer.h"

namespace msa::experiments::reuse {

Tensor<int32_t, 3> select_ids(const ReuseOptions& o, const io::ActivationsReader& file,
                              const io::LayerInfo& layer, const std::string& name,
                              std::span<const int64_t> tokens, Backend& backend) {
    const measure::LayerData data(file, layer, layer_elements(backend, layer, o.element));
    const measure::LayerView view(backend, data);
    const Problem whole = data.problem(o.block_size), all = whole.with_query_rows(tokens);
    const SelectorLayer of = view.selector_layer(whole, o.seed);
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
        const measure::ChunkView queries(of, view, all.with_queries(range), rows);
        const Mirror<3> scores = selector->score(of, queries.chunk);
        const Tensor<int32_t, 3> picked = pick(backend, queries.problem, rule, scores.floats());
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
