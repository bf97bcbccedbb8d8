// SPDX-License-Identifier: MIT
#include "tests/support/runner.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/number/half.h"
#include "tests/support/random.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

template <int Rank>
void round_to(Element element, Tensor<float, Rank>& values) {
    msa::round_to(element, {values.data(), static_cast<size_t>(values.size())});
}

template <typename T>
T poison() {
    if constexpr (std::is_integral_v<T>) return std::numeric_limits<T>::min();
    return std::numeric_limits<T>::quiet_NaN();
}

/// An output filled with poison, between two guards of poison that nobody may touch.
template <typename T, int Rank>
class Guarded {
public:
    Guarded(Backend& backend, Shape<Rank> shape) : backend_(backend), shape_(shape) {
        Tensor<T, 1> filled({element_count(shape) + 2 * kGuard});
        std::fill_n(filled.data(), filled.size(), poison<T>());
        storage_ = backend.upload(View<const T, 1>(filled.view()));
    }
    operator View<T, Rank>() { return {storage_.data() + kGuard, shape_, storage_.view().space()}; }
    Tensor<T, Rank> take() {
        const Tensor<T, 1> all = backend_.download(storage_.view());
        const T clean = poison<T>();
        for (int64_t i = 0; i < kGuard; ++i)
            for (const T* guard : {all.data() + i, all.data() + all.size() - 1 - i})
                EXPECT_EQ(std::memcmp(guard, &clean, sizeof(T)), 0)
                    << "written outside of an output of shape " << to_string(shape_);
        Tensor<T, Rank> result(shape_);
        std::copy_n(all.data() + kGuard, result.size(), result.data());
        return result;
    }

private:
    static constexpr int64_t kGuard = 64;
    Backend& backend_;
    Shape<Rank> shape_;
    Tensor<T, 1> storage_;
};

BackendOptions options_with(int threads) {
    BackendOptions options;
    options.threads = threads;
    return options;
}

}  // namespace

Tensor<float, 3> make_d_out(Shape<3> shape, Element element) {
    Tensor<float, 3> d_out = normal<3>(shape, 11);
    round_to(element, d_out);
    return d_out;
}

Operands make_operands(const Case& c, Element element) {
    const Problem& p = c.problem;
    const float q_scale = c.values == Values::extreme ? 1e4F : 1.0F;
    Operands o{normal<3>({p.queries(), p.query_heads, p.head_dim}, 1, q_scale),
               normal<3>({p.keys(), p.kv_heads, p.head_dim}, 2),
               normal<3>({p.keys(), p.kv_heads, p.head_dim}, 3),
               normal<3>({p.queries(), p.kv_heads, p.index_dim}, 4, q_scale),
               normal<2>({p.keys(), p.index_dim}, 5),
               element};
    if (c.values == Values::equal) {
        for (Tensor<float, 3>* t : {&o.q, &o.k, &o.index_q})
            std::fill_n(t->data(), t->size(), 0.5F);
        std::fill_n(o.index_k.data(), o.index_k.size(), 0.5F);
    }
    if (c.values == Values::ternary) {
        const auto cut = [](float x) { return x > 0.43F ? 1.0F : x < -0.43F ? -1.0F : 0.0F; };
        for (Tensor<float, 3>* t : {&o.q, &o.k, &o.index_q})
            std::transform(t->data(), t->data() + t->size(), t->data(), cut);
        std::transform(o.index_k.data(), o.index_k.data() + o.index_k.size(), o.index_k.data(),
                       cut);
    }
    if (c.values == Values::rising) {
        for (Tensor<float, 3>* t : {&o.q, &o.index_q}) std::fill_n(t->data(), t->size(), 1.0F);
        const auto rise = [](View<float, 1> key, int64_t j, double scale) {
            const double step = 3 / (scale * static_cast<double>(key.size()));
            std::fill_n(key.data(), key.size(), static_cast<float>(step * static_cast<double>(j)));
        };
        for (int64_t j = 0; j < p.keys(); ++j) {
            rise(o.index_k.view()[j], j, p.index_scale());
            for (int64_t r = 0; r < p.kv_heads; ++r) rise(o.k.view()[j][r], j, p.softmax_scale());
        }
    }
    for (Tensor<float, 3>* t : {&o.q, &o.k, &o.v, &o.index_q}) round_to(element, *t);
    round_to(element, o.index_k);
    if (c.sinks) o.sinks = normal<1>({p.query_heads}, 6);
    return o;
}

Operands with_queries(const Operands& o, QueryRange range) {
    const auto rows = [&]<int Rank>(const Tensor<float, Rank>& all, int64_t first, int64_t count) {
        const View<const float, Rank> part = all.view().slice(first, count);
        Tensor<float, Rank> copy(part.shape());
        std::copy_n(part.data(), part.size(), copy.data());
        return copy;
    };
    const int64_t count = range.end - range.begin;
    return {rows(o.q, range.begin, count),
            rows(o.k, 0, o.k.extent(0)),
            rows(o.v, 0, o.v.extent(0)),
            rows(o.index_q, range.begin, count),
            rows(o.index_k, 0, o.index_k.extent(0)),
            o.element,
            o.sinks.data() != nullptr ? rows(o.sinks, 0, o.sinks.extent(0)) : Tensor<float, 1>()};
}

