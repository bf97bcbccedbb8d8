// SPDX-License-Identifier: MIT
// Tensors: row-major, contiguous, slowest axis first, 64-bit offsets. A View does not own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "core/element.h"
#include "core/error.h"

namespace msa {

template <int Rank>
using Shape = std::array<int64_t, Rank>;

/// Product of the extents.
template <size_t Rank>
constexpr int64_t element_count(const std::array<int64_t, Rank>& shape) {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
}

/// "[8192, 16, 64]"
template <size_t Rank>
std::string to_string(const std::array<int64_t, Rank>& shape) {
    std::string s = "[";
    for (size_t axis = 0; axis < Rank; ++axis) {
        if (axis > 0) s += ", ";
        s += std::to_string(shape[axis]);
    }
    return s + "]";
}

/// Non-owning tensor. A default-constructed view is absent: data() is null, and it is false.
template <typename T, int Rank>
class View {
public:
    View() = default;
    View(T* data, Shape<Rank> shape, Space space = Space::host)
        : data_(data), shape_(shape), space_(space) {}
    /// View<float, R> -> View<const float, R>.
    template <typename U>
    requires(std::is_same_v<const U, T> && !std::is_same_v<U, T>) View(const View<U, Rank>& other)
        : View(other.data(), other.shape(), other.space()) {}

    T* data() const { return data_; }
    const Shape<Rank>& shape() const { return shape_; }
    int64_t extent(int axis) const { return shape_[static_cast<size_t>(axis)]; }
    int64_t size() const { return element_count(shape_); }
    Space space() const { return space_; }
    explicit operator bool() const { return data_ != nullptr; }

    template <typename... Index>
    requires(sizeof...(Index) == Rank) T& operator()(Index... index) const {
        int64_t offset = 0;
        size_t axis = 0;
        ((offset = offset * shape_[axis++] + static_cast<int64_t>(index)), ...);
        return data_[offset];
    }

    /// Element `i` of the first axis.
    View<T, Rank - 1> operator[](int64_t i) const requires(Rank > 1) {
        Shape<Rank - 1> rest;
        for (size_t axis = 1; axis < Rank; ++axis) rest[axis - 1] = shape_[axis];
        return {data_ + i * element_count(rest), rest, space_};
    }

    /// Elements [first, first + count) of the first axis.
    View slice(int64_t first, int64_t count) const {
        View part = *this;
        part.shape_[0] = count;
        if (shape_[0] > 0) part.data_ += first * (size() / shape_[0]);
        return part;
    }

private:
    T* data_ = nullptr;
    Shape<Rank> shape_{};
    Space space_ = Space::host;
};

/// A view whose element type is known only at run time, as it depends on the backend (float on the
/// CPU, bf16 on a GPU). Constructible from any View; absent if that is.
template <typename Void, int Rank>
class AnyView {
public:
    AnyView() = default;
    AnyView(Void* data, Shape<Rank> shape, Element element, Space space)
        : data_(data), shape_(shape), element_(element), space_(space) {}
    /// Out<R> -> In<R>.
    template <typename U>
    requires(std::is_same_v<const U, Void> && !std::is_same_v<U, Void>)
        AnyView(const AnyView<U, Rank>& other)
        : AnyView(other.data(), other.shape(), other.element(), other.space()) {}
    template <typename T>
    requires(std::is_convertible_v<T*, Void*>) AnyView(const View<T, Rank>& view)
        : AnyView(view.data(), view.shape(), ElementOf<std::remove_const_t<T>>::value,
                  view.space()) {}
    template <typename Owner>
    requires(std::is_convertible_v<decltype(std::declval<Owner&>().view().data()), Void*>)
        AnyView(Owner&& tensor)
        : AnyView(tensor.view()) {}

    Void* data() const { return data_; }
    const Shape<Rank>& shape() const { return shape_; }
    Element element() const { return element_; }
    Space space() const { return space_; }
    explicit operator bool() const { return data_ != nullptr; }

    /// The typed view; T must be of element().
    template <typename T>
    View<T, Rank> as() const {
        MSA_CHECK(ElementOf<std::remove_const_t<T>>::value == element_);
        return {static_cast<T*>(data_), shape_, space_};
    }

private:
    Void* data_ = nullptr;
    Shape<Rank> shape_{};
    Element element_ = Element::f32;
    Space space_ = Space::host;
};

template <int Rank>
using In = AnyView<const void, Rank>;
template <int Rank>
using Out = AnyView<void, Rank>;

/// Contents of new host memory: zeros, or uninitialised.
enum class Fill : uint8_t { zeros, nothing };

/// 64-byte aligned host memory. The process keeps up to 8 GiB of what is freed (tensor.cpp).
std::shared_ptr<void> allocate_host(int64_t bytes, Fill fill = Fill::zeros);

/// Owning tensor; moves, does not copy.
template <typename T, int Rank>
class Tensor {
public:
    Tensor() = default;
    /// On the host.
    explicit Tensor(Shape<Rank> shape, Fill fill = Fill::zeros)
        : Tensor(shape, allocate_host(element_count(shape) * int64_t{sizeof(T)}, fill),
                 Space::host) {}
    Tensor(Shape<Rank> shape, std::shared_ptr<void> storage, Space space)
        : storage_(std::move(storage)), view_(static_cast<T*>(storage_.get()), shape, space) {}
    Tensor(Tensor&&) noexcept = default;
    Tensor& operator=(Tensor&&) noexcept = default;
    Tensor(const Tensor&) = delete;
    Tensor& operator=(const Tensor&) = delete;
    ~Tensor() = default;

    View<T, Rank> view() { return view_; }
    View<const T, Rank> view() const { return view_; }
    operator View<T, Rank>() { return view_; }
    operator View<const T, Rank>() const { return view_; }

    T* data() { return view_.data(); }
    const T* data() const { return view_.data(); }
    const Shape<Rank>& shape() const { return view_.shape(); }
    int64_t extent(int axis) const { return view_.extent(axis); }
    int64_t size() const { return view_.size(); }
    template <typename... Index>
    T& operator()(Index... index) {
        return view_(index...);
    }
    template <typename... Index>
    const T& operator()(Index... index) const {
        return view_(index...);
    }

private:
    std::shared_ptr<void> storage_;
    View<T, Rank> view_;
};

}  // namespace msa
