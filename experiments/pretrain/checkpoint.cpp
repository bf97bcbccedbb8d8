// SPDX-License-Identifier: MIT
#include "experiments/pretrain/checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace msa::experiments::pretrain {
namespace {

constexpr const char* kWeights = "/weights";
constexpr const char* kState = "/state";
constexpr const char* kFirst = "/state/first";
constexpr const char* kSecond = "/state/second";
constexpr const char* kIndexer = ".indexer.";  // in the name of a parameter of the Index Branch

/// A number for each of the model's parameters, by their names.
void write_values(io::UnitWriter& to, train::Model& model, const std::string& group,
                  View<const float, 1> list, const char* what) {
    const Tensor<float, 1> values = model.ops().backend().download(list);
    for (const train::Parameter& p : model.parameters().all()) {
        const float* const first = values.data() + p.offset;
        const std::string path = group + "/" + p.name;
        if (p.rows == 1)
            to.write<float, 1>(path, {first, {p.columns}}, {"channel", "1", what, false});
        else
            to.write<float, 2>(path, {first, {p.rows, p.columns}},
                               {"output,input", "1", what, false});
    }
}

/// Those of a file, with their names and shapes.
struct Stored {
    Stored(const io::ResultsReader& from, const std::string& group) {
        for (const io::DatasetInfo& dataset : from.datasets(group)) {
            const std::string name = dataset.path.substr(group.size() + 1);
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

/// Weights, moments and curves, and where the run stands.
void take_over(const io::ResultsReader& from, uint64_t seed, train::Model& model, RunState& state) {
    Backend& backend = model.ops().backend();
    train::Weights& weights = model.weights();
    const train::ParameterList& list = model.parameters();
    const Stored stored(from, kWeights);
    copy_values(backend, train::continue_from(list, seed, stored.list, stored.values),
                weights.values());
    for (const auto& [group, to] :
         {std::pair{kFirst, weights.first()}, {kSecond, weights.second()}}) {
        const Stored moments(from, group);
        copy_values(backend, train::continue_from(list, moments.list, moments.values), to);
    }
    weights.update_copy();
    state.step = static_cast<int64_t>(from.number(kState, "step"));
    state.seconds = from.number(kState, "seconds");
    state.flops = from.number(kState, "flops");
    for (Curve& curve : state.curves) curve.read(from);
}

/// What the text of a step hangs on.
constexpr const char* kOfText[] = {"context",  "sequences", "short_documents", "begin", "bos",
                                   "held_out", "tasks",     "exercises",       "pairs", "questions",
                                   "hops"};

/// A finished run of fewer than `steps` steps, whose steps read what this run's would.
void require_trunk(const io::ResultsReader& from, const io::RunRecord& own, int64_t steps) {
    using nlohmann::json;
    require(from.has(kWeights) && from.has(kFirst),
            "is no checkpoint of msa-pretrain with moments");
    const io::RunRecord& trunk = from.run();
    const json there = json::parse(trunk.options), here = json::parse(own.options);
    const int64_t until = there.value("until", int64_t{0});
    const int64_t end = until > 0 ? until : there.value("steps", int64_t{0});
    const auto done = static_cast<int64_t>(from.number(kState, "step"));
    require(done >= end, "is a trunk that is not finished: ", done, " of its ", end,
            " steps are done; its own command line with --resume finishes it");
    require(done < steps, "has ", done, " steps behind it, a fork goes on to --steps = ", steps,
            ", which must be more");
    const auto same = [](const char* what, const auto& known, const auto& wanted) {
        require(known == wanted, what, " is ", known, " there and ", wanted,
                " here; a fork reads on where its trunk stopped, so they must be the same");
    };
    same("seed", trunk.seed, own.seed);
    for (const char* option : kOfText)
        same(option, there.value(option, json()).dump(), here.value(option, json()).dump());
    for (const auto& [name, hash] : trunk.inputs)
        require(own.inputs.contains(name) && own.inputs.at(name) == hash, "read another ", name,
                " than this run does");
}

}  // namespace

void Checkpoint::save(train::Model& model, const RunState& state) const {
    train::Weights& weights = model.weights();
    io::ResultsWriter file(path_, record_, io::IfExists::overwrite);
    io::UnitWriter to = file.begin("training");
    write_values(to, model, kWeights, std::as_const(weights).values(), "");
    write_values(to, model, kFirst, weights.first(), "first moments of AdamW");
    write_values(to, model, kSecond, weights.second(), "second moments of AdamW");
    to.attribute(kState, "step", state.step);
    to.attribute(kState, "seconds", state.seconds);
    to.attribute(kState, "flops", state.flops);
    for (const Curve& curve : state.curves) curve.write(to);
    file.finish(std::move(to));
}

void Checkpoint::load(train::Model& model, RunState& state) const {
    io::verify_checksum(path_);
    const io::ResultsReader from(path_);
    io::require_same_run(path_.string(), from.run(), record_);
    take_over(from, 0, model, state);
}

void Checkpoint::fork(const std::filesystem::path& path, int64_t steps, train::Model& model,
                      RunState& state) const {
    io::verify_checksum(path);
    const io::ResultsReader from(path);
    try {
        require_trunk(from, record_, steps);
        take_over(from, record_.seed, model, state);
    } catch (const InputError& error) {
        throw InputError(concat(path.string(), ": ", error.what()));
    }
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
    io::verify_checksum(path);
    const io::ResultsReader from(path);
    require(from.has(kWeights), path.string(),
            ": has no /weights, must be a checkpoint of msa-pretrain");
    const Stored stored(from, kWeights);
    try {
        return train::continue_from(list, seed, stored.list, stored.values);
    } catch (const InputError& error) {
        throw InputError(concat(path.string(), ": ", error.what()));
    }
}

}  // namespace msa::experiments::pretrain