double IndexKl::mean() const {
    return std::accumulate(kl.data(), kl.data() + kl.size(), 0.0) / static_cast<double>(kl.size());
}

Runner::Runner(Subject subject, int threads)
    : subject_(std::move(subject)),
      backend_(make_backend(subject_.backend, options_with(threads))) {}

Tensor<float, 1> Runner::upload_sinks(const Operands& o) {
    if (o.sinks.data() == nullptr) return {};
    return backend_->upload(o.sinks.view());
}

/// call(input, output)
template <typename Call>
Attention Runner::attend(const Problem& p, const Operands& o, Call call) {
    const Uploaded<3> q(*backend_, element(), o.q), k(*backend_, element(), o.k),
        v(*backend_, element(), o.v);
    const Shape<3> shape{p.queries(), p.query_heads, p.head_dim};
    const Tensor<float, 1> sinks = upload_sinks(o);
    Guarded<float, 2> lse(*backend_, {p.queries(), p.query_heads});
    if (subject_.stored == Element::f32) {
        Guarded<float, 3> out(*backend_, shape);
        call(AttentionInput{q, k, v, sinks}, AttentionOutput{View<float, 3>(out), lse});
        return {out.take(), lse.take()};
    }
    const auto attend_in = [&]<typename T>() {
        Guarded<T, 3> out(*backend_, shape);
        call(AttentionInput{q, k, v, sinks}, AttentionOutput{View<T, 3>(out), lse});
        const Tensor<T, 3> narrow = out.take();
        Attention got{Tensor<float, 3>(shape), lse.take()};
        std::transform(narrow.data(), narrow.data() + narrow.size(), got.out.data(),
                       [](T value) { return static_cast<float>(value); });
        return got;
    };
    return subject_.stored == Element::f16 ? attend_in.template operator()<f16>()
                                           : attend_in.template operator()<bf16>();
}

Attention Runner::dense_attention(const Problem& p, const Operands& o) {
    return attend(p, o, [&](const AttentionInput& in, const AttentionOutput& to) {
        backend_->dense_attention(p, in, to);
    });
}

Tensor<float, 3> Runner::index_scores(const Problem& p, const Operands& o) {
    const Uploaded<3> index_q(*backend_, element(), o.index_q);
    const Uploaded<2> index_k(*backend_, element(), o.index_k);
    Guarded<float, 3> scores(*backend_, {p.queries(), p.kv_heads, p.blocks()});
    backend_->index_scores(p, {index_q, index_k}, scores);
    return scores.take();
}

Tensor<int32_t, 3> Runner::select_blocks(const Problem& p, const SelectionRule& rule,
                                         View<const float, 3> scores) {
    const Tensor<float, 3> here = backend_->upload(scores);
    Guarded<int32_t, 3> ids(*backend_, {p.queries(), p.kv_heads, rule.top_k});
    backend_->select_blocks(p, rule, here, ids);
    return ids.take();
}

Tensor<int32_t, 3> Runner::index_select(const Problem& p, const SelectionRule& rule,
                                        const Operands& o) {
    const Uploaded<3> index_q(*backend_, element(), o.index_q);
    const Uploaded<2> index_k(*backend_, element(), o.index_k);
    Guarded<int32_t, 3> ids(*backend_, {p.queries(), p.kv_heads, rule.top_k});
    backend_->index_select(p, rule, {index_q, index_k}, ids);
    return ids.take();
}

Selection Runner::index_select_lse(const Problem& p, const SelectionRule& rule, const Operands& o) {
    const Uploaded<3> index_q(*backend_, element(), o.index_q);
    const Uploaded<2> index_k(*backend_, element(), o.index_k);
    Guarded<int32_t, 3> ids(*backend_, {p.queries(), p.kv_heads, rule.top_k});
    Guarded<float, 2> lse(*backend_, {p.queries(), p.kv_heads});
    backend_->index_select(p, rule, {index_q, index_k}, ids, lse);
    return {ids.take(), lse.take()};
}

Attention Runner::sparse_attention(const Problem& p, const Operands& o, View<const int32_t, 3> ids,
                                   LoopOrder order) {
    const Tensor<int32_t, 3> ids_here = backend_->upload(ids);
    return attend(p, o, [&](const AttentionInput& in, const AttentionOutput& to) {
        backend_->sparse_attention(p, in, ids_here, to, order);
    });
}

