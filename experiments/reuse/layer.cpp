// SPDX-License-Identifier: MIT
#include "experiments/reuse/layer.h"

#include "core/select/selector.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::reuse {
namespace {

void write_prices(const ReuseOptions& o, const io::LayerInfo& layer, const analysis::Hardware& on,
                  const std::string& group, io::UnitWriter& to) {
    const Setting setting{o.selector, o.block_size, make_selector(o.selector)->adjust(o.rule, 0)};
    const Pricer pricer(layer, o.context.value(), o.decode, on);
    write_price(to, group, "dense", pricer.dense());
    write_price(to, group, "own", pricer(setting, std::nullopt));
    write_price(to, group, "reused", pricer.of_given_ids(setting, std::nullopt));
}

/// The ids of a layer, as a choice of another.
measure::Choice choice_of_layer(const ReuseOptions& o, int64_t layer, View<const int32_t, 3> ids) {
    measure::Choice choice = measure::choice_of(o, o.selector);
    choice.key = std::to_string(layer);
    choice.selector.clear();
    choice.ids = [ids](const measure::ChunkView&, QueryRange range) {
        return measure::copy_of(ids.slice(range.begin, range.end - range.begin));
    };
    return choice;
}

}  // namespace

void reuse_layer(const ReuseOptions& o, const io::ActivationsReader& file,
                 const io::LayerInfo& layer, const measure::LayerQueries& queries, OwnIds& own,
                 const analysis::Hardware& on, const Worker& worker, io::UnitWriter& to) {
    const measure::LayerData data(file, layer, layer_elements(worker.backend, layer, o.element));
    measure::Task task = measure::task_of(o, o, o.seed, data, queries, worker.backend);
    std::vector<int64_t> from;
    for (int64_t number : o.layers) {
        if (number > layer.layer) continue;
        task.compared_with = from.size();  // in the end the layer itself
        from.push_back(number);
        task.choices.push_back(choice_of_layer(o, number, own.of(number, worker.backend)));
    }
    task.compared_name = "own_recall";
    task.choices.push_back(measure::choice_of(o, kFloor));
    const std::string name = std::to_string(layer.layer), group = "/reuse/" + name;
    measure::Tally tally{measure::Sums(queries.blocks, task.part)};
    Progress progress(worker.progress, concat("layer ", name), std::ssize(queries.tokens),
                      "queries");
    measure::Observer nothing;
    measure::measure(task, tally, nothing, progress);
    measure::write_layer_of(task, to);
    to.write<int64_t, 1>(group + "/sources", {from.data(), {std::ssize(from)}},
                         {"source", "layer", "whose ids the layer takes, its own last"});
    tally.write(to, name);
    write_prices(o, layer, on, group, to);
}

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
