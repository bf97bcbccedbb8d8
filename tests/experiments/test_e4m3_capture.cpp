// SPDX-License-Identifier: MIT
// What operands of 8 bits cost on captured layers, whose operands are in bf16: the error of
// sparse_attention's output, with one scale for each operand and with one for each row and block,
// and with weights in e4m3 as tensor cores take them; the wrong ids of index operands.
// docs/kernels.md has the figures.
#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>

#include "core/io/activations.h"
#include "core/number/convert.h"
#include "tests/support/scaled.h"

namespace msa::test {
namespace {

/// Every `step`-th query of a layer of the sample, and the blocks that its first heads select as an
/// index.
struct CapturedLayer {
    Problem p;
    Operands o;
    Tensor<int32_t, 3> ids;

    CapturedLayer(size_t place, int64_t step) {
        const io::ActivationsReader file(std::string(MSA_SOURCE_DIR) + "/data/sample.h5");
        const io::LayerInfo& layer = file.info().layers[place];
        const Problem all = io::layer_problem(file.info(), layer, 64);
        std::vector<int64_t> tokens;
        for (int64_t i = 0; i < all.queries(); i += step) tokens.push_back(i);
        p = all.with_query_rows(tokens);
        const QueryRange keys{0, all.keys()};
        const Tensor<float, 3> q = file.read(layer.layer, io::Field::q, keys);
        o.q = Tensor<float, 3>({p.queries(), p.query_heads, p.head_dim});
        for (size_t i = 0; i < tokens.size(); ++i)
            std::copy_n(q.view()[tokens[i]].data(), p.query_heads * p.head_dim,
                        &o.q(static_cast<int64_t>(i), 0, 0));
        o.k = file.read(layer.layer, io::Field::k, keys);
        o.v = file.read(layer.layer, io::Field::v, keys);
        p.index_dim = p.head_dim;
        o.index_q = Tensor<float, 3>({p.queries(), p.kv_heads, p.head_dim});
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t r = 0; r < p.kv_heads; ++r)
                std::copy_n(&o.q(i, r * p.group_size(), 0), p.head_dim, &o.index_q(i, r, 0));
        o.index_k = Tensor<float, 2>({p.keys(), p.head_dim});
        for (int64_t j = 0; j < p.keys(); ++j)
            std::copy_n(&o.k(j, 0, 0), p.head_dim, &o.index_k(j, 0));
        ids = Runner({"cpu", Element::f32}).index_select(p, {.top_k = 8}, o);
    }
};

double whole_error(const Tensor<float, 3>& got, const Tensor<float, 3>& want) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < want.size(); ++i) {
        difference += std::pow(double{got.data()[i]} - double{want.data()[i]}, 2);
        norm += std::pow(double{want.data()[i]}, 2);
    }
    return std::sqrt(difference / norm);
}

/// The outputs with weights rounded to e4m3 as the kernels do: 2^8 for the largest product of a
/// weight and its value's scale in the row. Sums are exact.
Tensor<float, 3> with_narrow_weights(const CapturedLayer& of, const ScaledOperands& stored) {
    const Problem& p = of.p;
    const Operands o = stored.floats(p);
    const std::vector<int64_t> blocks = key_blocks(p);
    Tensor<float, 3> out({p.queries(), p.query_heads, p.head_dim});
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const int64_t r = h / p.group_size();
            const KeyRange seen = visible_keys(p)[static_cast<size_t>(i)];
            std::vector<std::pair<int64_t, double>> logits;  // base 2, of each key
            double most = -HUGE_VAL;
            const auto scale_of = [&](int64_t j) {
                return double{scale_at(stored.v.scales, blocks[static_cast<size_t>(j)], r)};
            };
            for (int64_t b : selected(of.ids, i, r))
                for (int64_t n = b * p.block_size; n < std::min((b + 1) * p.block_size, seen.count);
                     ++n) {
                    double product = 0;
                    const int64_t j = seen.first + n;
                    for (int64_t d = 0; d < p.head_dim; ++d)
                        product += double{o.q(i, h, d)} * double{o.k(j, r, d)};
                    logits.emplace_back(j, p.softmax_scale() * product / std::log(2.0));
                    most = std::max(most, logits.back().second + std::log2(scale_of(j)));
                }
            std::vector<double> sums(static_cast<size_t>(p.head_dim));
            double total = 0;
            for (const auto& [j, logit] : logits) {
                const double weight = std::exp2(logit + std::log2(scale_of(j)) - most + 8);
                total += weight / scale_of(j);
                const double narrow{static_cast<float>(e4m3(static_cast<float>(weight)))};
                for (int64_t d = 0; d < p.head_dim; ++d)
                    sums[static_cast<size_t>(d)] += narrow * double{o.v(j, r, d)} / scale_of(j);
            }
            for (int64_t d = 0; d < p.head_dim; ++d)
                out(i, h, d) = static_cast<float>(sums[static_cast<size_t>(d)] / total);
        }
    return out;
}

