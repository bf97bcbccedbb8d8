// SPDX-License-Identifier: MIT
// The compiled part of the Python package: arrays become views, and each call is one of
// core/backend.h. What users see, with defaults and new outputs: msalab/operations.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/registry.h"
#include "experiments/driver/version.h"
#include "gpu/cuda_backend.h"
#include "python/analysis.h"
#include "python/known_problems.h"
#include "python/operand.h"
#include "python/views.h"

namespace nb = nanobind;

namespace msa {
namespace {

LoopOrder loop_order(const std::string& name) {
    for (LoopOrder order :
         {LoopOrder::automatic, LoopOrder::q_outer, LoopOrder::tile_union, LoopOrder::kv_outer})
        if (name == to_string(order)) return order;
    throw InputError(
        concat("order is '", name, "', must be automatic, union, kv_outer or q_outer"));
}

Teacher teacher_named(const std::string& name) {
    require(name == "mean" || name == "max", "teacher is '", name, "', must be mean or max");
    return name == "max" ? Teacher::max : Teacher::mean;
}

/// A backend and where its arrays lie. On the host a call is done when it returns; on a GPU it has
/// taken its turn in the stream. Threads take turns: autograd calls from threads of its own.
class Runner {
public:
    Runner(std::unique_ptr<Backend> backend, int device)
        : backend_(std::move(backend)), views_(device), waits_(device == kOnHost) {}

    template <typename Body>
    void run(Body body) {
        const std::lock_guard turn(turn_);
        body(*backend_, views_);
        if (waits_) backend_->finish();
    }
    const Backend& backend() const { return *backend_; }

private:
    std::unique_ptr<Backend> backend_;
    Views views_;
    bool waits_;
    std::mutex turn_;
};

/// A function of Python that C++ may copy and let go without the GIL.
std::shared_ptr<nb::object> shared(nb::object function) {
    return {new nb::object(std::move(function)), [](nb::object* owned) {
                if (!Py_IsInitialized()) return;
                const nb::gil_scoped_acquire hold;
                delete owned;
            }};
}

/// A backend of cuda's, by name, on PyTorch's stream (0: the default one), with workspace of its
/// allocator: allocate(bytes) gives an address, 0 where there is not enough; free(address).
std::unique_ptr<Runner> make_torch_backend(const std::string& name, int device, uintptr_t stream,
                                           nb::object allocate, nb::object free) {
    constexpr uintptr_t kLegacyStream = 1;  // cudaStreamLegacy
    const auto take = shared(std::move(allocate)), give_back = shared(std::move(free));
    CudaOptions options;
    options.device = device;
    options.stream = pointer_to(stream == 0 ? kLegacyStream : stream);
    options.keeps_apart = true;  // graphs of PyTorch account for what is in their memory
    options.allocate = [take](int64_t bytes, void*) {
        const nb::gil_scoped_acquire hold;
        return pointer_to(nb::cast<uintptr_t>((*take)(bytes)));
    };
    options.free = [give_back](void* memory, int64_t, void*) {
        if (!Py_IsInitialized()) return;
        const nb::gil_scoped_acquire hold;
        try {
            (*give_back)(reinterpret_cast<uintptr_t>(memory));
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("msalab: giving memory back");
        }
    };
    return std::make_unique<Runner>(make_cuda_backend(options, name), device);
}

void define_problem(nb::module_& m) {
    nb::class_<PackedBatch>(m, "Layout", "Where packed sequences lie, as msalab.layout says.")
        .def(nb::init<std::vector<int64_t>, std::vector<int64_t>, std::vector<int64_t>>())
        .def_prop_ro("sequences", &PackedBatch::sequences, "How many.")
        .def_prop_ro("queries", &PackedBatch::queries, "Query tokens of all sequences, Nq.")
        .def_prop_ro("keys", &PackedBatch::keys, "Key tokens of all sequences, Nk.")
        .def_prop_ro("longest_keys", &PackedBatch::longest_keys, "Keys of the longest sequence.");
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
                                    .softmax_scale_override = softmax_scale,
                                    .index_scale_override = index_scale,
                                    .window = window,
                                    .softcap = softcap};
             })
        .def_prop_ro("blocks",
                     [](const Problem& p) {
                         p.validate(kMinScoredBlockSize);
                         return p.blocks();
                     })
        .def_prop_ro("all_blocks", [](const Problem& p) {
            p.validate(kMinScoredBlockSize);
            return block_starts(p).back();
        });
}

