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
    o.q = read_scaled(p, q.values, q.scales, false);
    o.k = read_scaled(p, k.values, k.scales, true);
    o.v = read_scaled(p, v.values, v.scales, true);
    return o;
}

ScaledOperands store_scaled(const Problem& p, const Operands& o, bool tensor) {
    const auto unit = [&](OperandScale own) { return tensor ? OperandScale::tensor : own; };
    return {store_scaled(p, o.q, unit(OperandScale::row)),
            store_scaled(p, o.k, unit(OperandScale::block)),
            store_scaled(p, o.v, unit(OperandScale::block))};
}

Attention sparse_attention(Backend& backend, const Problem& p, const ScaledOperands& o,
                           View<const int32_t, 3> ids, LoopOrder order, Element stored) {
    const auto values = [&](const ScaledOperand& of) { return backend.upload(of.values.view()); };
    const auto scales = [&](const ScaledOperand& of) { return backend.upload(of.scales.view()); };
    const Tensor<e4m3, 3> q = values(o.q), k = values(o.k), v = values(o.v);
    const Tensor<float, 2> of_q = scales(o.q), of_k = scales(o.k), of_v = scales(o.v);
    const Tensor<int32_t, 3> ids_here = backend.upload(ids);
    Tensor<float, 2> lse = backend.make<float, 2>({p.queries(), p.query_heads});
    const AttentionInput in{q, k, v, {}, {of_q, of_k, of_v}};
    Tensor<float, 3> out =
        (stored == Element::bf16 ? run<bf16> : run<float>)(backend, p, in, ids_here, order, lse);
    return {std::move(out), backend.download(std::as_const(lse).view())};
}

}  // namespace msa::test