BlockMass Runner::block_mass(const Problem& p, const Operands& o) {
    const Uploaded<3> q(*backend_, element(), o.q), k(*backend_, element(), o.k);
    const Shape<3> shape{p.queries(), p.kv_heads, p.blocks()};
    Guarded<float, 3> mass(*backend_, shape), max_logit(*backend_, shape);
    const Tensor<float, 1> sinks = upload_sinks(o);
    backend_->block_mass(p, {q, k, sinks}, {mass, max_logit});
    return {mass.take(), max_logit.take()};
}

IndexKl Runner::index_kl(const Problem& p, const Operands& o, View<const int32_t, 3> ids,
                         Teacher teacher, const KlRequest& request) {
    const Uploaded<3> index_q(*backend_, element(), o.index_q), q(*backend_, element(), o.q),
        k(*backend_, element(), o.k);
    const Uploaded<2> index_k(*backend_, element(), o.index_k);
    Tensor<int32_t, 3> ids_here;
    if (ids) ids_here = backend_->upload(ids);
    const auto given = [&](const Tensor<float, 2>& lse) {
        return lse.data() != nullptr ? backend_->upload(lse.view()) : Tensor<float, 2>();
    };
    const Tensor<float, 2> main_lse = given(request.main_lse);
    const Tensor<float, 2> index_lse = given(request.index_lse);
    Guarded<double, 2> kl(*backend_, {p.queries(), p.kv_heads});
    Guarded<float, 3> d_index_q(*backend_, o.index_q.shape());
    Guarded<float, 2> d_index_k(*backend_, o.index_k.shape());
    const Tensor<float, 1> sinks = upload_sinks(o);
    backend_->index_kl(
        p,
        {{index_q, index_k},
         q,
         k,
         ids_here.view(),
         teacher,
         sinks,
         main_lse,
         index_lse,
         request.gradient_scale},
        {request.value ? View<double, 2>(kl) : View<double, 2>(), d_index_q, d_index_k});
    return {kl.take(), d_index_q.take(), d_index_k.take()};
}

/// call(input, saved, gradient)
template <typename Call>
AttentionGrad Runner::attend_grad(const Problem& p, const Operands& o, const Backward& given,
                                  Call call) {
    const Uploaded<3> q(*backend_, element(), o.q), k(*backend_, element(), o.k),
        v(*backend_, element(), o.v), d_out(*backend_, element(), given.d_out);
    const Tensor<float, 1> sinks = upload_sinks(o);
    const Tensor<float, 3> out = backend_->upload(given.saved.out.view());
    const Tensor<float, 2> lse = backend_->upload(given.saved.lse.view());
    Guarded<float, 3> d_q(*backend_, o.q.shape()), d_k(*backend_, o.k.shape()),
        d_v(*backend_, o.v.shape());
    Guarded<float, 1> d_sinks(*backend_, {p.query_heads});
    const bool has_sinks = o.sinks.data() != nullptr;
    call(AttentionInput{q, k, v, sinks}, AttentionSaved{out.view(), lse, d_out},
         AttentionGradient{View<float, 3>(d_q), View<float, 3>(d_k), View<float, 3>(d_v),
                           has_sinks ? View<float, 1>(d_sinks) : View<float, 1>()});
    Tensor<float, 1> of_sinks = d_sinks.take();
    return {d_q.take(), d_k.take(), d_v.take(),
            has_sinks ? std::move(of_sinks) : Tensor<float, 1>()};
}

AttentionGrad Runner::dense_attention_grad(const Problem& p, const Operands& o,
                                           const Backward& given) {
    return attend_grad(
        p, o, given,
        [&](const AttentionInput& in, const AttentionSaved& saved, const AttentionGradient& to) {
            backend_->dense_attention_grad(p, in, saved, to);
        });
}

AttentionGrad Runner::sparse_attention_grad(const Problem& p, const Operands& o,
                                            View<const int32_t, 3> ids, const Backward& given,
                                            LoopOrder order) {
    const Tensor<int32_t, 3> ids_here = backend_->upload(ids);
    return attend_grad(
        p, o, given,
        [&](const AttentionInput& in, const AttentionSaved& saved, const AttentionGradient& to) {
            backend_->sparse_attention_grad(p, in, ids_here, saved, to, order);
        });
}

std::vector<LoopOrder> orders_of(const Backend& backend, const Problem& p,
                                 SparseAttentionRequest request) {
    std::vector<LoopOrder> orders;
    for (LoopOrder order : kLoopOrders) {
        request.order = order;
        if (backend.supports(p, request).yes) orders.push_back(order);
    }
    return orders;
}

std::vector<LoopOrder> orders_of(Runner& runner, const Problem& p, int64_t top_k) {
    return orders_of(runner.backend(), p,
                     {.element = runner.element(), .top_k = top_k, .out = runner.stored()});
}

std::string param_name(const testing::TestParamInfo<OperationParam>& info) {
    return identifier(concat(std::get<0>(info.param), '_', std::get<1>(info.param)));
}

void OperationTest::SetUp() {
    RecordProperty("seed", std::to_string(seed()));
    operands_ = make_operands(the_case(), subject().element);
}

}  // namespace msa::test
