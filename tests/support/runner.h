// SPDX-License-Identifier: MIT
// A backend under test, driven from host tensors: uploads in the subject's element type, runs into
// poisoned outputs between guards, downloads.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "core/registry.h"
#include "tests/support/cases.h"

namespace msa::test {

/// A backend and the element types of its operands and of attention's outputs: f32, or bf16 like
/// the operands.
struct Subject {
    std::string backend;
    Element element = Element::f32;
    Element stored = Element::f32;
};
std::ostream& operator<<(std::ostream&, const Subject&);

/// Every backend there is, those that cannot start here too.
std::vector<BackendInfo> known_backends();

/// Every backend that can start here with every element type that it is tested in. The others are
/// named, with the reason, by the test Backends/CanStart.
std::vector<Subject> subjects();

/// Skips the running test, with the reason, when the backend cannot start here; fails it instead
/// when the environment's MSA_REQUIRE names the backend.
#define MSA_SKIP_UNLESS_USABLE(backend)                                                     \
    do {                                                                                    \
        const ::msa::Support usable = ::msa::test::usable_here(backend);                    \
        if (!usable.yes && ::msa::test::is_required(backend))                               \
            FAIL() << "MSA_REQUIRE names " << (backend) << ", but here " << usable.why_not; \
        if (!usable.yes) GTEST_SKIP() << usable.why_not;                                    \
    } while (false)
Support usable_here(const std::string& backend);
bool is_required(const std::string& backend);

struct Operands {
    Tensor<float, 3> q, k, v, index_q;
    Tensor<float, 2> index_k;
    Element element = Element::f32;  // what the values are stored in where the backend takes them
    Tensor<float, 1> sinks = {};     // [Hq]; absent: none
};
/// The operands of a case, rounded to values that `element` holds exactly.
Operands make_operands(const Case&, Element);
/// The same keys and values with the query rows [range.begin, range.end) alone, for
/// Problem::with_queries.
Operands with_queries(const Operands&, QueryRange range);

struct Attention {
    Tensor<float, 3> out;
    Tensor<float, 2> lse;
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
    Attention sparse_attention(const Problem&, const Operands&, View<const int32_t, 3> ids,
                               LoopOrder = LoopOrder::automatic);
    BlockMass block_mass(const Problem&, const Operands&);
    /// ids absent: the full support.
    IndexKl index_kl(const Problem&, const Operands&, View<const int32_t, 3> ids,
                     Teacher = Teacher::mean);

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
/// googletest's names have no hyphen: those of backends and selectors get an underscore.
std::string identifier(std::string name);
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

/// Fixture of the tests that are written once per subject.
class SubjectTest : public testing::TestWithParam<Subject> {};
std::string subject_name(const testing::TestParamInfo<Subject>&);

// Instantiates a fixture over all subjects and cases, over those with windows, soft caps and sinks
// too, or over all subjects.
#define MSA_FOR_ALL_CASES(fixture)                                                        \
    INSTANTIATE_TEST_SUITE_P(All, fixture,                                                \
                             testing::Combine(testing::ValuesIn(::msa::test::subjects()), \
                                              testing::ValuesIn(::msa::test::cases())),   \
                             ::msa::test::param_name)
#define MSA_FOR_OWN_ATTENTION(fixture)                                           \
    INSTANTIATE_TEST_SUITE_P(                                                    \
        OwnAttention, fixture,                                                   \
        testing::Combine(testing::ValuesIn(::msa::test::subjects()),             \
                         testing::ValuesIn(::msa::test::own_attention_cases())), \
        ::msa::test::param_name)
#define MSA_FOR_ALL_SUBJECTS(fixture)                                                  \
    INSTANTIATE_TEST_SUITE_P(All, fixture, testing::ValuesIn(::msa::test::subjects()), \
                             ::msa::test::subject_name)

}  // namespace msa::test
