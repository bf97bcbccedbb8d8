// SPDX-License-Identifier: MIT
// Workers whose sums are wrong: what tests of workers must see.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/train/workers.h"

namespace msa::test {

/// Those of `right`, but for an error in their sums of floats: the part of worker 1 is missing, all
/// is half, or worker 1 keeps its own.
class WrongWorkers final : public train::Workers {
public:
    enum Error : uint8_t { kNone, kDropped, kHalved, kOwnKept };
    WrongWorkers(train::Workers& right, Error error)
        : Workers(right.index(), right.count()), right_(right), error_(error) {}

    void sum(std::span<float> values) override {
        const std::vector<float> own(values.begin(), values.end());
        if (error_ == kDropped && index() == 1) std::fill(values.begin(), values.end(), 0.0F);
        right_.sum(values);
        for (float& value : values) value *= error_ == kHalved ? 0.5F : 1.0F;
        if (error_ == kOwnKept && index() == 1) std::copy(own.begin(), own.end(), values.begin());
    }
    void sum(std::span<double> values) override { right_.sum(values); }
    void from_first(std::span<std::byte> bytes) override { right_.from_first(bytes); }
    void from_all(std::span<const std::byte> mine, std::span<std::byte> all) override {
        right_.from_all(mine, all);
    }

private:
    train::Workers& right_;
    Error error_;
};

}  // namespace msa::test