/// In the order of operations.py: layout, cu_seqlens_q, cu_seqlens_k, q, k, index_q, index_k,
/// block_size, softmax_scale, index_scale, window, softcap.
ProblemArguments problem_arguments(const nb::args& all) {
    const auto at = [&](Py_ssize_t i) { return nb::handle(PyTuple_GetItem(all.ptr(), i)); };
    MSA_CHECK(all.size() == 12);
    return {.layout = at(0),
            .cu_seqlens_q = at(1),
            .cu_seqlens_k = at(2),
            .arrays = {at(3), at(4), at(5), at(6)},
            .counts = {at(7), at(10)},
            .numbers = {at(8), at(9), at(11)}};
}

void define_known_problems(nb::module_& m) {
    nb::class_<KnownProblems>(m, "KnownProblems")
        .def(nb::init<>())
        .def("find", [](KnownProblems& known,
                        const nb::args& all) { return known.find(problem_arguments(all)); })
        .def("keep", [](KnownProblems& known, const Problem& problem, const nb::args& all) {
            known.keep(problem_arguments(all), problem);
        });
}

void define_backend(nb::module_& m) {
    const auto any = nb::arg().none();  // what None is refused for, Views says by name
    nb::class_<Runner>(m, "Backend")
        .def_prop_ro("name", [](const Runner& r) { return std::string(r.backend().name()); })
        .def_prop_ro("device", [](const Runner& r) { return r.backend().device(); })
        .def_prop_ro("answered_by", [](const Runner& r) { return r.backend().answered_by(); })
        .def(
            "dense_attention",
            [](Runner& r, const Problem& p, const Operand& q, const Operand& k, const Operand& v,
               const Maybe& sinks, const Operand& result, const Operand& lse) {
                r.run([&](Backend& b, const Views& views) {
                    const AttentionInput input = views.attention(q, k, v, sinks);
                    b.dense_attention(p, input, views.attention_output(result, lse));
                });
            },
            Free(), any, any, any, any, any, any, any)
        .def(
            "dense_attention_grad",
            [](Runner& r, const Problem& p, const Operand& q, const Operand& k, const Operand& v,
               const Maybe& sinks, const Operand& result, const Operand& lse, const Operand& d_out,
               const Operand& d_q, const Operand& d_k, const Operand& d_v, const Maybe& d_sinks) {
                r.run([&](Backend& b, const Views& views) {
                    const AttentionInput input = views.attention(q, k, v, sinks);
                    b.dense_attention_grad(p, input, views.saved(result, lse, d_out),
                                           views.gradient(d_q, d_k, d_v, d_sinks));
                });
            },
            Free(), any, any, any, any, any, any, any, any, any, any, any, any)
        .def(
            "sparse_attention",
            [](Runner& r, const Problem& p, const Operand& q, const Operand& k, const Operand& v,
               const Maybe& sinks, const Operand& ids, const std::string& order,
               const Operand& result, const Operand& lse, const Maybe& page_table,
               const Maybe& seqused_k, const Maybe& q_scales, const Maybe& k_scales,
               const Maybe& v_scales) {
                r.run([&](Backend& b, const Views& views) {
                    const AttentionInput input =
                        views.of_e4m3_bytes().attention(q, k, v, sinks, page_table, seqused_k,
                                                        views.scales(q_scales, k_scales, v_scales));
                    b.sparse_attention(p, input, views.typed<const int32_t, 3>("ids", ids),
                                       views.attention_output(result, lse), loop_order(order));
                });
            },
            Free(), any, any, any, any, any, any, any, any, any, any, any, any, any, any)
        .def(
            "sparse_attention_grad",
            [](Runner& r, const Problem& p, const Operand& q, const Operand& k, const Operand& v,
               const Maybe& sinks, const Operand& ids, const std::string& order,
               const Operand& result, const Operand& lse, const Operand& d_out, const Operand& d_q,
               const Operand& d_k, const Operand& d_v, const Maybe& d_sinks) {
                r.run([&](Backend& b, const Views& views) {
                    const AttentionInput input = views.attention(q, k, v, sinks);
                    b.sparse_attention_grad(p, input, views.typed<const int32_t, 3>("ids", ids),
                                            views.saved(result, lse, d_out),
                                            views.gradient(d_q, d_k, d_v, d_sinks),
                                            loop_order(order));
                });
            },
            Free(), any, any, any, any, any, any, any, any, any, any, any, any, any, any)
        .def(
            "index_scores",
            [](Runner& r, const Problem& p, const Operand& index_q, const Operand& index_k,
               const Maybe& q_scales, const Maybe& k_scales, const Operand& scores,
               const Maybe& page_table, const Maybe& seqused_k) {
                r.run([&](Backend& b, const Views& views) {
                    b.index_scores(
                        p, views.index(index_q, index_k, q_scales, k_scales, page_table, seqused_k),
                        views.typed<float, 3>("scores", scores));
                });
            },
            Free(), any, any, any, any, any, any, any, any)
        .def(
            "select_blocks",
            [](Runner& r, const Problem& p, int64_t top_k, int64_t forced_local,
               int64_t forced_first, const Operand& scores, const Operand& ids) {
                r.run([&](Backend& b, const Views& views) {
                    b.select_blocks(p, {top_k, forced_local, forced_first},
                                    views.typed<const float, 3>("scores", scores),
                                    views.typed<int32_t, 3>("ids", ids));
                });
            },
            Free(), any, any, any, any, any, any)
        .def(
            "index_select",
            [](Runner& r, const Problem& p, int64_t top_k, int64_t forced_local,
               int64_t forced_first, const Operand& index_q, const Operand& index_k,
               const Maybe& q_scales, const Maybe& k_scales, const Operand& ids, const Maybe& lse,
               const Maybe& page_table, const Maybe& seqused_k) {
                r.run([&](Backend& b, const Views& views) {
                    b.index_select(
                        p, {top_k, forced_local, forced_first},
                        views.index(index_q, index_k, q_scales, k_scales, page_table, seqused_k),
                        views.typed<int32_t, 3>("ids", ids), views.maybe<float, 2>("lse", lse));
                });
            },
            Free(), any, any, any, any, any, any, any, any, any, any, any, any)
        .def(
            "block_mass",
            [](Runner& r, const Problem& p, const Operand& q, const Operand& k, const Maybe& sinks,
               const Operand& mass, const Maybe& max_logit, const Maybe& page_table,
               const Maybe& seqused_k) {
                r.run([&](Backend& b, const Views& views) {
                    b.block_mass(p,
                                 {views.in<3>("q", q), views.keys<3>("k", k, page_table, seqused_k),
                                  views.maybe<const float, 1>("sinks", sinks)},
                                 {views.typed<float, 3>("mass", mass),
                                  views.maybe<float, 3>("max_logit", max_logit)});
                });
            },
            Free(), any, any, any, any, any, any, any, any)
        .def(
            "append",
            [](Runner& r, const Problem& p, const Operand& rows, const Operand& pool,
               const Maybe& page_table, const Maybe& seqused_k) {
                r.run([&](Backend& b, const Views& views) {
                    Views::require_writable("pool", pool);
                    b.append(p, views.in<3>("rows", rows),
                             views.keys<3>("pool", pool, page_table, seqused_k));
                });
            },
            Free(), any, any, any, any, any)
        .def(
            "index_kl",
            [](Runner& r, const Problem& p, const Operand& q, const Operand& k,
               const Operand& index_q, const Operand& index_k, const Maybe& ids,
               const std::string& teacher, const Maybe& sinks, const Maybe& main_lse,
               const Maybe& index_lse, const Operand& kl, const Maybe& d_index_q,
               const Maybe& d_index_k) {
                r.run([&](Backend& b, const Views& views) {
                    b.index_kl(p,
                               {.index = views.index(index_q, index_k, {}, {}),
                                .q = views.in<3>("q", q),
                                .k = views.in<3>("k", k),
                                .ids = views.maybe<const int32_t, 3>("ids", ids),
                                .teacher = teacher_named(teacher),
                                .sinks = views.maybe<const float, 1>("sinks", sinks),
                                .main_lse = views.maybe<const float, 2>("main_lse", main_lse),
                                .index_lse = views.maybe<const float, 2>("index_lse", index_lse)},
                               {.kl = views.typed<double, 2>("kl", kl),
                                .d_index_q = views.maybe<float, 3>("d_index_q", d_index_q),
                                .d_index_k = views.maybe<float, 2>("d_index_k", d_index_k)});
                });
            },
            Free(), any, any, any, any, any, any, any, any, any, any, any, any, any);
}

