// SPDX-License-Identifier: MIT
// Arrays as views for the operations: what an array must be, checked by name.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <type_traits>

#include "core/backend.h"
#include "python/operand.h"

namespace msa {

using Maybe = std::optional<Operand>;

/// Other threads run Python meanwhile. A daemon thread that comes back when Python has ended stays
/// here until the process does: Python would unwind it, through what must not throw.
class WithoutGil {
public:
    WithoutGil() : state_(PyEval_SaveThread()) {}
    WithoutGil(const WithoutGil&) = delete;
    ~WithoutGil() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {  // pthread_exit(): only what goes on unwinding, or does not end, is allowed
            for (;;) pause();
        }
    }

private:
    PyThreadState* state_;
};
using Free = nanobind::call_guard<WithoutGil>;

template <typename T>
inline constexpr const char* kName = nullptr;
template <>
inline constexpr const char* kName<float> = "float32";
template <>
inline constexpr const char* kName<double> = "float64";
template <>
inline constexpr const char* kName<int32_t> = "int32";
template <>
inline constexpr const char* kName<Int8> = "int8";
template <>
inline constexpr const char* kName<e4m3> = "e4m3";

/// "cuda:1", as PyTorch calls it.
inline std::string device_name(int device) {
    if (device == kElsewhere) return "a device that is neither a CPU nor CUDA's";
    return device == kOnHost ? "the CPU" : concat("cuda:", device);
}

/// Its first element. A view without elements is there all the same, and not absent.
inline void* data_of(const Operand& array) {
    static double nothing = 0;
    return array.data != nullptr ? array.data : &nothing;
}

/// Arrays as views for a backend that works on `device`.
class Views {
public:
    explicit Views(int device) : device_(device) {}

    /// The same, for which bytes of numpy are e4m3.
    Views of_e4m3_bytes() const {
        Views views = *this;
        views.bytes_are_e4m3_ = true;
        return views;
    }

    template <int Rank>
    In<Rank> in(const char* name, const Operand& array) const {
        return any_view<const void, Rank>(name, array);
    }
    template <int Rank>
    Out<Rank> out(const char* name, const Operand& array) const {
        return any_view<void, Rank>(name, array);
    }
    /// The view of elements T, which the array must hold.
    template <typename T, int Rank>
    View<T, Rank> typed(const char* name, const Operand& array) const {
        using Value = std::remove_const_t<T>;
        const Shape<Rank> shape = shape_of<Rank>(name, array);
        require(element_of(array) == ElementOf<Value>::value, name, " is ", type_of(array),
                ", must be ", kName<Value>);
        if constexpr (!std::is_const_v<T>) require_writable(name, array);
        return {static_cast<T*>(data_of(array)), shape, space()};
    }
    template <typename T, int Rank>
    View<T, Rank> maybe(const char* name, const Maybe& array) const {
        return array ? typed<T, Rank>(name, *array) : View<T, Rank>();
    }

    /// Packed keys, or with a table a pool of pages, which may be a part of a larger array.
    template <int Rank>
    Keys<Rank> keys(const char* name, const Operand& array, const Maybe& page_table,
                    const Maybe& seqused_k) const {
        if (!page_table) return in<Rank>(name, array);
        const Shape<Rank + 1> shape = axes_of<Rank + 1>(name, array);
        require(array.strides[Rank] == 1 || shape[Rank] <= 1, name,
                " has gaps on its last axis, which must be contiguous");
        Shape<Rank> strides;
        std::copy_n(array.strides.begin(), Rank, strides.begin());
        const Keys<Rank> pages(element_view<const void, Rank + 1>(name, array, shape),
                               typed<const int32_t, 2>("page_table", *page_table), strides);
        return pages.with_lengths(maybe<const int32_t, 1>("seqused_k", seqused_k));
    }

