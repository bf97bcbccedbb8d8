// SPDX-License-Identifier: MIT
// The compiled part of the Python package: arrays of whoever speaks DLPack become views, and each
// call is one of core/backend.h. What users see, with defaults and new outputs:
// msalab/operations.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "core/registry.h"
#include "gpu/cuda_backend.h"

namespace nb = nanobind;

namespace msa {
namespace {

using Input = nb::ndarray<nb::ro>;
using Output = nb::ndarray<>;
using MaybeInput = std::optional<Input>;
using MaybeOutput = std::optional<Output>;

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
    return std::nullopt;
}

/// "int64", as numpy and PyTorch call it.
std::string type_name(nb::dlpack::dtype type) {
    using Code = nb::dlpack::dtype_code;
    const char* kind = type.code == static_cast<uint8_t>(Code::Int)      ? "int"
                       : type.code == static_cast<uint8_t>(Code::UInt)   ? "uint"
                       : type.code == static_cast<uint8_t>(Code::Float)  ? "float"
                       : type.code == static_cast<uint8_t>(Code::Bfloat) ? "bfloat"
                       : type.code == static_cast<uint8_t>(Code::Bool)   ? "bool"
                                                                         : "unknown type of ";
    return text(kind, int{type.bits});
}

Space space_of(const char* name, int device) {
    switch (device) {
        case nb::device::cpu::value: return Space::host;
        case nb::device::cuda::value: return Space::device;
        default: throw InputError(text(name, " lies on a device that is neither a CPU nor CUDA's"));
    }
}

/// The shape of an array, which must have `Rank` axes and be contiguous.
template <int Rank, typename Array>
Shape<Rank> shape_of(const char* name, const Array& array) {
    require(array.ndim() == Rank, name, " has ", array.ndim(), " dimensions, must have ", Rank);
    Shape<Rank> shape;
    int64_t stride = 1;
    bool contiguous = true;
    for (size_t axis = Rank; axis-- > 0;) {
        shape[axis] = static_cast<int64_t>(array.shape(axis));
        contiguous = contiguous && (shape[axis] == 1 || array.stride(axis) == stride);
        stride *= shape[axis];
    }
    require(contiguous || stride == 0, name, " is not contiguous in row-major order; ", name,
            ".contiguous() in PyTorch and numpy.ascontiguousarray(", name, ") give a copy that is");
    return shape;
}

/// Its first element. A view without elements is there all the same, and not absent.
template <typename Array>
void* data_of(const Array& array) {
    static double nothing = 0;
    void* data = const_cast<void*>(static_cast<const void*>(array.data()));
    return data != nullptr ? data : &nothing;
}

template <typename Void, int Rank, typename Array>
AnyView<Void, Rank> any_view(const char* name, const Array& array) {
    const std::optional<Element> element = element_of(array.dtype());
    require(element.has_value(), name, " is ", type_name(array.dtype()),
            ", which no operation takes");
    return {data_of(array), shape_of<Rank>(name, array), *element,
            space_of(name, array.device_type())};
}

template <int Rank>
In<Rank> in(const char* name, const Input& array) {
    return any_view<const void, Rank>(name, array);
}

template <int Rank>
Out<Rank> out(const char* name, const Output& array) {
    return any_view<void, Rank>(name, array);
}

template <typename T>
constexpr const char* kName = nullptr;
template <>
constexpr const char* kName<float> = "float32";
template <>
constexpr const char* kName<double> = "float64";
template <>
constexpr const char* kName<int32_t> = "int32";

/// The view of elements T, which the array must hold.
template <typename T, int Rank, typename Array>
View<T, Rank> typed(const char* name, const Array& array) {
    using Value = std::remove_const_t<T>;
    require(element_of(array.dtype()) == ElementOf<Value>::value, name, " is ",
            type_name(array.dtype()), ", must be ", kName<Value>);
    return {static_cast<T*>(data_of(array)), shape_of<Rank>(name, array),
            space_of(name, array.device_type())};
}

template <typename T, int Rank, typename Array>
View<T, Rank> maybe(const char* name, const std::optional<Array>& array) {
    return array ? typed<T, Rank>(name, *array) : View<T, Rank>();
}

AttentionInput attention(const Input& q, const Input& k, const Input& v, const MaybeInput& sinks) {
    return {in<3>("q", q), in<3>("k", k), in<3>("v", v), maybe<const float, 1>("sinks", sinks)};
}

AttentionOutput attention_output(const Output& result, const Output& lse) {
    return {out<3>("out", result), typed<float, 2>("lse", lse)};
}

AttentionSaved saved(const Input& result, const Input& lse, const Input& d_out) {
    return {in<3>("out", result), typed<const float, 2>("lse", lse), in<3>("d_out", d_out)};
}

AttentionGradient gradient(const Output& d_q, const Output& d_k, const Output& d_v,
                           const MaybeOutput& d_sinks) {
    return {out<3>("d_q", d_q), out<3>("d_k", d_k), out<3>("d_v", d_v),
            maybe<float, 1>("d_sinks", d_sinks)};
}

IndexInput index_input(const Input& index_q, const Input& index_k) {
    return {in<3>("index_q", index_q), in<2>("index_k", index_k)};
}

LoopOrder loop_order(const std::string& name) {
    for (LoopOrder order :
         {LoopOrder::automatic, LoopOrder::q_outer, LoopOrder::tile_union, LoopOrder::kv_outer})
        if (name == to_string(order)) return order;
    throw InputError(text("order is '", name, "', must be automatic, union, kv_outer or q_outer"));
}

Teacher teacher_named(const std::string& name) {
    require(name == "mean" || name == "max", "teacher is '", name, "', must be mean or max");
    return name == "max" ? Teacher::max : Teacher::mean;
}

using Free = nb::call_guard<nb::gil_scoped_release>;

void define_problem(nb::module_& m) {
    nb::class_<PackedBatch>(m, "Layout")
        .def(nb::init<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>>())
        .def_prop_ro("sequences", &PackedBatch::sequences)
        .def_prop_ro("queries", &PackedBatch::queries)
        .def_prop_ro("keys", &PackedBatch::keys)
        .def_prop_ro("longest_keys", &PackedBatch::longest_keys);
    nb::class_<Problem>(m, "Problem")
        .def("__init__",
             [](Problem* self, const PackedBatch& layout, int64_t query_heads, int64_t kv_heads,
                int64_t head_dim, int64_t index_dim, int64_t block_size,
                std::optional<double> softmax_scale, std::optional<double> index_scale,
                std::optional<int64_t> window, std::optional<double> softcap) {
                 new (self) Problem{.batch = layout,
                                    .query_heads = query_heads,
                                    .kv_heads = kv_heads,
                                    .head_dim = head_dim,
                                    .index_dim = index_dim,
                                    .block_size = block_size,
                                    .own_softmax_scale = softmax_scale,
                                    .own_index_scale = index_scale,
                                    .window = window,
                                    .softcap = softcap};
             })
        .def_prop_ro("blocks", &Problem::blocks);
}

void define_backend(nb::module_& m) {
    nb::class_<Backend>(m, "Backend")
        .def_prop_ro("name", [](const Backend& b) { return std::string(b.name()); })
        .def_prop_ro("device", &Backend::device)
        .def(
            "dense_attention",
            [](Backend& b, const Problem& p, const Input& q, const Input& k, const Input& v,
               const MaybeInput& sinks, const Output& result, const Output& lse) {
                const AttentionInput input = attention(q, k, v, sinks);
                b.dense_attention(p, input, attention_output(result, lse));
                b.finish();
            },
            Free(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
            nb::arg())
        .def(
            "dense_attention_grad",
            [](Backend& b, const Problem& p, const Input& q, const Input& k, const Input& v,
               const MaybeInput& sinks, const Input& result, const Input& lse, const Input& d_out,
               const Output& d_q, const Output& d_k, const Output& d_v,
               const MaybeOutput& d_sinks) {
                const AttentionInput input = attention(q, k, v, sinks);
                b.dense_attention_grad(p, input, saved(result, lse, d_out),
                                       gradient(d_q, d_k, d_v, d_sinks));
                b.finish();
            },
            Free(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
            nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none())
        .def(
            "sparse_attention",
            [](Backend& b, const Problem& p, const Input& q, const Input& k, const Input& v,
               const MaybeInput& sinks, const Input& ids, const std::string& order,
               const Output& result, const Output& lse) {
                const AttentionInput input = attention(q, k, v, sinks);
                b.sparse_attention(p, input, typed<const int32_t, 3>("topk_idxs", ids),
                                   attention_output(result, lse), loop_order(order));
                b.finish();
            },
            Free(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
            nb::arg(), nb::arg(), nb::arg())
        .def(
            "sparse_attention_grad",
            [](Backend& b, const Problem& p, const Input& q, const Input& k, const Input& v,
               const MaybeInput& sinks, const Input& ids, const std::string& order,
               const Input& result, const Input& lse, const Input& d_out, const Output& d_q,
               const Output& d_k, const Output& d_v, const MaybeOutput& d_sinks) {
                b.sparse_attention_grad(
                    p, attention(q, k, v, sinks), typed<const int32_t, 3>("topk_idxs", ids),
                    saved(result, lse, d_out), gradient(d_q, d_k, d_v, d_sinks), loop_order(order));
                b.finish();
            },
            Free(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(),
            nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
            nb::arg().none())
        .def(
            "index_scores",
            [](Backend& b, const Problem& p, const Input& index_q, const Input& index_k,
               const Output& scores) {
                b.index_scores(p, index_input(index_q, index_k), typed<float, 3>("scores", scores));
                b.finish();
            },
            Free())
        .def(
            "select_blocks",
            [](Backend& b, const Problem& p, int64_t top_k, int64_t forced_local,
               int64_t forced_first, const Input& scores, const Output& ids) {
                b.select_blocks(p, {top_k, forced_local, forced_first},
                                typed<const float, 3>("scores", scores),
                                typed<int32_t, 3>("ids", ids));
                b.finish();
            },
            Free())
        .def(
            "index_select",
            [](Backend& b, const Problem& p, int64_t top_k, int64_t forced_local,
               int64_t forced_first, const Input& index_q, const Input& index_k,
               const Output& ids) {
                b.index_select(p, {top_k, forced_local, forced_first},
                               index_input(index_q, index_k), typed<int32_t, 3>("ids", ids));
                b.finish();
            },
            Free())
        .def(
            "block_mass",
            [](Backend& b, const Problem& p, const Input& q, const Input& k,
               const MaybeInput& sinks, const Output& mass, const MaybeOutput& max_logit) {
                b.block_mass(
                    p, {in<3>("q", q), in<3>("k", k), maybe<const float, 1>("sinks", sinks)},
                    {typed<float, 3>("mass", mass), maybe<float, 3>("max_logit", max_logit)});
                b.finish();
            },
            Free(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none())
        .def(
            "index_kl",
            [](Backend& b, const Problem& p, const Input& q, const Input& k, const Input& index_q,
               const Input& index_k, const MaybeInput& ids, const std::string& teacher,
               const MaybeInput& sinks, const Output& kl, const MaybeOutput& d_index_q,
               const MaybeOutput& d_index_k) {
                b.index_kl(p,
                           {.index = index_input(index_q, index_k),
                            .q = in<3>("q", q),
                            .k = in<3>("k", k),
                            .ids = maybe<const int32_t, 3>("topk_idxs", ids),
                            .teacher = teacher_named(teacher),
                            .sinks = maybe<const float, 1>("sinks", sinks)},
                           {.kl = typed<double, 2>("kl", kl),
                            .d_index_q = maybe<float, 3>("d_index_q", d_index_q),
                            .d_index_k = maybe<float, 2>("d_index_k", d_index_k)});
                b.finish();
            },
            Free(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
            nb::arg(), nb::arg().none(), nb::arg(), nb::arg().none(), nb::arg().none());
}

}  // namespace

NB_MODULE(_msalab, m) {
    register_cuda_backend();
    nb::exception<UnsupportedError>(m, "UnsupportedError", PyExc_NotImplementedError);
    nb::exception<InputError>(m, "InputError", PyExc_ValueError);
    nb::exception<SystemError>(m, "SystemError", PyExc_OSError);
    nb::exception<MemoryError>(m, "OutOfMemoryError", PyExc_MemoryError);
    define_problem(m);
    define_backend(m);
    m.def("make_backend", [](const std::string& name, int threads, int device) {
        return make_backend(name, {.threads = threads, .device = device});
    });
    m.def("backends", [] {
        nb::dict found;
        for (const BackendInfo& info : list_backends())
            found[info.name.c_str()] = info.usable.why_not;
        return found;
    });
}

}  // namespace msa
