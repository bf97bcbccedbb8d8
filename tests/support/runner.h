// SPDX-License-Identifier: MIT
// A backend under test, driven from host tensors: uploads in the subject's element type, runs into
// poisoned outputs between guards, downloads.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/registry.h"
#include "tests/support/cases.h"
#include "tests/support/subjects.h"

namespace msa::test {

struct Operands {
    Tensor<float, 3> q, k, v, index_q;
    Tensor<float, 2> index_k;
    Element element = Element::f32;  // what the values are stored in where the backend takes them
    Tensor<float, 1> sinks = {};     // [Hq]; absent: none
};
/// A gradient of attention's output, rounded to values that `element` holds exactly.
Tensor<float, 3> make_d_out(Shape<3> shape, Element element);
/// The operands of a case, rounded to values that `element` holds exactly.
Operands make_operands(const Case&, Element);
/// The same keys and values with the query rows [range.begin, range.end) alone, for
/// Problem::with_queries.
Operands with_queries(const Operands&, QueryRange range);

struct Attention {
    Tensor<float, 3> out;
    Tensor<float, 2> lse;
};
struct Selection {
    Tensor<int32_t, 3> ids;
    Tensor<float, 2> lse;
};
/// What index_kl is asked with beside its operands.
struct KlRequest {
    Tensor<float, 2> main_lse, index_lse;  // absent: not given
    std::optional<double> gradient_scale;
    bool value = true;  // the KL too
};
/// What a gradient is asked with, and what it gives.
struct Backward {
    Attention saved;
    Tensor<float, 3> d_out;
};
struct AttentionGrad {
    Tensor<float, 3> d_q, d_k, d_v;
    Tensor<float, 1> d_sinks;  // absent without sinks
};
struct BlockMass {
    Tensor<float, 3> mass, max_logit;
};
struct IndexKl {
    Tensor<double, 2> kl;
    Tensor<float, 3> d_index_q;
    Tensor<float, 2> d_index_k;
    /// eq:msa-kl
    double mean() const;
};

class Runner {
public:
    explicit Runner(Subject subject, int threads = 0);

    Attention dense_attention(const Problem&, const Operands&);
    Tensor<float, 3> index_scores(const Problem&, const Operands&);
    Tensor<int32_t, 3> select_blocks(const Problem&, const SelectionRule&,
                                     View<const float, 3> scores);
    Tensor<int32_t, 3> index_select(const Problem&, const SelectionRule&, const Operands&);
    Selection index_select_lse(const Problem&, const SelectionRule&, const Operands&);
    Attention sparse_attention(const Problem&, const Operands&, View<const int32_t, 3> ids,
                               LoopOrder = LoopOrder::automatic);
    BlockMass block_mass(const Problem&, const Operands&);
    /// ids absent: the full support.
    IndexKl index_kl(const Problem&, const Operands&, View<const int32_t, 3> ids,
                     Teacher = Teacher::mean, const KlRequest& = {});

    AttentionGrad dense_attention_grad(const Problem&, const Operands&, const Backward&);
    AttentionGrad sparse_attention_grad(const Problem&, const Operands&, View<const int32_t, 3> ids,
                                        const Backward&, LoopOrder order = LoopOrder::automatic);

    Backend& backend() { return *backend_; }
    Element element() const { return subject_.element; }
    Element stored() const { return subject_.stored; }

private:
    template <typename Call>
    Attention attend(const Problem&, const Operands&, Call call);
    template <typename Call>
    AttentionGrad attend_grad(const Problem&, const Operands&, const Backward&, Call call);
    Tensor<float, 1> upload_sinks(const Operands&);

    Subject subject_;
    std::unique_ptr<Backend> backend_;
};

inline constexpr LoopOrder kLoopOrders[] = {LoopOrder::automatic, LoopOrder::q_outer,
                                            LoopOrder::tile_union, LoopOrder::kv_outer};
/// The loop orders that a backend has for this problem; request.order does not matter.
std::vector<LoopOrder> orders_of(const Backend&, const Problem&, SparseAttentionRequest request);
/// Those of the runner's backend.
std::vector<LoopOrder> orders_of(Runner&, const Problem&, int64_t top_k);

/// The truth to compare with.
inline Runner reference() { return Runner({"reference", Element::f32}); }

/// Every subject with every case, named like cpu_f32_tail_block.
using OperationParam = std::tuple<Subject, Case>;
std::string param_name(const testing::TestParamInfo<OperationParam>&);

/// Fixture of the tests that run every case on every subject.
class OperationTest : public testing::TestWithParam<OperationParam> {
protected:
    void SetUp() override;
    const Subject& subject() const { return std::get<0>(GetParam()); }
    const Case& the_case() const { return std::get<1>(GetParam()); }
    const Problem& problem() const { return the_case().problem; }
    const SelectionRule& rule() const { return the_case().rule; }
    Operands operands_;
};

// Instantiates a fixture over all subjects and cases, or over those with windows, soft caps and
// sinks too.
#define MSA_FOR_ALL_CASES(fixture)                                                        \
    INSTANTIATE_TEST_SUITE_P(All, fixture,                                                \
                             testing::Combine(testing::ValuesIn(::msa::test::subjects()), \
                                              testing::ValuesIn(::msa::test::cases())),   \
                             ::msa::test::param_name)
#define MSA_FOR_OWN_ATTENTION(fixture)                                                       \
    INSTANTIATE_TEST_SUITE_P(                                                                \
        OwnAttention, fixture,                                                               \
        testing::Combine(testing::ValuesIn(::msa::test::subjects()),                         \
                         testing::ValuesIn(::msa::test::cases(::msa::test::kOwnAttention))), \
        ::msa::test::param_name)

}  // namespace msa::test