class E4m3Capture : public testing::TestWithParam<size_t> {};

TEST_P(E4m3Capture, OutputErrorOfScales) {
    const CapturedLayer layer(GetParam(), 45);
    Runner cpu({"cpu", Element::f32});
    const Tensor<float, 3> want = cpu.sparse_attention(layer.p, layer.o, layer.ids).out;
    const auto error_of = [&](const Operands& o) {
        return whole_error(cpu.sparse_attention(layer.p, o, layer.ids).out, want);
    };
    const ScaledOperands one = store_scaled(layer.p, layer.o, true),
                         each = store_scaled(layer.p, layer.o, false);
    const double tensor = error_of(one.floats(layer.p)), block = error_of(each.floats(layer.p)),
                 narrow = whole_error(with_narrow_weights(layer, each), want),
                 narrow_tensor = whole_error(with_narrow_weights(layer, one), want);
    for (const auto& [name, error] : {std::pair{"tensor", tensor},
                                      {"block", block},
                                      {"tensor_narrow_weights", narrow_tensor},
                                      {"block_narrow_weights", narrow}})
        RecordProperty(name, std::to_string(error));
    EXPECT_LT(block, tensor);
    EXPECT_GT(narrow, block);
    // Roundings of weights, at most 2^-4 each, do not add up: they are independent.
    EXPECT_LT(narrow, block + 0x1p-4);
}

/// The share of the chosen ids, but for the local block, that are not among those of float
/// operands.
double wrong_ids(const CapturedLayer& layer, View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(layer.p);
    int64_t wrong = 0, all = 0;
    for (int64_t i = 0; i < ids.extent(0); ++i)
        for (int64_t r = 0; r < ids.extent(1); ++r) {
            const std::span<const int32_t> got = selected(ids, i, r);
            const int64_t local =
                visible_blocks(visible[static_cast<size_t>(i)].count, layer.p.block_size) - 1;
            for (int32_t id : selected(layer.ids, i, r)) {
                if (id == local) continue;
                ++all;
                wrong += std::find(got.begin(), got.end(), id) == got.end();
            }
        }
    return static_cast<double>(wrong) / static_cast<double>(all);
}

class IndexCapture : public testing::TestWithParam<size_t> {};

TEST_P(IndexCapture, Int8HasFewerWrongIdsThanE4m3) {
    const CapturedLayer layer(GetParam(), 14);
    const SelectionRule rule{.top_k = 8};
    Runner cpu({"cpu", Element::f32});
    const ScaledIndex int8 = store_index(layer.p, layer.o);
    Operands rounded = int8.floats(layer.p, layer.o);  // of the same shapes
    const auto wrong_of = [&](const auto& round) {
        for (const auto& [from, size, to] :
             {std::tuple{layer.o.index_q.data(), rounded.index_q.size(), rounded.index_q.data()},
              {layer.o.index_k.data(), rounded.index_k.size(), rounded.index_k.data()}})
            round(std::span<const float>(from, static_cast<size_t>(size)), to);
        return wrong_ids(layer, cpu.index_select(layer.p, rule, rounded));
    };
    const double narrow = wrong_of([&](std::span<const float> from, float* to) {  // one scale
        const View<const float, 3> all(from.data(), {std::ssize(from), 1, 1}, Space::host);
        const ScaledOperand<e4m3> one = store_scaled<e4m3>(layer.p, all, OperandScale::tensor);
        const Tensor<float, 3> read =
            read_scaled(layer.p, one.values.view(), one.scales.view(), false);
        std::copy_n(read.data(), read.size(), to);
    });
    const double wrong = wrong_ids(layer, index_select(cpu.backend(), layer.p, rule, int8));
    for (const auto& [name, share] : {std::pair{"e4m3", narrow}, {"int8", wrong}})
        RecordProperty(name, std::to_string(share));
    EXPECT_LT(wrong, narrow);
}

INSTANTIATE_TEST_SUITE_P(Layers, E4m3Capture, testing::Values(0, 1));
INSTANTIATE_TEST_SUITE_P(Layers, IndexCapture, testing::Values(0, 1));

}  // namespace
}  // namespace msa::test
