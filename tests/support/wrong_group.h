// SPDX-License-Identifier: MIT
// A group whose sums are wrong: what tests of groups must see.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/parallel/group.h"

namespace msa::test {

/// Those of `right`, but for an error in their sums of floats: the part of rank 1 is missing, all
/// is half, or rank 1 keeps its own.
class WrongGroup final : public parallel::Group {
public:
    enum Error : uint8_t { kNone, kDropped, kHalved, kOwnKept };
    WrongGroup(const parallel::Group& right, Error error)
        : Group(right.rank(), right.size()), right_(right), error_(error) {}

    void all_reduce(std::span<float> values) const override {
        const std::vector<float> own(values.begin(), values.end());
        if (error_ == kDropped && rank() == 1) std::fill(values.begin(), values.end(), 0.0F);
        right_.all_reduce(values);
        for (float& value : values) value *= error_ == kHalved ? 0.5F : 1.0F;
        if (error_ == kOwnKept && rank() == 1) std::copy(own.begin(), own.end(), values.begin());
    }
    void all_reduce(std::span<double> values) const override { right_.all_reduce(values); }
    void broadcast(std::span<std::byte> bytes) const override { right_.broadcast(bytes); }
    void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) const override {
        right_.all_gather(mine, all);
    }

private:
    const parallel::Group& right_;
    Error error_;
};

}  // namespace msa::test
