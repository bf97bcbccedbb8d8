// SPDX-License-Identifier: MIT
#include "experiments/pretrain/checkpoint.h"

#include <algorithm>

#include "core/error.h"

namespace msa::experiments::pretrain {
namespace {

constexpr const char* kWeights = "/weights/";
constexpr const char* kState = "/state";
constexpr const char* kIndexer = ".indexer.";  // in the name of a parameter of the Index Branch

std::string list_of(const char* name) { return std::string(kState) + "/" + name; }

/// The optimizer's moments: lists in the order of the model's parameters.
void write_list(io::UnitWriter& to, Backend& backend, const char* name, View<const float, 1> values,
                const char* what) {
    const Tensor<float, 1> host = backend.download(values);
    to.write<float, 1>(list_of(name), host.view(), {"value", "1", what});
}

/// All weights of a file, with their names and shapes.
struct Stored {
    explicit Stored(const io::ResultsReader& from) {
        for (const io::DatasetInfo& dataset : from.datasets("/weights")) {
            const std::string name = dataset.path.substr(std::string(kWeights).size());
            list.add({.name = name,
                      .rows = dataset.shape.size() == 2 ? dataset.shape[0] : 1,
                      .columns = dataset.shape.back(),
                      .indexer = name.find(kIndexer) != std::string::npos});
            from.visit(dataset, [&](std::span<const double> part) {
                for (double value : part) values.push_back(static_cast<float>(value));
            });
        }
    }
    train::ParameterList list;
    std::vector<float> values;
};

void copy_values(Backend& backend, std::span<const float> from, View<float, 1> to) {
    MSA_CHECK(std::ssize(from) == to.size());
    backend.copy(to.data(), to.space(), from.data(), Space::host,
                 to.size() * int64_t{sizeof(float)});
}

}  // namespace

void Checkpoint::save(train::Model& model, const RunState& state) const {
    Backend& backend = model.ops().backend();
    train::Weights& weights = model.weights();
    io::ResultsWriter file(path_, record_, io::IfExists::overwrite);
    io::UnitWriter to = file.begin("training");
    const Tensor<float, 1> values = backend.download(std::as_const(weights).values());
    for (const train::Parameter& p : model.parameters().all()) {
        const float* const first = values.data() + p.offset;
        if (p.rows == 1)
            to.write<float, 1>(kWeights + p.name, {first, {p.columns}}, {"channel", "1", ""});
        else
            to.write<float, 2>(kWeights + p.name, {first, {p.rows, p.columns}},
                               {"output,input", "1", ""});
    }
    write_list(to, backend, "first", weights.first(), "first moments of AdamW");
    write_list(to, backend, "second", weights.second(), "second moments of AdamW");
    to.attribute(kState, "step", state.step);
    to.attribute(kState, "seconds", state.seconds);
    to.attribute(kState, "flops", state.flops);
    for (const Curve& curve : state.curves) curve.write(to);
    to.finish();
    file.finish();
}

void Checkpoint::load(train::Model& model, RunState& state) const {
    io::require_whole(path_);
    const io::ResultsReader from(path_);
    io::require_same_run(path_.string(), from.run(), record_);
    Backend& backend = model.ops().backend();
    const Stored stored(from);
    copy_values(backend, train::continue_from(model.parameters(), 0, stored.list, stored.values),
                model.weights().values());
    for (const auto& [name, to] :
         {std::pair{"first", model.weights().first()}, {"second", model.weights().second()}}) {
        const Tensor<float, 1> moments = from.read<float, 1>(list_of(name));
        copy_values(backend, {moments.data(), static_cast<size_t>(moments.size())}, to);
    }
    model.weights().renew();
    state.step = step();
    state.seconds = from.number(kState, "seconds");
    state.flops = from.number(kState, "flops");
    for (Curve& curve : state.curves) curve.read(from);
}

int64_t Checkpoint::step() const {
    return static_cast<int64_t>(io::ResultsReader(path_).number(kState, "step"));
}

void Checkpoint::remove() const {
    std::filesystem::remove(path_);
    std::filesystem::remove_all(path_.string() + ".partial");
}

std::vector<float> start_values(const std::filesystem::path& path, const train::ParameterList& list,
                                uint64_t seed) {
    io::require_whole(path);
    const io::ResultsReader from(path);
    require(from.has("/weights"), path.string(),
            ": has no /weights, must be a checkpoint of msa-pretrain");
    const Stored stored(from);
    try {
        return train::continue_from(list, seed, stored.list, stored.values);
    } catch (const InputError& error) {
        throw InputError(text(path.string(), ": ", error.what()));
    }
}

}  // namespace msa::experiments::pretrain
