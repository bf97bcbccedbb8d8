// SPDX-License-Identifier: MIT
#include "core/train/parameters.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/random.h"

namespace msa::train {
namespace {

/// FNV-1a: the same on every machine.
uint64_t hash(const std::string& name) {
    uint64_t h = 0xcbf29ce484222325U;
    for (char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    return h;
}

/// The values of the parameters `known` go to the places that the list has for them.
void take_known(std::span<float> to, const ParameterList& list, const ParameterList& known,
                std::span<const float> values) {
    MSA_CHECK(std::ssize(values) == known.size());
    const auto find = [](const ParameterList& in, const std::string& name) {
        return std::find_if(in.all().begin(), in.all().end(),
                            [&](const Parameter& p) { return p.name == name; });
    };
    for (const Parameter& p : list.all()) {
        const auto from = find(known, p.name);
        if (from == known.all().end()) {
            require(p.indexer, p.name, " is not there, but this model has it");
            continue;
        }
        require(from->rows == p.rows && from->columns == p.columns, p.name, " is [", from->rows,
                ", ", from->columns, "], must be [", p.rows, ", ", p.columns, "]");
        std::copy_n(values.begin() + from->offset, p.size(), to.begin() + p.offset);
    }
    for (const Parameter& p : known.all())
        require(p.indexer || find(list, p.name) != list.all().end(), p.name,
                " is there, but this model has none");
}

}  // namespace

ParameterIndex ParameterList::add(Parameter parameter) {
    for (const Parameter& other : all_) MSA_CHECK(other.name != parameter.name);
    parameter.offset = size_;
    size_ += parameter.size();
    all_.push_back(std::move(parameter));
    return all_.size() - 1;
}

std::vector<float> ParameterList::start(uint64_t seed) const {
    std::vector<float> values(static_cast<size_t>(size_));
    for (const Parameter& p : all_) {
        const uint64_t own = mix(seed, static_cast<int64_t>(hash(p.name)));
        for (int64_t i = 0; i < p.size(); ++i)
            values[static_cast<size_t>(p.offset + i)] =
                p.init_std > 0 ? static_cast<float>(p.init_std * random_normal(mix(own, i)))
                               : p.start;
    }
    return values;
}

std::vector<float> continue_from(const ParameterList& list, uint64_t seed,
                                 const ParameterList& known, std::span<const float> values) {
    std::vector<float> start = list.start(seed);
    for (const Parameter& p : list.all())
        if (p.added) std::fill_n(start.begin() + p.offset, p.size(), 0.F);
    take_known(start, list, known, values);
    return start;
}

std::vector<float> continue_from(const ParameterList& list, const ParameterList& known,
                                 std::span<const float> values) {
    std::vector<float> start(static_cast<size_t>(list.size()));
    take_known(start, list, known, values);
    return start;
}

Weights::Weights(const ParameterList& list, Ops& ops, std::span<const float> start)
    : list_(list), ops_(ops) {
    MSA_CHECK(std::ssize(start) == list.size());
    Backend& backend = ops.backend();
    values_ = backend.upload(View<const float, 1>(start.data(), {list.size()}));
    gradient_ = backend.make<float, 1>({list.size()});
    first_ = backend.make<float, 1>({list.size()});
    second_ = backend.make<float, 1>({list.size()});
    if (ops.element() != Element::f32) copy_ = Buffer<1>(backend, ops.element(), {list.size()});
    update_copy();
}

In<2> Weights::matrix(ParameterIndex index) const {
    const Parameter& p = list_[index];
    const In<1> all = copy_ ? copy_.in() : In<1>(values_.view());
    const auto* bytes = static_cast<const std::byte*>(all.data());
    return {bytes + p.offset * element_bytes(all.element()),
            {p.rows, p.columns},
            all.element(),
            all.space()};
}

View<const float, 1> Weights::vector(ParameterIndex index) const {
    const Parameter& p = list_[index];
    return values_.view().slice(p.offset, p.size());
}

View<float, 2> Weights::matrix_gradient(ParameterIndex index) {
    const Parameter& p = list_[index];
    const View<float, 1> all = gradient_;
    return {all.data() + p.offset, {p.rows, p.columns}, all.space()};
}

View<float, 1> Weights::vector_gradient(ParameterIndex index) {
    const Parameter& p = list_[index];
    return gradient_.view().slice(p.offset, p.size());
}

void Weights::clear_gradient() { ops_.clear(gradient_); }

void Weights::update_copy() {
    if (copy_) ops_.add(View<const float, 1>(values_), 1, copy_, Sum::set);
}

Weights::Norms Weights::gradient_norms() const {
    std::vector<int64_t> starts{0};
    for (const Parameter& p : list_.all()) starts.push_back(p.offset + p.size());
    const std::vector<double> squares = ops_.squared_norms(gradient_, starts);
    double backbone = 0, indexer = 0;
    for (ParameterIndex index = 0; index < squares.size(); ++index)
        (list_[index].indexer ? indexer : backbone) += squares[index];
    return {std::sqrt(backbone + indexer), std::sqrt(indexer), std::sqrt(backbone)};
}

void Weights::step(const AdamW& rule, int64_t step, double lr, const Norms& norms,
                   const Clipping& clip, bool freeze_index) {
    const auto factor = [&](double part) {
        const double norm = clip.apart ? part : norms.all;
        return clip.norm > 0 && norm > clip.norm ? clip.norm / norm : 1;
    };
    const double backbone = factor(norms.backbone), indexer = factor(norms.indexer);
    for (const Parameter& p : list_.all()) {
        if (p.indexer && freeze_index) continue;
        AdamW own = rule;
        if (!p.decays) own.weight_decay = 0;
        const auto part = [&](auto&& all) { return all.view().slice(p.offset, p.size()); };
        ops_.adamw(own, step, lr, p.indexer ? indexer : backbone, part(values_), part(gradient_),
                   part(first_), part(second_));
    }
    update_copy();
}

}  // namespace msa::train
