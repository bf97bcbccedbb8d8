// SPDX-License-Identifier: MIT
#include "experiments/bench/layers.h"

#include <algorithm>
#include <fstream>

namespace msa::experiments::bench {
namespace {

constexpr int64_t kLayerBytes = int64_t{1} << 34;  // of all layers together

/// Bytes that this machine's processes may still take; as good as endless where it does not say.
int64_t available_host_bytes() {
    std::ifstream info("/proc/meminfo");
    std::string key, unit;
    for (int64_t kibibytes = 0; info >> key >> kibibytes; std::getline(info, unit))
        if (key == "MemAvailable:") return kibibytes << 10;
    return INT64_MAX;
}

}  // namespace

Layers::Layers(Backend& backend, Meter& meter, const BenchOptions& options, const Case& c,
               Parts parts)
    : backend_(backend), meter_(meter), o_(options), parts_(parts) {
    const int64_t each = layer_bytes(c, o_, parts_);
    if (backend_.space() == Space::host && each > available_host_bytes())
        throw MemoryError(concat("it needs ", each, " bytes, this machine has ",
                                 available_host_bytes(), " left"));
    // Host backends have no launches to hide.
    const int64_t count = backend_.space() == Space::host
                              ? 1
                              : std::clamp<int64_t>(kLayerBytes / each, 1, kMostLayers);
    layers_.push_back(allocate_layer(backend_, c, o_, parts_));
    try {
        while (std::ssize(layers_) < count)
            layers_.push_back(allocate_layer(backend_, c, o_, parts_));
    } catch (const MemoryError&) {
        layers_.resize(1);  // one does; leave room for the backend's own needs
    }
    if (parts_.attention) fill_attention(backend_, c, layers_[0], o_.seed);
    if (parts_.gradient) fill_gradient(backend_, layers_[0], o_.seed);
    copy_to_others({.attention = parts_.attention, .gradient = parts_.gradient});
}

void Layers::copy_to_others(Parts parts) {
    for (size_t n = 1; n < layers_.size(); ++n)
        copy_operands(backend_, layers_[0], layers_[n], parts);
}

void Layers::poison_results() {
    Layer& layer = first();
    const auto poison = [&](auto& floats) {
        meter_.poison(floats.data(), floats.size() * int64_t{sizeof(float)});
    };
    if (parts_.attention) {
        meter_.poison(layer.out.data(), layer.out.bytes());
        poison(layer.lse);
    }
    if (parts_.gradient)
        for (Stored<3>* result : {&layer.d_q, &layer.d_k, &layer.d_v})
            meter_.poison(result->data(), result->bytes());
    if (parts_.index_gradient) {
        poison(layer.index_lse);
        poison(layer.d_index_q);
        poison(layer.d_index_k);
    }
}

void Layers::poison_ids() {
    Tensor<int32_t, 3>& ids = first().ids;
    meter_.poison(ids.data(), ids.size() * int64_t{sizeof(int32_t)});
}

Timing Layers::time(const std::function<void(Layer&)>& call) {
    return meter_.time([&](int64_t n) { call(layers_[static_cast<size_t>(n)]); },
                       std::ssize(layers_), o_.samples);
}

}  // namespace msa::experiments::bench
