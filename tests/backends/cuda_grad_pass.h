// SPDX-License-Identifier: MIT
// A pass whose operands, outputs and gradients are stored as tuned kernels take them.
#pragma once

#include <functional>
#include <limits>
#include <optional>

#include "core/number/convert.h"
#include "tests/backends/cuda_grad_test.h"
#include "tests/support/uploaded.h"

namespace msa::test {

/// A forward pass of operands in bf16 or f16, and gradients of it, on the device.
class Pass {
public:
    /// `of_loss` multiplies d_out.
    Pass(Backend& backend, const HalfCase& c, const std::function<void(Operands&)>& change = {},
         float of_loss = 1)
        : backend_(backend), p_(c.problem), element_(c.element) {
        Operands o = make_operands(c, element_);
        // Selections as those of the index, in float: there is nothing to compare them with.
        ids_ = backend.make<int32_t, 3>({p_.queries(), p_.kv_heads, c.rule.top_k});
        const auto index_q = backend.upload(o.index_q.view());
        const auto index_k = backend.upload(o.index_k.view());
        backend.index_select(p_, c.rule, {index_q, index_k}, ids_);
        if (change) change(o);
        q_ = here(o.q), k_ = here(o.k), v_ = here(o.v), out_ = here(o.q);
        Operands other = make_operands({c.name + " of d_out", p_, c.rule, c.values}, element_);
        std::reverse(other.q.data(), other.q.data() + other.q.size());
        for (int64_t i = 0; i < other.q.size(); ++i) other.q.data()[i] *= of_loss;
        d_out_ = here(other.q);
        lse_ = backend.make<float, 2>({p_.queries(), p_.query_heads});
        Tensor<float, 1> sinks({p_.query_heads});
        for (int64_t h = 0; h < sinks.size(); ++h) sinks.data()[h] = 0.25F * static_cast<float>(h);
        sinks_ = backend.upload(sinks.view());
    }
    void attend(bool sparse) {
        const AttentionOutput to{out_, lse_};
        sparse ? backend_.sparse_attention(p_, {q_, k_, v_}, ids_, to)
               : backend_.dense_attention(p_, {q_, k_, v_}, to);
    }
    void attend_with_sinks(LoopOrder order) {
        backend_.sparse_attention(p_, {q_, k_, v_, sinks_}, ids_, {out_, lse_}, order);
    }
    void select_nothing(QueryRange rows) {
        Tensor<int32_t, 3> ids = backend_.download(std::as_const(ids_).view());
        std::fill_n(&ids(rows.begin, 0, 0), (rows.end - rows.begin) * ids.extent(1) * ids.extent(2),
                    kNoBlock);
        ids_ = backend_.upload(std::as_const(ids).view());
    }
    /// Outputs are 0 and lse the sink there, which may have been in base 2.
    void expect_nothing_of(QueryRange rows) const {
        const auto lse = backend_.download(std::as_const(lse_).view());
        const auto sinks = backend_.download(std::as_const(sinks_).view());
        const Tensor<float, 3> out = out_.download();
        for (int64_t i = rows.begin; i < rows.end; ++i)
            for (int64_t h = 0; h < p_.query_heads; ++h) {
                ASSERT_NEAR(lse(i, h), sinks(h), 4 * kRoundoff * (1 + sinks(h))) << i;
                for (int64_t d = 0; d < p_.head_dim; ++d) ASSERT_EQ(out(i, h, d), 0.0F) << i;
            }
    }
    /// Of sparse attention in this order, or of dense attention, into outputs that hold NaN.
    Gradient gradient(Element stored, std::optional<LoopOrder> order) {
        prepare(stored);
        run(stored, order);
        return download(stored);
    }
    Gradient captured_gradient(std::optional<LoopOrder> order) {
        prepare(element_);
        const std::function<void()> again = backend_.make_graph([&] { run(element_, order); });
        prepare(element_);  // what the capture itself wrote is gone
        again();
        return download(element_);
    }
    /// d_sinks [Hq] against -sum exp(sink - lse) <d_out, out> in double. A product of float sums
    /// dh terms; exp and the rounding of the result are each good to kExpRoundoffs.
    void expect_sinks(const Tensor<float, 1>& got) {
        const auto lse = backend_.download(std::as_const(lse_).view());
        const Tensor<float, 3> out = out_.download(), d_out = d_out_.download();
        const auto sinks = backend_.download(std::as_const(sinks_).view());
        for (int64_t h = 0; h < p_.query_heads; ++h) {
            double sum = 0, size = 0;
            for (int64_t i = 0; i < p_.queries(); ++i) {
                if (std::isinf(lse(i, h))) continue;
                const double weight = std::exp(double{sinks(h)} - double{lse(i, h)});
                for (int64_t d = 0; d < p_.head_dim; ++d) {
                    const double term = weight * out(i, h, d) * d_out(i, h, d);
                    sum -= term;
                    size += std::fabs(term);
                }
            }
            // The argument of exp is off by its rounding, at most kRoundoff times it.
            const double terms = static_cast<double>(p_.head_dim) + 64 + 2 * kExpRoundoffs;
            EXPECT_NEAR(double{got(h)}, sum, gamma(terms) * size) << "head " << h;
        }
    }
    void spoil_d_out(int64_t query) {
        const int64_t bytes = element_bytes(element_);
        const float wide = std::numeric_limits<float>::quiet_NaN();
        uint16_t nan = 0;
        encode({&wide, 1}, element_, &nan);
        backend_.copy(
            static_cast<char*>(d_out_.data()) + query * p_.query_heads * p_.head_dim * bytes,
            Space::device, &nan, Space::host, bytes);
    }

private:
    Uploaded<3> here(const Tensor<float, 3>& wide) const { return {backend_, element_, wide}; }
    Uploaded<3>* results(Element stored) { return stored == Element::f32 ? wide_ : narrow_; }
    void prepare(Element stored) {
        const auto poisoned = [&](Uploaded<3>& to, Shape<3> shape) {
            Tensor<float, 3> nan(shape);
            std::fill_n(nan.data(), nan.size(), std::numeric_limits<float>::quiet_NaN());
            if (to.data() == nullptr)
                to = {backend_, stored, nan};
            else
                to.assign(nan);
        };
        poisoned(results(stored)[0], q_.shape());
        poisoned(results(stored)[1], k_.shape());
        poisoned(results(stored)[2], k_.shape());
        if (d_sinks_.size() == 0) d_sinks_ = backend_.make<float, 1>({p_.query_heads});
    }
    void run(Element stored, std::optional<LoopOrder> order) {
        const Uploaded<3>* const to = results(stored);
        const AttentionInput in{q_, k_, v_, sinks_};
        const AttentionSaved saved{out_, lse_, d_out_};
        const AttentionGradient into{to[0], to[1], to[2], d_sinks_};
        order ? backend_.sparse_attention_grad(p_, in, ids_, saved, into, *order)
              : backend_.dense_attention_grad(p_, in, saved, into);
    }
    Gradient download(Element stored) {
        const Uploaded<3>* const from = results(stored);
        return {from[0].download(), from[1].download(), from[2].download(),
                backend_.download(std::as_const(d_sinks_).view())};
    }

    Backend& backend_;
    Problem p_;
    Element element_;
    Uploaded<3> q_, k_, v_, d_out_, out_;
    Tensor<float, 2> lse_;
    Tensor<int32_t, 3> ids_;
    Tensor<float, 1> sinks_, d_sinks_;
    Uploaded<3> narrow_[3], wide_[3];
};

}  // namespace msa::test
