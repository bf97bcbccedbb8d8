// SPDX-License-Identifier: MIT
#include "core/number/operand_scales.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/threads.h"

namespace msa {
namespace {

void check_one(const char* name, const View<const float, 2>& scales, const char* axes,
               Shape<2> whole, Space space) {
    if (!scales) return;
    require(scales.shape() == whole || scales.shape() == Shape<2>{1, 1}, name, " has shape ",
            to_string(scales.shape()), ", must be [1, 1] or ", axes, " = ", to_string(whole));
    require(scales.space() == space, name, " is in ", to_string(scales.space()),
            " memory, the operands are in ", to_string(space), " memory");
    if (space != Space::host) return;
    for (int64_t i = 0; i < scales.size(); ++i)
        require(scales.data()[i] >= kLeastScale && scales.data()[i] <= kMostScale, name,  // no NaN
                " has ", scales.data()[i], " at ", i, ", must be from 2^-40 to 2^40");
}

/// Row of the scales that token t has.
int64_t scale_row(const std::vector<int64_t>& blocks, int64_t t) {
    return blocks.empty() ? t : blocks[static_cast<size_t>(t)];
}

}  // namespace

void check_scales(const Problem& p, const OperandScales& scales, Element operands, Space space) {
    if (!scales) return;
    require(operands == Element::e4m3, "scales are given, but q is ", to_string(operands),
            ", must be e4m3");
    const Shape<2> blocks{block_starts(p).back(), p.kv_heads};
    const char* const axes = "[blocks of all sequences, Hkv]";
    check_one("scales of q", scales.q, "[Nq, Hq]", {p.queries(), p.query_heads}, space);
    check_one("scales of k", scales.k, axes, blocks, space);
    check_one("scales of v", scales.v, axes, blocks, space);
}

std::vector<int64_t> key_blocks(const Problem& p) {
    const std::vector<int64_t> starts = block_starts(p);
    const std::vector<int64_t>& keys = p.batch.cu_seqlens_k();
    std::vector<int64_t> blocks(static_cast<size_t>(p.keys()));
    for (size_t s = 0; s + 1 < keys.size(); ++s)
        for (int64_t j = keys[s]; j < keys[s + 1]; ++j)
            blocks[static_cast<size_t>(j)] = starts[s] + (j - keys[s]) / p.block_size;
    return blocks;
}

ScaledOperand store_scaled(const Problem& p, View<const float, 3> operand, OperandScale unit) {
    const int64_t tokens = operand.extent(0), heads = operand.extent(1), width = operand.extent(2);
    std::vector<int64_t> blocks;
    if (unit == OperandScale::block) blocks = key_blocks(p);
    MSA_CHECK(unit != OperandScale::block || std::ssize(blocks) == tokens);
    const bool alone = unit == OperandScale::tensor;
    Shape<2> shape{1, 1};
    if (!alone) shape = {blocks.empty() ? tokens : block_starts(p).back(), heads};
    ScaledOperand stored{Tensor<e4m3, 3>(operand.shape()), Tensor<float, 2>(shape)};
    const auto scale = [&](int64_t t, int64_t h) -> float& {
        return alone ? stored.scales(0, 0) : stored.scales(scale_row(blocks, t), h);
    };
    const auto for_each = [&](auto&& body) {  // body(row of channels, scale, place)
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t h = 0; h < heads; ++h)
                body(operand.data() + (t * heads + h) * width, scale(t, h),
                     stored.values.data() + (t * heads + h) * width);
    };
    for_each([&](const float* row, float& largest, const e4m3*) {
        for (int64_t d = 0; d < width; ++d)
            if (std::isfinite(row[d])) largest = std::max(largest, std::fabs(row[d]));
    });
    for (int64_t i = 0; i < stored.scales.size(); ++i) {
        float& one = stored.scales.data()[i];
        one = std::clamp(one / e4m3::kLargest, kLeastScale, kMostScale);
    }
    for_each([&](const float* row, float one, e4m3* to) {
        for (int64_t d = 0; d < width; ++d) to[d] = e4m3(row[d] / one);
    });
    return stored;
}

Tensor<float, 3> read_scaled(const Problem& p, View<const e4m3, 3> values,
                             View<const float, 2> scales, bool keys, int threads) {
    const int64_t heads = values.extent(1), width = values.extent(2);
    std::vector<int64_t> blocks;
    if (keys) blocks = key_blocks(p);
    Tensor<float, 3> read(values.shape(), Fill::nothing);
#pragma omp parallel for num_threads(threads_or_all(threads))
    for (int64_t t = 0; t < values.extent(0); ++t)
        for (int64_t h = 0; h < heads; ++h) {
            const float scale = scale_at(scales, scale_row(blocks, t), h);
            for (int64_t d = 0; d < width; ++d)
                read(t, h, d) = static_cast<float>(values(t, h, d)) * scale;
        }
    return read;
}

}  // namespace msa