    AttentionInput attention(const Operand& q, const Operand& k, const Operand& v,
                             const Maybe& sinks, const Maybe& page_table = {},
                             const Maybe& seqused_k = {}, const OperandScales& scales = {}) const {
        return {in<3>("q", q), keys<3>("k", k, page_table, seqused_k),
                keys<3>("v", v, page_table, seqused_k), maybe<const float, 1>("sinks", sinks),
                scales};
    }
    OperandScales scales(const Maybe& q, const Maybe& k, const Maybe& v) const {
        return {maybe<const float, 2>("scales of q", q), maybe<const float, 2>("scales of k", k),
                maybe<const float, 2>("scales of v", v)};
    }
    AttentionOutput attention_output(const Operand& result, const Operand& lse) const {
        return {out<3>("out", result), typed<float, 2>("lse", lse)};
    }
    AttentionSaved saved(const Operand& result, const Operand& lse, const Operand& d_out) const {
        return {in<3>("out", result), typed<const float, 2>("lse", lse), in<3>("d_out", d_out)};
    }
    AttentionGradient gradient(const Operand& d_q, const Operand& d_k, const Operand& d_v,
                               const Maybe& d_sinks) const {
        return {out<3>("d_q", d_q), out<3>("d_k", d_k), out<3>("d_v", d_v),
                maybe<float, 1>("d_sinks", d_sinks)};
    }
    IndexInput index(const Operand& index_q, const Operand& index_k, const Maybe& q_scales,
                     const Maybe& k_scales, const Maybe& page_table = {},
                     const Maybe& seqused_k = {}) const {
        return {in<3>("index_q", index_q),
                keys<2>("index_k", index_k, page_table, seqused_k),
                {maybe<const float, 2>("q_scales", q_scales),
                 maybe<const float, 2>("k_scales", k_scales),
                 {}}};
    }

    static void require_writable(const char* name, const Operand& array) {
        require(array.writable, name, " is read-only, must be writable");
    }

private:
    std::optional<Element> element_of(const Operand& array) const {
        return array.bytes && bytes_are_e4m3_ ? Element::e4m3 : array.element;
    }
    Space space() const { return device_ == kOnHost ? Space::host : Space::device; }
    static std::string type_of(const Operand& array) {
        if (!array.element) return array.type;
        switch (*array.element) {
            case Element::f32: return "float32";
            case Element::f64: return "float64";
            case Element::f16: return "float16";
            case Element::bf16: return "bfloat16";
            case Element::i32: return "int32";
            default: return to_string(*array.element);
        }
    }
    /// The shape of an array, which must have `Rank` axes and lie on the device.
    template <int Rank>
    Shape<Rank> axes_of(const char* name, const Operand& array) const {
        require(array.readable, name, " is ", array.type, ", must be a dense array or tensor");
        require(array.device == device_, name, " lies on ", device_name(array.device),
                ", must lie on ", device_name(device_), " like the other arrays");
        require(array.axes == Rank, name, " has ", array.axes, " dimensions, must have ", Rank);
        Shape<Rank> shape;
        for (size_t axis = 0; axis < Rank; ++axis) shape[axis] = array.shape[axis];
        return shape;
    }
    /// The same of an array that must be contiguous, too.
    template <int Rank>
    Shape<Rank> shape_of(const char* name, const Operand& array) const {
        const Shape<Rank> shape = axes_of<Rank>(name, array);
        require(array.contiguous, name, " is not contiguous in row-major order; ", name,
                ".contiguous() in PyTorch and numpy.ascontiguousarray(", name,
                ") give a copy that is");
        return shape;
    }
    template <typename Void, int Rank>
    AnyView<Void, Rank> any_view(const char* name, const Operand& array) const {
        return element_view<Void, Rank>(name, array, shape_of<Rank>(name, array));
    }
    template <typename Void, int Rank>
    AnyView<Void, Rank> element_view(const char* name, const Operand& array,
                                     const Shape<Rank>& shape) const {
        const std::optional<Element> element = element_of(array);
        require(element.has_value(), name, " is ", type_of(array),
                array.bytes ? ", which sparse_attention alone takes, as bytes of e4m3"
                            : ", which no operation takes");
        if constexpr (!std::is_const_v<Void>) require_writable(name, array);
        return {data_of(array), shape, *element, space()};
    }

    int device_;
    bool bytes_are_e4m3_ = false;
};

}  // namespace msa
