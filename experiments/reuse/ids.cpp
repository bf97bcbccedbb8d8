// SPDX-License-Identifier: MIT
#include "experiments/reuse/ids.h"

#include "experiments/measure/measure.h"

namespace msa::experiments::reuse {

View<const int32_t, 3> OwnIds::of(int64_t layer, Backend& backend) {
    Once& once = ids_.at(layer);
    std::call_once(once.flag, [&] {
        const io::LayerInfo& info = file_.layer(layer);
        const measure::LayerData data(file_, info, layer_elements(backend, info, o_.element));
        once.ids = measure::pick_all(measure::task_of(o_, o_, o_.seed, data, queries_, backend),
                                     measure::choice_of(o_, o_.selector));
    });
    return std::as_const(once.ids).view();
}

}  // namespace msa::experiments::reuse
