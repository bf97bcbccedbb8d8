// SPDX-License-Identifier: MIT
#include "tests/support/scaled.h"

#include <algorithm>
#include <cmath>

#include "core/number/convert.h"
#include "core/number/half.h"

namespace msa::test {
namespace {

template <typename T>
Tensor<float, 3> run(Backend& backend, const Problem& p, const AttentionInput& in,
                     View<const int32_t, 3> ids, LoopOrder order, View<float, 2> lse) {
    Tensor<T, 3> host({p.queries(), p.query_heads, p.head_dim});
    std::fill_n(host.data(), host.size(), T(std::nanf("")));
    Tensor<T, 3> out = backend.upload(host.view());
    backend.sparse_attention(p, in, ids, {out, lse}, order);
    const Tensor<T, 3> got = backend.download(std::as_const(out).view());
    Tensor<float, 3> wide(got.shape());
    decode(got.data(), ElementOf<T>::value, {wide.data(), static_cast<size_t>(wide.size())});
    return wide;
}

}  // namespace

Operands ScaledOperands::floats(const Problem& p) const {
    Operands o;
    o.q = read_scaled(p, q.values.view(), q.scales, false);
    o.k = read_scaled(p, k.values.view(), k.scales, true);
    o.v = read_scaled(p, v.values.view(), v.scales, true);
    return o;
}

ScaledOperands store_scaled(const Problem& p, const Operands& o, bool tensor) {
    const auto unit = [&](OperandScale own) { return tensor ? OperandScale::tensor : own; };
    return {msa::store_scaled<e4m3>(p, o.q, unit(OperandScale::row)),
            msa::store_scaled<e4m3>(p, o.k, unit(OperandScale::block)),
            msa::store_scaled<e4m3>(p, o.v, unit(OperandScale::block))};
}

Attention sparse_attention(Backend& backend, const Problem& p, const ScaledOperands& o,
                           View<const int32_t, 3> ids, LoopOrder order, Element stored) {
    const auto values = [&](const ScaledOperand<e4m3>& of) {
        return backend.upload(of.values.view());
    };
    const auto scales = [&](const ScaledOperand<e4m3>& of) {
        return backend.upload(of.scales.view());
    };
    const Tensor<e4m3, 3> q = values(o.q), k = values(o.k), v = values(o.v);
    const Tensor<float, 2> of_q = scales(o.q), of_k = scales(o.k), of_v = scales(o.v);
    const Tensor<int32_t, 3> ids_here = backend.upload(ids);
    Tensor<float, 2> lse = backend.make<float, 2>({p.queries(), p.query_heads});
    const AttentionInput in{q, k, v, {}, {of_q, of_k, of_v}};
    Tensor<float, 3> out =
        (stored == Element::bf16 ? run<bf16> : run<float>)(backend, p, in, ids_here, order, lse);
    return {std::move(out), backend.download(std::as_const(lse).view())};
}

namespace {

/// The index operands in a backend's space.
class UploadedIndex {
public:
    UploadedIndex(Backend& backend, const ScaledIndex& o)
        : q_(backend.upload(o.q.values.view())),
          k_(backend.upload(o.k.values.view())),
          of_q_(backend.upload(o.q.scales.view())),
          of_k_(backend.upload(o.k.scales.view())) {}
    IndexInput view() const {
        const View<const Int8, 2> keys(k_.data(), {k_.extent(0), k_.extent(2)}, k_.view().space());
        return {q_, keys, {of_q_, of_k_, {}}};
    }

private:
    Tensor<Int8, 3> q_, k_;
    Tensor<float, 2> of_q_, of_k_;
};

}  // namespace

Operands ScaledIndex::floats(const Problem& p, const Operands& o) const {
    Operands read = with_queries(o, {0, p.queries()});
    read.index_q = read_scaled(p, q.values.view(), q.scales.view(), false);
    const Tensor<float, 3> keys = read_scaled(p, k.values.view(), k.scales.view(), true);
    std::copy_n(keys.data(), keys.size(), read.index_k.data());
    return read;
}

ScaledIndex store_index(const Problem& p, const Operands& o) {
    const View<const float, 3> keys(o.index_k.data(), {o.index_k.extent(0), 1, o.index_k.extent(1)},
                                    Space::host);
    return {msa::store_scaled<Int8>(p, o.index_q, OperandScale::row),
            msa::store_scaled<Int8>(p, keys, OperandScale::block)};
}

Tensor<float, 3> index_scores(Backend& backend, const Problem& p, const ScaledIndex& o) {
    const UploadedIndex in(backend, o);
    Tensor<float, 3> host({p.queries(), p.kv_heads, p.blocks()});
    std::fill_n(host.data(), host.size(), std::nanf(""));
    Tensor<float, 3> scores = backend.upload(host.view());
    backend.index_scores(p, in.view(), scores);
    return backend.download(std::as_const(scores).view());
}

Tensor<int32_t, 3> index_select(Backend& backend, const Problem& p, const SelectionRule& rule,
                                const ScaledIndex& o) {
    const UploadedIndex in(backend, o);
    Tensor<int32_t, 3> host({p.queries(), p.kv_heads, rule.top_k});
    std::fill_n(host.data(), host.size(), -7);
    Tensor<int32_t, 3> ids = backend.upload(host.view());
    backend.index_select(p, rule, in.view(), ids);
    return backend.download(std::as_const(ids).view());
}

}  // namespace msa::test
