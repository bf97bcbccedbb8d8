// SPDX-License-Identifier: MIT
// The projections of an indexer, forward and backward. The Index Branch (eq:msa-index-proj) maps
// hidden states x to index_q (one head per group) and index_k (one head). Each head may have an RMS
// norm and a rotation of its first channels, like the Main Branch (core/indexer/projection.h).
// Other architectures differ as their rows in core/indexer/architecture.h say: any number of query
// heads, a third projection to a weight of each, or a key head per group. Where every head reads
// its own inputs, x holds the inputs of all heads, one after the other. No gradient goes into x
// (eq:msa-detach). Float; results do not depend on `threads` (threads_or_all).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/indexer/architecture.h"
#include "core/tensor.h"

namespace msa {

/// Sizes of an indexer, its norms and its RoPE.
struct IndexForm {
    int64_t groups = 0;                         // heads of index_q: Hkv, or as many as asked for
    int64_t index_dim = 0;                      // didx
    int64_t model_dim = 0;                      // d_model
    bool rms_norm = false;                      // per head, with a learned weight per channel
    int64_t rotary_dim = 0;                     // channels that RoPE rotates; 0: none
    double rope_theta = 1e4;                    // of plain RoPE
    std::vector<double> rope_frequencies = {};  // of scaled RoPE [rotary_dim / 2]; empty: plain
    Architecture architecture = Architecture::msa;
    /// Where heads have own inputs: channels that a key head reads; a query head reads model_dim.
    int64_t key_dim = 0;
    /// Where the inputs are before RoPE: frequencies of the model's RoPE; empty: none.
    std::vector<double> undone_rope = {};

    static constexpr double kNormEpsilon = 1e-6;

    const ArchitectureTraits& traits() const { return traits_of(architecture); }
    int64_t key_heads() const { return traits().own_inputs ? groups : 1; }
    /// Throws InputError naming the value and the rule it breaks.
    void validate() const;
};

/// The weights of an indexer, or values of the same shape: a gradient, moments of an optimizer. One
/// list of values in the order w_q, w_k, w_h, norm_q, norm_k.
class IndexWeights {
public:
    IndexWeights() = default;
    /// All zero, but norm weights one.
    explicit IndexWeights(const IndexForm& form);

    const IndexForm& form() const { return form_; }
    std::span<float> values() { return values_; }
    std::span<const float> values() const { return values_; }

    View<float, 2> w_q() { return {values_.data(), shape_q()}; }  // [Hkv * didx, d_model]
    /// [didx, d_model]; with own inputs [Hkv * didx, key_dim].
    View<float, 2> w_k() { return {values_.data() + k_, shape_k()}; }
    View<float, 2> w_h() { return weights(values_.data()); }     // [heads, d_model]; or absent
    View<float, 1> norm_q() { return norm(values_.data(), 0); }  // [didx]; absent without norm
    View<float, 1> norm_k() { return norm(values_.data(), 1); }  // [didx]; absent without norm
    View<const float, 2> w_q() const { return {values_.data(), shape_q()}; }
    View<const float, 2> w_k() const { return {values_.data() + k_, shape_k()}; }
    View<const float, 2> w_h() const { return weights(values_.data()); }
    View<const float, 1> norm_q() const { return norm(values_.data(), 0); }
    View<const float, 1> norm_k() const { return norm(values_.data(), 1); }

private:
    Shape<2> shape_q() const { return {form_.groups * form_.index_dim, form_.model_dim}; }
    Shape<2> shape_k() const {
        return {form_.key_heads() * form_.index_dim,
                form_.traits().own_inputs ? form_.key_dim : form_.model_dim};
    }
    Shape<2> shape_h() const {
        return {form_.traits().head_weights ? form_.groups : 0, form_.model_dim};
    }
    template <typename T>
    View<T, 2> weights(T* values) const {
        if (!form_.traits().head_weights) return {};
        return {values + h_, shape_h()};
    }
    template <typename T>
    View<T, 1> norm(T* values, int64_t which) const {
        if (!form_.rms_norm) return {};
        return {values + norm_ + which * form_.index_dim, {form_.index_dim}};
    }

    IndexForm form_;
    int64_t k_ = 0, h_ = 0, norm_ = 0;  // where w_k, w_h and the norms begin
    std::vector<float> values_;
};

/// Changes products [any n, heads, didx] in place, before norm and rotation: tiles of tokens, from
/// several threads.
using ChangeProduct = std::function<void(View<float, 3>)>;

/// index_q [n, Hkv, didx] from hidden states x [n, d_model] (own inputs: [n, Hkv * model_dim]) of
/// tokens at `positions` [n].
Tensor<float, 3> index_queries(const IndexWeights&, View<const float, 2> x,
                               std::span<const int64_t> positions, int threads = 0,
                               const ChangeProduct& = {});
/// index_k [n, 1, didx] likewise; own inputs: [n, Hkv, didx] from x [n, Hkv * key_dim].
Tensor<float, 3> index_keys(const IndexWeights&, View<const float, 2> x,
                            std::span<const int64_t> positions, int threads = 0,
                            const ChangeProduct& = {});
/// Head weights w [n, 1, heads]: w_h x, without norm or rotation.
Tensor<float, 3> index_head_weights(const IndexWeights&, View<const float, 2> x, int threads = 0);

/// Gradient of the weights (w_q, norm_q) from that of index_q [n, Hkv, didx]; overwrites these
/// parts of `gradient`, which has the same form.
void index_queries_grad(const IndexWeights&, View<const float, 2> x,
                        std::span<const int64_t> positions, View<const float, 3> d_index_q,
                        IndexWeights& gradient, int threads = 0);
/// The same for w_k, norm_k from that of index_k [n, 1, didx], with own inputs [n, Hkv, didx].
void index_keys_grad(const IndexWeights&, View<const float, 2> x,
                     std::span<const int64_t> positions, View<const float, 3> d_index_k,
                     IndexWeights& gradient, int threads = 0);
/// The same for w_h from that of w [n, 1, heads].
void index_head_weights_grad(View<const float, 2> x, View<const float, 3> d_weights,
                             IndexWeights& gradient, int threads = 0);

}  // namespace msa
