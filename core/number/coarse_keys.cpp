// SPDX-License-Identifier: MIT
#include "core/number/coarse_keys.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/number/operand_scales.h"

namespace msa {
namespace {

/// |a| and |a - scale * stored|; NaN where a value is.
struct Norms {
    double of, read, error;
};
Norms norms(std::span<const float> values, float scale, const Int8* stored) {
    Norms sum{};
    for (size_t d = 0; d < values.size(); ++d) {
        const double value = values[d], read = double{scale} * stored[d].value;
        sum.of += value * value;
        sum.read += read * read;
        sum.error += (value - read) * (value - read);
    }
    return {std::sqrt(sum.of), std::sqrt(sum.read), std::sqrt(sum.error)};
}

}  // namespace

CoarseRow coarse_row(const Problem& p, std::span<const float> q, Int8* to) {
    float largest = 0;
    for (float x : q)
        if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
    const float scale = std::clamp(largest / Int8::kLargest, kLeastScale, kMostScale);
    for (size_t d = 0; d < q.size(); ++d) to[d] = Int8(q[d] / scale);
    const Norms of = norms(q, scale, to);
    return coarse_row(static_cast<float>(p.index_scale()), p.index_dim, scale,
                      static_cast<float>(of.of), static_cast<float>(of.read),
                      static_cast<float>(of.error));
}

StoredCoarseKeys store_coarse(const Problem& p, View<const float, 2> index_k) {
    const int64_t tokens = index_k.extent(0), width = index_k.extent(1);
    ScaledOperand<Int8> stored =
        store_scaled<Int8>(p, {index_k.data(), {tokens, 1, width}}, OperandScale::block);
    StoredCoarseKeys made{Tensor<Int8, 2>(index_k.shape(), Fill::nothing),
                          Tensor<float, 2>({block_starts(p).back(), 3})};
    std::copy_n(stored.values.data(), stored.values.size(), made.keys.data());
    for (int64_t b = 0; b < made.blocks.extent(0); ++b) {
        const float scale = stored.scales(b, 0);
        made.blocks(b, 0) = std::isnan(scale) ? 1 : scale;  // of NaN, the norms are infinite
        made.blocks(b, 1) = made.blocks(b, 2) = norm_bound(0);
    }
    const std::vector<int64_t> blocks = key_blocks(p);
    for (int64_t t = 0; t < tokens; ++t) {
        const View<float, 1> block = made.blocks.view()[blocks[static_cast<size_t>(t)]];
        const Norms of = norms({index_k[t].data(), static_cast<size_t>(width)}, block(0),
                               made.keys.data() + t * width);
        block(1) = std::max(block(1), norm_bound(static_cast<float>(of.of)));
        block(2) = std::max(block(2), norm_bound(static_cast<float>(of.error)));
    }
    return made;
}

void check_coarse_keys(const Problem& p, const CoarseKeys& coarse, const Keys<2>& index_k) {
    if (!coarse) {
        require(!coarse.blocks, "blocks of coarse keys are given, but the keys are absent");
        return;
    }
    const Shape<2> blocks{block_starts(p).back(), 3};
    require(index_k.element() != Element::int8,
            "coarse keys are given, but index_k is int8, as they are");
    require(!index_k.paged(), "coarse keys are given, but index_k is in pages, must be packed");
    require(coarse.keys.element() == Element::int8, "coarse keys are ",
            to_string(coarse.keys.element()), ", must be int8");
    require(coarse.keys.shape() == index_k.shape(), "coarse keys have shape ",
            to_string(coarse.keys.shape()), ", must be [Nk, didx] = ", to_string(index_k.shape()));
    require(coarse.blocks.shape() == blocks, "blocks of coarse keys have shape ",
            to_string(coarse.blocks.shape()),
            ", must be [blocks of all sequences, 3] = ", to_string(blocks));
    require(coarse.keys.space() == index_k.space() && coarse.blocks.space() == index_k.space(),
            "coarse keys must be in the memory of index_k, ", to_string(index_k.space()));
    if (index_k.space() != Space::host || index_k.element() != Element::f32) return;
    const View<const float, 2> keys = index_k.as<const float>();
    const auto* const values = static_cast<const Int8*>(coarse.keys.data());
    const std::vector<int64_t> of_key = key_blocks(p);
    for (int64_t t = 0; t < keys.extent(0); ++t) {
        const int64_t b = of_key[static_cast<size_t>(t)];
        const CoarseBlock block = coarse_block(coarse.blocks.data(), b);
        require(block.scale >= kLeastScale && block.scale <= kMostScale, "coarse keys have scale ",
                block.scale, " in block ", b, ", must be from 2^-40 to 2^40");
        const Norms of = norms({keys[t].data(), static_cast<size_t>(keys.extent(1))}, block.scale,
                               values + t * keys.extent(1));
        // NaN has an infinite bound, which is above any norm.
        require((of.of <= block.norm && of.error <= block.error) ||
                    std::isinf(block.norm + block.error),
                "coarse keys are not those of index_k in block ", b, ": token ", t, " has norm ",
                of.of, " and error ", of.error, ", the block says at most ", block.norm, " and ",
                block.error);
    }
}

}  // namespace msa
