// SPDX-License-Identifier: MIT
#include "core/number/operand_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/error.h"
#include "core/threads.h"

namespace msa {
namespace {

void check_one(const char* name, const View<const float, 2>& scales, const char* axes,
               Shape<2> whole, Space space, bool may_be_nan = false) {
    if (!scales) return;
    require(scales.shape() == whole || scales.shape() == Shape<2>{1, 1}, name, " has shape ",
            to_string(scales.shape()), ", must be [1, 1] or ", axes, " = ", to_string(whole));
    require(scales.space() == space, name, " is in ", to_string(scales.space()),
            " memory, the operands are in ", to_string(space), " memory");
    if (space != Space::host) return;
    for (int64_t i = 0; i < scales.size(); ++i) {
        const float one = scales.data()[i];
        require((one >= kLeastScale && one <= kMostScale) || (may_be_nan && std::isnan(one)), name,
                " has ", one, " at ", i, ", must be from 2^-40 to 2^40");
    }
}

/// Row of the scales that token t has.
int64_t scale_row(const std::vector<int64_t>& blocks, int64_t t) {
    return blocks.empty() ? t : blocks[static_cast<size_t>(t)];
}

/// Rows of the scales of keys: blocks of all sequences, or pages.
template <int Rank>
int64_t scale_rows(const Problem& p, View<const float, 2> scales, const Keys<Rank>& keys) {
    if (!keys.paged()) return block_starts(p).back();
    require(scales.size() <= 1 || keys.page_size() % p.block_size == 0,
            "scales of keys belong to pages of ", keys.page_size(), " tokens, but blocks have ",
            p.block_size, "; such pages must be whole blocks");
    return keys.pages();
}

}  // namespace

void check_scales(const Problem& p, const OperandScales& scales, Element operands,
                  const Keys<3>& k) {
    if (!scales) return;
    require(operands == Element::e4m3, "scales are given, but q is ", to_string(operands),
            ", must be e4m3");
    const Shape<2> rows{scale_rows(p, scales.k, k), p.kv_heads};
    const char* const axes = k.paged() ? "[pages, Hkv]" : "[blocks of all sequences, Hkv]";
    check_one("scales of q", scales.q, "[Nq, Hq]", {p.queries(), p.query_heads}, k.space());
    check_one("scales of k", scales.k, axes, rows, k.space());
    check_one("scales of v", scales.v, axes, rows, k.space());
}

void check_index_scales(const Problem& p, const OperandScales& scales, Element operands,
                        const Keys<2>& index_k) {
    if (!scales) return;
    require(operands == Element::int8, "scales are given, but index_q is ", to_string(operands),
            ", must be int8");
    require(!scales.v, "scales of v are given, but the Index Branch has no values");
    const Space space = index_k.space();
    check_one("scales of index_q", scales.q, "[Nq, Hkv]", {p.queries(), p.kv_heads}, space, true);
    check_one("scales of index_k", scales.k,
              index_k.paged() ? "[pages, 1]" : "[blocks of all sequences, 1]",
              {scale_rows(p, scales.k, index_k), 1}, space, true);
}

ScoreScales::ScoreScales(const Problem& p, const OperandScales& scales)
    : scale_(static_cast<float>(p.index_scale())), scales_(scales) {
    if (scales.k.size() <= 1) return;
    first_block_ = block_starts(p);
    sequence_ = query_sequences(p);
}

ScoreScales::Row ScoreScales::row(int64_t query, int64_t group) const {
    const float scale = scale_ * scale_at(scales_.q, query, group);
    if (first_block_.empty()) return {scale, scales_.k.data(), 0};
    const int64_t sequence = sequence_[static_cast<size_t>(query)];
    return {scale, scales_.k.data() + first_block_[static_cast<size_t>(sequence)], 1};
}

template <int Rank>
Tensor<float, 2> packed_scales(const Problem& p, const Keys<Rank>& keys,
                               View<const float, 2> scales) {
    Tensor<float, 2> made({block_starts(p).back(), scales.extent(1)}, Fill::nothing);
    float* to = made.data();
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
    for (size_t s = 0; s + 1 < starts.size(); ++s)
        for (int64_t j = 0; j < starts[s + 1] - starts[s]; j += p.block_size) {
            const int64_t page = keys.page_table()(s, j / keys.page_size());
            to = std::copy_n(scales[page].data(), scales.extent(1), to);
        }
    return made;
}
template Tensor<float, 2> packed_scales(const Problem&, const Keys<2>&, View<const float, 2>);
template Tensor<float, 2> packed_scales(const Problem&, const Keys<3>&, View<const float, 2>);

std::vector<int64_t> key_blocks(const Problem& p) {
    const std::vector<int64_t> starts = block_starts(p);
    const std::vector<int64_t>& keys = p.batch.cu_seqlens_k();
    std::vector<int64_t> blocks(static_cast<size_t>(p.keys()));
    for (size_t s = 0; s + 1 < keys.size(); ++s)
        for (int64_t j = keys[s]; j < keys[s + 1]; ++j)
            blocks[static_cast<size_t>(j)] = starts[s] + (j - keys[s]) / p.block_size;
    return blocks;
}

template <typename T>
ScaledOperand<T> store_scaled(const Problem& p, View<const float, 3> operand, OperandScale unit) {
    const int64_t tokens = operand.extent(0), heads = operand.extent(1), width = operand.extent(2);
    std::vector<int64_t> blocks;
    if (unit == OperandScale::block) blocks = key_blocks(p);
    MSA_CHECK(unit != OperandScale::block || std::ssize(blocks) == tokens);
    const bool alone = unit == OperandScale::tensor;
    Shape<2> shape{1, 1};
    if (!alone) shape = {blocks.empty() ? tokens : block_starts(p).back(), heads};
    ScaledOperand<T> stored{Tensor<T, 3>(operand.shape()), Tensor<float, 2>(shape)};
    const auto scale = [&](int64_t t, int64_t h) -> float& {
        return alone ? stored.scales(0, 0) : stored.scales(scale_row(blocks, t), h);
    };
    const auto for_each = [&](auto&& body) {  // body(row of channels, scale, place)
        for (int64_t t = 0; t < tokens; ++t)
            for (int64_t h = 0; h < heads; ++h)
                body(operand.data() + (t * heads + h) * width, scale(t, h),
                     stored.values.data() + (t * heads + h) * width);
    };
    constexpr bool kScaleOfNan = std::is_same_v<T, Int8>;
    for_each([&](const float* row, float& largest, const T*) {
        for (int64_t d = 0; d < width; ++d) {
            if (std::isfinite(row[d]) && !std::isnan(largest))
                largest = std::max(largest, std::fabs(row[d]));
            if (kScaleOfNan && std::isnan(row[d]))
                largest = std::numeric_limits<float>::quiet_NaN();
        }
    });
    for (int64_t i = 0; i < stored.scales.size(); ++i) {
        float& one = stored.scales.data()[i];
        if (!std::isnan(one)) one = std::clamp(one / T::kLargest, kLeastScale, kMostScale);
    }
    for_each([&](const float* row, float one, T* to) {
        for (int64_t d = 0; d < width; ++d) to[d] = T(row[d] / one);
    });
    return stored;
}
template ScaledOperand<e4m3> store_scaled(const Problem&, View<const float, 3>, OperandScale);
template ScaledOperand<Int8> store_scaled(const Problem&, View<const float, 3>, OperandScale);

template <typename T>
Tensor<float, 3> read_scaled(const Problem& p, View<const T, 3> values, View<const float, 2> scales,
                             bool keys, int threads) {
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
template Tensor<float, 3> read_scaled(const Problem&, View<const e4m3, 3>, View<const float, 2>,
                                      bool, int);
template Tensor<float, 3> read_scaled(const Problem&, View<const Int8, 3>, View<const float, 2>,
                                      bool, int);

}  // namespace msa
