// SPDX-License-Identifier: MIT
#include "python/operand.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

namespace nb = nanobind;

namespace msa {
namespace {

std::optional<Element> element_of(nb::dlpack::dtype type) {
    using Code = nb::dlpack::dtype_code;
    const auto is = [&](Code code, int bits) {
        return type.lanes == 1 && type.code == static_cast<uint8_t>(code) && type.bits == bits;
    };
    if (is(Code::Float, 32)) return Element::f32;
    if (is(Code::Float, 64)) return Element::f64;
    if (is(Code::Float, 16)) return Element::f16;
    if (is(Code::Bfloat, 16)) return Element::bf16;
    if (is(Code::Int, 32)) return Element::i32;
    if (is(Code::Int, 8)) return Element::int8;
    constexpr uint8_t kFloat8E4m3fn = 10;  // of DLPack 1.1, which nanobind does not name
    if (type.lanes == 1 && type.code == kFloat8E4m3fn && type.bits == 8) return Element::e4m3;
    return std::nullopt;
}

/// "int64", as numpy and PyTorch call it.
std::string type_name(nb::dlpack::dtype type) {
    using Code = nb::dlpack::dtype_code;
    if (type.code == static_cast<uint8_t>(Code::Bool)) return "bool";
    const char* kind = type.code == static_cast<uint8_t>(Code::Int)      ? "int"
                       : type.code == static_cast<uint8_t>(Code::UInt)   ? "uint"
                       : type.code == static_cast<uint8_t>(Code::Float)  ? "float"
                       : type.code == static_cast<uint8_t>(Code::Bfloat) ? "bfloat"
                                                                         : "unknown type of ";
    return kind + std::to_string(int{type.bits});
}

/// The C functions that a type of arrays has for others, as DLPack's header lays them out
/// (DLPackExchangeAPI). They need no object of Python's on the way: a call of sparse_attention that
/// takes 24 us of a core with them takes 27 with the tensors' own methods.
struct Exchange {
    static constexpr uint32_t kMajor = 1;  // of the layout
    uint32_t major, minor;
    const Exchange* previous;
    void* unused[3];
    /// Describes the array, which stays the owner of all that is pointed to; 0 or an error.
    int (*read)(void* object, nb::dlpack::dltensor* to);
};

/// Of the type; null where it has none, as in older versions of PyTorch.
const Exchange* exchange_of(nb::handle type) {
    if (!nb::hasattr(type, "__dlpack_c_exchange_api__")) return nullptr;
    const nb::object capsule = type.attr("__dlpack_c_exchange_api__");
    const auto* found =
        static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (found == nullptr) PyErr_Clear();
    return found != nullptr && found->major == Exchange::kMajor ? found : nullptr;
}

/// What is asked of tensors, looked up once. It lives as long as the process.
struct Torch {
    const Exchange* exchange;
    nb::object tensor, parameter;  // types
    std::vector<std::pair<nb::object, Element>> elements;
    nb::object data_ptr, shape, stride, is_contiguous, dtype, is_cpu, is_cuda, get_device;  // names
    nb::object is_neg;

