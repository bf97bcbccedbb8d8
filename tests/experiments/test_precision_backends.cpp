// SPDX-License-Identifier: MIT
// The simulation of msa-precision on every backend: where a kernel has a format, it gets the values
// as they are, which are rounded on their way in, and selects by the values that store_as gives.
#include <algorithm>
#include <iterator>

#include "core/selection.h"
#include "core/tolerance.h"
#include "experiments/driver/operands.h"
#include "experiments/precision/layer.h"
#include "tests/experiments/broken_backend.h"
#include "tests/support/compare.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

using experiments::precision::select_element;
using experiments::precision::select_ids;
using io::Field;

std::vector<std::string> backends_and_broken() {
    register_broken_backend("nothing");  // cpu, which reads every format
    std::vector<std::string> names;
    for (const BackendInfo& info : known_backends()) names.push_back(info.name);
    return names;
}

/// Index operands of real values: the first query head of each group, at every 15th token, and the
/// first head of the keys.
struct RealIndex {
    Problem p;
    Tensor<float, 3> q, k;

    RealIndex() {
        const io::ActivationsReader file(std::string(MSA_SOURCE_DIR) + "/data/sample.h5");
        const io::LayerInfo& layer = file.info().layers.front();
        const Problem all = io::layer_problem(file.info(), layer, 32);
        std::vector<int64_t> tokens;
        for (int64_t i = 0; i < all.queries(); i += 15) tokens.push_back(i);
        p = all.with_query_rows(tokens);
        p.index_dim = p.head_dim;
        const auto first_heads = [&](Field field, int64_t heads) {
            const Tensor<float, 3> from = file.read(layer.layer, field, {0, all.keys()});
            Tensor<float, 3> to({from.extent(0), heads, p.index_dim});
            for (int64_t i = 0; i < to.extent(0); ++i)
                for (int64_t h = 0; h < heads; ++h)
                    std::copy_n(&from(i, h * from.extent(1) / heads, 0), p.index_dim, &to(i, h, 0));
            return to;
        };
        q = experiments::gather_rows(first_heads(Field::q, p.kv_heads).view(), tokens);
        k = first_heads(Field::k, 1);
    }
};

Tensor<float, 3> copy_of(const Tensor<float, 3>& values) {
    Tensor<float, 3> copy(values.shape());
    std::copy_n(values.data(), values.size(), copy.data());
    return copy;
}

Operands operands(const RealIndex& of) {
    Operands o;
    o.index_q = copy_of(of.q);
    o.index_k = Tensor<float, 2>({of.k.extent(0), of.k.extent(2)});
    std::copy_n(of.k.data(), of.k.size(), o.index_k.data());
    return o;
}

/// The share of the ids of one that the other lacks.
double missing(const Problem& p, const Tensor<int32_t, 3>& one, const Tensor<int32_t, 3>& other) {
    int64_t ids = 0, common = 0;
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const std::span<const int32_t> a = selected(one.view(), i, r),
                                           b = selected(other.view(), i, r);
            std::vector<int32_t> both;
            std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
            ids += std::ssize(a);
            common += std::ssize(both);
        }
    return static_cast<double>(ids - common) / static_cast<double>(ids);
}

class PrecisionOnBackends : public testing::TestWithParam<std::string> {};

TEST_P(PrecisionOnBackends, KernelsSelectByTheSimulatedValues) {
    register_broken_backend("nothing");
    MSA_SKIP_UNLESS_USABLE(GetParam());
    const std::unique_ptr<Backend> backend = make_backend(GetParam(), {.threads = 2});
    Runner reference({"reference"});
    const SelectionRule rule{.top_k = 8};
    for (NumberFormat format :
         {NumberFormat::bfloat16, NumberFormat::float16, NumberFormat::float8_e4m3})
        for (bool rotated : {false, true}) {
            const Precision precision{.format = format, .rotated = rotated};
            const std::string name = GetParam() + ' ' + to_string(precision);
            RealIndex full, stored;
            const Problem& p = full.p;
            for (Tensor<float, 3>* values : {&full.q, &full.k})
                if (rotated) rotate(*values);
            store_as(precision, stored.q);
            store_as(precision, stored.k);
            const Operands simulated = operands(stored);

            const Element own = *element_of(format);
            const bool has = backend->supports(p, IndexSelectRequest{own, rule.top_k}).yes;
            const Element element = select_element(*backend, p, precision, rule.top_k);
            EXPECT_EQ(element, has ? own : Element::f32) << name;
            const RealIndex& given = has ? full : stored;
            const Tensor<int32_t, 3> ids = experiments::fetch(
                *backend, select_ids(*backend, p, rule, given.q.view(), given.k.view(), element));

            const double q_norm = largest_norm<3>(simulated.index_q),
                         k_norm = largest_norm<2>(simulated.index_k);
            const double bound =
                element == Element::e4m3 && backend->space() == Space::device
                    ? e4m3_logit_bound(p.index_scale(), q_norm, k_norm, p.index_dim)
                    : logit_bound(p.index_scale(), q_norm, k_norm, p.index_dim);
            EXPECT_TRUE(selection_follows(p, rule, reference.index_scores(p, simulated).view(),
                                          ids.view(), bound))
                << name;
            // The bound is that of the worst case. Sums that are off change far fewer ids than
            // values that are rounded.
            const Tensor<int32_t, 3> want = reference.index_select(p, rule, simulated);
            const double rounding =
                missing(p, want, reference.index_select(p, rule, operands(full)));
            RecordProperty(name,
                           text(missing(p, want, ids), " of the ids, by rounding ", rounding));
            EXPECT_LE(missing(p, want, ids), rounding / 4) << name;
            if (format == NumberFormat::float8_e4m3) {
                EXPECT_GT(rounding, 0.01) << name;
            }
        }
}

INSTANTIATE_TEST_SUITE_P(All, PrecisionOnBackends, testing::ValuesIn(backends_and_broken()),
                         [](const auto& test) { return identifier(test.param); });

}  // namespace
}  // namespace msa::test
