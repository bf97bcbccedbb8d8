// SPDX-License-Identifier: MIT
#include "experiments/reuse/ids.h"

#include "core/select/selector.h"

namespace msa::experiments::reuse {

measure::Task task_of(const ReuseOptions& o, const measure::LayerData& data,
                      const measure::LayerQueries& queries, Backend& backend) {
    return {.data = data,
            .queries = queries,
            .part = {0, std::ssize(queries.tokens)},
            .backend = backend,
            .block_sizes = {o.block_size},
            .seed = o.seed,
            .of_heads = 3,
            .oracle_by_logit = o.oracle_by_logit,
            .oracle_without_local = o.oracle_without_local};
}

measure::Choice choice_of(const ReuseOptions& o, const std::string& selector) {
    return {.key = selector,
            .block_size = o.block_size,
            .rule = o.rule,
            .used = make_selector(selector)->adjust(o.rule, 0),
            .selector = selector};
}

View<const int32_t, 3> OwnIds::of(int64_t layer, Backend& backend) {
    Once& once = ids_.at(layer);
    std::call_once(once.flag, [&] {
        const io::LayerInfo& info = file_.layer(layer);
        const measure::LayerData data(file_, info, layer_elements(backend, info, o_.element));
        once.ids = pick_all(task_of(o_, data, queries_, backend), choice_of(o_, o_.selector));
    });
    return std::as_const(once.ids).view();
}

}  // namespace msa::experiments::reuse
