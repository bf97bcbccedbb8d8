// SPDX-License-Identifier: MIT
// The operations of core/train/ops.h under test: values in memory of their backend, and right
// answers in double.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/number/half.h"
#include "core/random.h"
#include "core/train/buffer.h"
#include "core/train/ops.h"
#include "core/train/tolerance.h"
#include "gpu/train/cuda_ops.h"
#include "tests/support/subjects.h"

namespace msa::train {

using test::Subject;
using Values = std::vector<float>;
using Doubles = std::vector<double>;

inline size_t at(int64_t i) { return static_cast<size_t>(i); }

/// Values in memory of a backend, in one element.
class Stored {
public:
    Stored(Backend& backend, Element element, const Values& values)
        : backend_(backend),
          list_(backend, element, {std::max<int64_t>(1, std::ssize(values))}),
          size_(std::ssize(values)) {
        std::vector<bf16> narrow(values.begin(), values.end());
        const void* const from =
            element == Element::bf16 ? static_cast<const void*>(narrow.data()) : values.data();
        backend.copy(list_.out().data(), backend.space(), from, Space::host,
                     size_ * element_bytes(element));
    }
    template <int Rank>
    Out<Rank> view(const Shape<Rank>& shape) {
        MSA_CHECK(element_count(shape) == size_);
        return {list_.out().data(), shape, element(), backend_.space()};
    }
    template <int Rank>
    View<float, Rank> floats(const Shape<Rank>& shape) {
        return view<Rank>(shape).template as<float>();
    }
    View<float, 1> floats() { return floats<1>({size_}); }
    Element element() const { return list_.in().element(); }
    Values get() {
        Values values(at(size_));
        std::vector<bf16> narrow(values.size());
        void* const to =
            element() == Element::bf16 ? static_cast<void*>(narrow.data()) : values.data();
        backend_.copy(to, Space::host, list_.out().data(), backend_.space(),
                      size_ * element_bytes(element()));
        if (element() == Element::bf16)
            for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(narrow[i]);
        return values;
    }

private:
    Backend& backend_;
    Buffer<1> list_;
    int64_t size_;
};

/// A right answer, and what its terms add up to without their signs.
struct Sums {
    explicit Sums(int64_t size) : values(at(size)), magnitudes(at(size)) {}
    void add(int64_t i, double term) {
        values[at(i)] += term;
        magnitudes[at(i)] += std::fabs(term);
    }
    Doubles values, magnitudes;
};

class Operations : public testing::TestWithParam<Subject> {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE(GetParam().backend);
        std::unique_ptr<Backend> backend = make_backend(GetParam().backend, {.threads = 2});
        ops_ = GetParam().backend == "cuda" ? make_cuda_ops(std::move(backend), GetParam().element)
                                            : make_cpu_ops(std::move(backend));
    }

    /// Values that the operations' element holds exactly.
    Values draw(uint64_t seed, int64_t count) const {
        Values values(at(count));
        for (int64_t i = 0; i < count; ++i) {
            const auto value = static_cast<float>(random_normal(mix(seed, i)));
            values[at(i)] = element() == Element::bf16 ? static_cast<float>(bf16(value)) : value;
        }
        return values;
    }
    Stored stored(const Values& values) { return {ops_->backend(), element(), values}; }
    Stored wide(const Values& values) { return {ops_->backend(), Element::f32, values}; }
    Tensor<int32_t, 1> list(const std::vector<int32_t>& values) {
        return ops_->backend().upload(View<const int32_t, 1>(values.data(), {std::ssize(values)}));
    }
    Element element() const { return GetParam().element; }

    /// `roundings` of float arithmetic, then that of the element it is stored in.
    static void expect(Stored& got, const Sums& want, double roundings, int stores = 1) {
        const Values values = got.get();
        ASSERT_EQ(values.size(), want.values.size());
        for (size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(double{values[i]}, want.values[i],
                        sum_bound(roundings, want.magnitudes[i], got.element(), stores) + 1e-30)
                << i;
    }

    std::unique_ptr<Ops> ops_;
};

}  // namespace msa::train