/// Arrays on the host: values and scales of `operand` [tokens, heads, channels], called `name`, by
/// block where it has keys, else by row.
template <typename T>
void store_operand(const Problem& p, const std::string& name, const Operand& operand, bool keys,
                   const Operand& values, const Operand& scales) {
    const Views views = Views(kOnHost).of_e4m3_bytes();
    const auto from = views.typed<const float, 3>(name.c_str(), operand);
    const int64_t tokens = keys ? p.keys() : p.queries();
    require(from.extent(0) == tokens, name, " has ", from.extent(0), " tokens, must have ", tokens);
    const auto unit = keys ? OperandScale::block : OperandScale::row;
    const ScaledOperand<T> stored = store_scaled<T>(p, from, unit);
    const View<T, 3> to = views.typed<T, 3>("values", values);
    const View<float, 2> of = views.typed<float, 2>("scales", scales);
    MSA_CHECK(to.size() == stored.values.size() && of.size() == stored.scales.size());
    std::copy_n(stored.values.data(), to.size(), to.data());
    std::copy_n(stored.scales.data(), of.size(), of.data());
}

/// A table and lengths on the host, for a pool of so many pages.
void check_pages_of(const Operand& page_table, const std::vector<int64_t>& tokens,
                    int64_t page_size, int64_t pages) {
    const auto table = Views(kOnHost).typed<const int32_t, 2>("page_table", page_table);
    require(table.extent(0) == std::ssize(tokens), "page_table has ", table.extent(0),
            " rows, must have one for each sequence = ", tokens.size());
    check_table(table, tokens, page_size, pages, "pool");
}

}  // namespace

NB_MODULE(_msalab, m) {
    nb::set_leak_warnings(false);  // a daemon thread may be in a call when Python ends
    register_cuda_backend();
    nb::exception<UnsupportedError>(m, "UnsupportedError", PyExc_NotImplementedError);
    nb::exception<InputError>(m, "InputError", PyExc_ValueError);
    nb::exception<SystemError>(m, "SystemError", PyExc_OSError);
    nb::exception<MemoryError>(m, "OutOfMemoryError", PyExc_MemoryError);
    define_problem(m);
    define_known_problems(m);
    define_backend(m);
    define_analysis(m);
    m.attr("commit") = experiments::kCommit;
    m.def("make_backend", [](const std::string& name) {
        return std::make_unique<Runner>(make_backend(name, {}), kOnHost);
    });
    m.def("make_torch_backend", make_torch_backend);
    m.def("use_torch", use_torch);
    m.def("store_int8", store_operand<Int8>, Free());
    m.def("store_e4m3", store_operand<e4m3>, Free());
    m.def("check_table", check_pages_of, Free());
    m.def("backends", [] {
        nb::dict found;
        for (const BackendInfo& info : list_backends())
            found[info.name.c_str()] = info.usable.why_not;
        return found;
    });
}

}  // namespace msa
