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
    fill_pages(backend_, c, layers_[0], {.attention = parts_.attention});
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

GivenLse forward_lse(Backend& backend, const Problem& p, const Layer& layer, const Stored<3>& q,
                     const IndexInput& index, int64_t top_k) {
    GivenLse given{{},
                   backend.make<float, 2>({p.queries(), p.query_heads}),
                   backend.make<float, 2>({p.queries(), p.kv_heads})};
    auto out = backend.make<float, 3>(q.shape());
    const int64_t k = top_k > 0 ? top_k : p.blocks();  // all blocks are the full support
    auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, k});
    backend.index_select(p, {.top_k = k}, index, ids, given.index);
    const AttentionInput in{q, layer.k, layer.v};
    if (top_k == 0) {
        backend.dense_attention(p, in, {out, given.main});
        return given;
    }
    backend.sparse_attention(p, in, ids, {out, given.main});
    given.ids = std::move(ids);
    return given;
}

void full_index_lse(Backend& backend, const Problem& p, const IndexOperands& index, Layer& layer) {
    Problem branch = p;
    branch.query_heads = p.kv_heads;
    branch.kv_heads = 1;
    branch.head_dim = p.index_dim;
    branch.softmax_scale_override = p.index_scale();
    const In<3> keys{
        index.k.data(), {p.keys(), 1, p.index_dim}, index.k.element(), backend.space()};
    Stored<3> out(backend, index.q.shape(), index.q.element());
    backend.dense_attention(branch, {index.q, keys, keys}, {out, layer.index_lse});
}

}  // namespace msa::experiments::bench