    explicit Torch(nb::handle torch)
        : exchange(exchange_of(torch.attr("Tensor"))),
          tensor(torch.attr("Tensor")),
          parameter(torch.attr("nn").attr("Parameter")) {
        for (const auto& [name, element] :
             {std::pair("float32", Element::f32), std::pair("bfloat16", Element::bf16),
              std::pair("int32", Element::i32), std::pair("int8", Element::int8),
              std::pair("float16", Element::f16), std::pair("float64", Element::f64),
              std::pair("float8_e4m3fn", Element::e4m3)})
            elements.emplace_back(torch.attr(name), element);
        const auto name = [](const char* text) {
            return nb::steal<nb::object>(PyUnicode_InternFromString(text));
        };
        data_ptr = name("data_ptr");
        shape = name("shape");
        stride = name("stride");
        is_contiguous = name("is_contiguous");
        dtype = name("dtype");
        is_cpu = name("is_cpu");
        is_cuda = name("is_cuda");
        get_device = name("get_device");
        is_neg = name("is_neg");
    }
    bool reads(nb::handle source) const {
        const nb::handle type = source.type();
        return type.is(tensor) || type.is(parameter);
    }
};

const Torch* torch_in_use = nullptr;

/// "float8_e5m2", "complex64"
std::string type_name(const Torch& torch, nb::handle tensor) {
    const nb::object dtype = tensor.attr(torch.dtype);
    return nb::cast<std::string>(nb::str(dtype)).substr(sizeof("torch.") - 1);
}

int device_of(const Torch& torch, nb::handle tensor) {
    if (nb::cast<bool>(tensor.attr(torch.is_cpu))) return kOnHost;
    if (nb::cast<bool>(tensor.attr(torch.is_cuda)))
        return nb::cast<int>(tensor.attr(torch.get_device)());
    return kElsewhere;
}

constexpr const char* kNoMemory = "a tensor without memory of its own";

/// Tensors that a transform has wrapped, fake ones, and zeros that PyTorch has not made yet: their
/// memory begins at address 0.
void refuse_without_memory(nb::handle tensor, Operand& to) {
    constexpr uintptr_t kFar = uintptr_t{1} << 40;  // bytes: no offset is as large
    if (to.device == kElsewhere || reinterpret_cast<uintptr_t>(to.data) >= kFar) return;
    if (!nb::hasattr(tensor, "storage_offset")) return;
    const auto bytes = nb::cast<uintptr_t>(tensor.attr("storage_offset")()) *
                       nb::cast<uintptr_t>(tensor.attr("element_size")());
    if (to.data != pointer_to(bytes) || nb::cast<int64_t>(tensor.attr("numel")()) == 0) return;
    to.readable = false;
    to.type = kNoMemory;
}

void read_tensor(const Torch& torch, nb::handle tensor, Operand& to) {
    to.device = device_of(torch, tensor);
    if (to.device != kElsewhere)
        to.data = pointer_to(nb::cast<uintptr_t>(tensor.attr(torch.data_ptr)()));
    const nb::object shape = tensor.attr(torch.shape);  // a kind of tuple
    to.axes = static_cast<size_t>(PyTuple_Size(shape.ptr()));
    const nb::object stride = tensor.attr(torch.stride)();
    const auto at = [](const nb::object& all, size_t axis) {
        return PyLong_AsLongLong(PyTuple_GetItem(all.ptr(), static_cast<Py_ssize_t>(axis)));
    };
    for (size_t axis = 0; axis < std::min(to.axes, Operand::kMostAxes); ++axis) {
        to.shape[axis] = at(shape, axis);
        to.strides[axis] = at(stride, axis);
    }
    to.contiguous = nb::cast<bool>(tensor.attr(torch.is_contiguous)());
    const nb::object dtype(tensor.attr(torch.dtype));
    for (const auto& [known, element] : torch.elements)
        if (dtype.is(known)) to.element = element;
    if (!to.element) to.type = type_name(torch, tensor);
}

void describe_dense(const nb::dlpack::dltensor& array, Operand& to) {
    const int type = array.device.device_type;
    const bool on_host = type == nb::device::cpu::value || type == nb::device::cuda_host::value;
    to.device = on_host                           ? kOnHost
                : type == nb::device::cuda::value ? array.device.device_id
                                                  : kElsewhere;
    to.data = static_cast<char*>(array.data) + array.byte_offset;
    to.axes = static_cast<size_t>(array.ndim);
    to.contiguous = true;
    int64_t stride = 1;
    for (size_t axis = to.axes; axis-- > 0;) {
        const int64_t extent = array.shape[axis];
        if (axis < Operand::kMostAxes) {
            to.shape[axis] = extent;
            to.strides[axis] = array.strides == nullptr ? stride : array.strides[axis];
        }
        const bool next = array.strides == nullptr || array.strides[axis] == stride;
        to.contiguous = to.contiguous && (extent == 1 || next);
        stride *= extent;
    }
    to.contiguous = to.contiguous || stride == 0;
    to.element = element_of(array.dtype);
    if (!to.element) to.type = type_name(array.dtype);
}

/// "NoneType", "ndarray, dtype object", "Tensor, dtype torch.float32, layout torch.sparse_coo",
/// "a nested tensor", "a tensor without memory of its own".
void describe(nb::handle source, Operand& to) noexcept try {
    PyErr_Clear();
    to = Operand();
    to.readable = false;
    to.type = "no array";
    to.type = nb::cast<std::string>(source.type().attr("__name__"));
    if (nb::getattr(source, "is_nested", nb::none()).is(Py_True)) {
        to.type = "a nested tensor";
        return;
    }
    for (const char* name : {"dtype", "layout"}) {
        if (!nb::hasattr(source, name)) continue;
        const nb::object value = source.attr(name);
        const auto word = nb::cast<std::string>(nb::str(value));
        to.type = word == "torch.strided" ? kNoMemory : concat(to.type, ", ", name, " ", word);
    }
} catch (...) {
    PyErr_Clear();
}

/// numpy.ma's: in its memory stand values that its mask hides.
bool is_masked(nb::handle source) {
    return std::string_view(Py_TYPE(source.ptr())->tp_name) != "numpy.ndarray" &&
           nb::hasattr(source, "_mask");
}

}  // namespace

void use_torch(nb::handle torch) {
    if (torch_in_use == nullptr) torch_in_use = new Torch(torch);
}

void read_operand(nb::handle source, Operand& to) try {
    if (torch_in_use != nullptr && torch_in_use->reads(source)) {
        to.copy = nb::borrow(source);
        if (nb::cast<bool>(source.attr(torch_in_use->is_neg)()))
            to.copy = source.attr("resolve_neg")();
        nb::dlpack::dltensor found{};
        const Exchange* exchange = torch_in_use->exchange;
        if (exchange != nullptr && exchange->read(to.copy.ptr(), &found) == 0) {
            describe_dense(found, to);
            if (!to.element) to.type = type_name(*torch_in_use, source);
        } else {  // of an older version, or of a kind that DLPack does not know
            PyErr_Clear();
            read_tensor(*torch_in_use, to.copy, to);
        }
        refuse_without_memory(to.copy, to);
        return;
    }
    nb::object plain = nb::borrow(source);
    for (const char* method : {"detach", "resolve_neg"})  // of a tensor: without its history
        if (nb::hasattr(plain, method)) plain = plain.attr(method)();
    if (is_masked(source)) {
        to.readable = false;
        to.type = "a masked array, whose mask no operation reads";
        return;
    }
    nb::ndarray<nb::ro> array;
    nb::ndarray<> writable;
    if (nb::try_cast(plain, writable)) array = nb::ndarray<nb::ro>(writable.handle());
    to.writable = writable.is_valid();
    if (to.writable || nb::try_cast(plain, array)) {
        describe_dense({.data = const_cast<void*>(array.data()),
                        .device = {array.device_type(), array.device_id()},
                        .ndim = static_cast<int32_t>(array.ndim()),
                        .dtype = array.dtype(),
                        .shape = const_cast<int64_t*>(array.shape_ptr()),
                        .strides = const_cast<int64_t*>(array.stride_ptr())},
                       to);
        refuse_without_memory(plain, to);
        to.bytes = to.type == "uint8" && !nb::hasattr(source, "detach");  // PyTorch has e4m3 itself
        to.owner = std::move(array);
    } else {
        describe(source, to);
    }
} catch (...) {
    describe(source, to);
}

}  // namespace msa
