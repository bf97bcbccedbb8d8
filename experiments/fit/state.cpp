// SPDX-License-Identifier: MIT
#include "experiments/fit/state.h"

#include <algorithm>

#include "analysis/metrics.h"

namespace msa::experiments::fit {
namespace {

constexpr const char *kScaled = "/rope_frequencies", *kUndone = "/undone_rope";

std::string group_of(int64_t layer) { return concat("/fit/", layer); }

/// What the datasets of weights begin with: "w_index_q", "gate_q_norm".
std::string kind_of(const IndexForm& form) { return form.traits().weights; }

constexpr const char* kHeadWeights = "/w_index_w";

template <typename T>
View<const T, 1> line(std::span<const T> values) {
    return {values.data(), {static_cast<int64_t>(values.size())}};
}

/// One list of numbers in the order of IndexWeights.
void write_values(io::UnitWriter& to, const std::string& dataset, const IndexWeights& weights,
                  const char* what) {
    to.write<float, 1>(dataset, line(weights.values()), {"value", "1", what});
}

IndexWeights read_values(const io::ResultsReader& from, const std::string& dataset,
                         const IndexForm& form) {
    IndexWeights weights(form);
    const Tensor<float, 1> values = from.read<float, 1>(dataset);
    MSA_CHECK(values.size() == static_cast<int64_t>(weights.values().size()));
    std::copy_n(values.data(), values.size(), weights.values().data());
    return weights;
}

void write_form(io::UnitWriter& to, const std::string& group, const IndexForm& form) {
    for (const auto& [name, value] : {std::pair{"groups", form.groups},
                                      {"index_dim", form.index_dim},
                                      {"model_dim", form.model_dim},
                                      {"rms_norm", int64_t{form.rms_norm}},
                                      {"rotary_dim", form.rotary_dim}})
        to.attribute(group, name, value);
    if (form.traits().own_inputs) to.attribute(group, "key_dim", form.key_dim);
    to.attribute(group, "rope_theta", form.rope_theta);
    for (const auto& [name, of, what] :
         {std::tuple{kScaled, &form.rope_frequencies, "scaled RoPE, of each pair"},
          {kUndone, &form.undone_rope, "the model's RoPE, which q and k are before, of each pair"}})
        if (!of->empty())
            to.write<double, 1>(group + name, line<double>(std::span<const double>(*of)),
                                {"pair", "radians per position", what});
}

IndexForm read_form(const io::ResultsReader& from, const std::string& group) {
    const auto size = [&](const char* name) {
        return static_cast<int64_t>(from.number(group, name));
    };
    IndexForm form{size("groups"),        size("index_dim"),  size("model_dim"),
                   size("rms_norm") != 0, size("rotary_dim"), from.number(group, "rope_theta")};
    for (const auto& [name, to] :
         {std::pair{kScaled, &form.rope_frequencies}, {kUndone, &form.undone_rope}})
        if (from.has(group + name)) {
            const Tensor<double, 1> stored = from.read<double, 1>(group + name);
            to->assign(stored.data(), stored.data() + stored.size());
        }
    for (size_t n = 0; n < std::size(kArchitectures); ++n)
        if (from.has(group + "/w_" + kArchitectures[n].weights + "_k") &&
            from.has(group + kHeadWeights) == kArchitectures[n].head_weights)
            form.architecture = static_cast<Architecture>(n);
    if (form.traits().own_inputs) form.key_dim = size("key_dim");
    return form;
}

}  // namespace

void write_fit(io::UnitWriter& to, int64_t layer, const FitState& state,
               const IndexWeights& plain) {
    const std::string group = group_of(layer), held_out = group + "/held_out/";
    write_form(to, group + "/weights", plain.form());
    const io::Describe rows{"output,channel", "1", "projection, rows are outputs"};
    const io::Describe norm{"channel", "1", "weight of the RMS norm"};
    to.attribute(group, "best_step", state.best_step);
    const std::string kind = kind_of(plain.form());
    to.write<float, 2>(group + "/weights/w_" + kind + "_q", plain.w_q(), rows);
    to.write<float, 2>(group + "/weights/w_" + kind + "_k", plain.w_k(), rows);
    if (plain.form().traits().head_weights)
        to.write<float, 2>(group + "/weights" + kHeadWeights, plain.w_h(),
                           {"head,channel", "1", "projection, rows are weights of heads"});
    if (plain.form().rms_norm) {
        to.write<float, 1>(group + "/weights/" + kind + "_q_norm", plain.norm_q(), norm);
        to.write<float, 1>(group + "/weights/" + kind + "_k_norm", plain.norm_k(), norm);
    }
    to.write<double, 1>(group + "/train/kl", line<double>(state.kl),
                        {"step", "nats", "KL loss of each step, on its support"});
    std::vector<int64_t> steps;
    for (const Evaluation& e : state.evaluations) steps.push_back(e.step);
    to.write<int64_t, 1>(held_out + "step", line<int64_t>(steps),
                         {"evaluation", "steps", "steps done before each evaluation"});
    for (const Measure& measure : kMeasures) {
        const analysis::Metric& of = analysis::metric(measure.metric);
        std::vector<double> values;
        for (const Evaluation& e : state.evaluations) values.push_back(e.*measure.value);
        to.write<double, 1>(held_out + measure.metric, line<double>(values),
                            {"evaluation", of.unit, of.definition});
    }
}

IndexWeights read_weights(const io::ResultsReader& from, int64_t layer) {
    const std::string group = group_of(layer) + "/weights";
    IndexWeights weights(read_form(from, group));
    const auto copy = [&](const std::string& name, auto view) {
        constexpr int kRank = std::tuple_size_v<std::decay_t<decltype(view.shape())>>;
        const auto values = from.read<float, kRank>(group + "/" + name);
        MSA_CHECK(values.shape() == view.shape());
        std::copy_n(values.data(), values.size(), view.data());
    };
    const std::string kind = kind_of(weights.form());
    copy("w_" + kind + "_q", weights.w_q());
    copy("w_" + kind + "_k", weights.w_k());
    if (weights.form().traits().head_weights) copy(kHeadWeights + 1, weights.w_h());
    if (weights.form().rms_norm) {
        copy(kind + "_q_norm", weights.norm_q());
        copy(kind + "_k_norm", weights.norm_k());
    }
    return weights;
}

std::vector<int64_t> read_layers(const io::ResultsReader& from, int64_t layer) {
    const std::string dataset = group_of(layer) + "/layers";
    if (!from.has(dataset)) return {layer};
    const Tensor<int64_t, 1> layers = from.read<int64_t, 1>(dataset);
    return {layers.data(), layers.data() + layers.size()};
}

size_t read_best(const io::ResultsReader& from, int64_t layer) {
    const std::vector<Evaluation> all = read_evaluations(from, layer);
    const auto step = static_cast<int64_t>(from.number(group_of(layer), "best_step"));
    for (size_t n = 0; n < all.size(); ++n)
        if (all[n].step == step) return n;
    MSA_CHECK(false);
}

std::vector<Evaluation> read_evaluations(const io::ResultsReader& from, int64_t layer) {
    const std::string held_out = group_of(layer) + "/held_out/";
    const Tensor<int64_t, 1> steps = from.read<int64_t, 1>(held_out + "step");
    std::vector<Evaluation> all(static_cast<size_t>(steps.size()));
    for (size_t n = 0; n < all.size(); ++n) all[n].step = steps(n);
    for (const Measure& measure : kMeasures) {
        const Tensor<double, 1> values = from.read<double, 1>(held_out + measure.metric);
        for (size_t n = 0; n < all.size(); ++n) all[n].*measure.value = values(n);
    }
    return all;
}

void Checkpoint::save(const FitState& state, const IndexWeights& plain) const {
    io::ResultsWriter file(path_, record_, io::IfExists::overwrite);
    io::UnitWriter to = file.begin(concat("layer ", layer_));
    write_fit(to, layer_, state, plain);
    const std::string group = group_of(layer_) + "/state/";
    write_values(to, group + "weights", state.weights, "weights for whitened hidden states");
    write_values(to, group + "best", state.best.values().empty() ? state.weights : state.best,
                 "likewise, of the best evaluation");
    write_values(to, group + "first", state.first, "first moments of AdamW");
    write_values(to, group + "second", state.second, "second moments of AdamW");
    to.finish();
    file.finish();
}

std::optional<FitState> Checkpoint::load() const {
    try {
        if (std::filesystem::exists(path_)) return read();
    } catch (const InputError&) {  // another process may have finished the layer
        if (std::filesystem::exists(path_)) throw;
    }
    return std::nullopt;
}

FitState Checkpoint::read() const {
    io::verify_checksum(path_);
    const io::ResultsReader from(path_);
    io::require_same_run(path_.string(), from.run(), record_);
    const std::string group = group_of(layer_);
    const IndexForm form = read_form(from, group + "/weights");
    FitState state;
    state.weights = read_values(from, group + "/state/weights", form);
    state.best = read_values(from, group + "/state/best", form);
    state.best_step = static_cast<int64_t>(from.number(group, "best_step"));
    state.first = read_values(from, group + "/state/first", form);
    state.second = read_values(from, group + "/state/second", form);
    const Tensor<double, 1> kl = from.read<double, 1>(group + "/train/kl");
    state.kl.assign(kl.data(), kl.data() + kl.size());
    state.step = kl.size();
    state.evaluations = read_evaluations(from, layer_);
    return state;
}

void Checkpoint::remove() const {
    std::filesystem::remove(path_);
    std::filesystem::remove_all(path_.string() + ".partial");
}

}  // namespace msa::experiments::fit
