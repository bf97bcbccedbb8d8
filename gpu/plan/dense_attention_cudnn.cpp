// SPDX-License-Identifier: MIT
#include "gpu/plan/dense_attention_cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "gpu/half_types.h"
#include "gpu/kernels/add_parts.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/non_finite.h"
#include "gpu/plan/cudnn_graph.h"
#include "gpu/plan/limits.h"

void* cudnn_frontend::cudnn_dlhandle = nullptr;  // where the frontend looks for the library

namespace msa::cuda {
namespace {

/// Can cuDNN answer, as far as that does not depend on the plan? `spans`: those of spans_of.
/// `views`: operands and outputs.
template <typename... Views>
Support takes(const Problem& p, const std::vector<Span>& spans, Element element,
              const Views&... views) {
    const auto fits = [element](const auto& view) {
        return view.element() == element && reinterpret_cast<uintptr_t>(view.data()) % 16 == 0;
    };
    if (!is_half(element) || !(fits(views) && ...))
        return Support::no(
            "it takes operands and outputs that are all bf16 or all f16, at multiples of 16 bytes");
    if (p.window || p.softcap) return not_plain(p);
    if (p.softmax_scale() <= 0 || p.head_dim % 8 != 0)
        return Support::no("it takes a positive scale and a head dim of multiples of 8");
    if (spans.empty())
        return Support::no("it takes queries at consecutive positions that all see a key");
    return {};
}

/// Opens the library, or says why that cannot be. Before 9.12 it writes the lse of plain tensors
/// head by head, whatever the strides that it is given.
std::string open_library() {
    constexpr size_t kOldest = 91200;
    void* const opened = dlopen("libcudnn.so.9", RTLD_NOW);
    if (opened == nullptr) return dlerror();
    const auto version = reinterpret_cast<size_t (*)()>(dlsym(opened, "cudnnGetVersion"));
    if (version == nullptr || version() < kOldest) {
        dlclose(opened);
        return "libcudnn.so.9 is older than 9.12";
    }
    fe::cudnn_dlhandle = opened;
    return "";
}

/// Row `i` of the first axis.
template <typename View>
void* row(const View& view, int64_t i) {
    const int64_t bytes = view.shape()[1] * view.shape()[2] * element_bytes(view.element());
    return static_cast<char*>(const_cast<void*>(view.data())) + i * bytes;
}

void clear(const Call& call, const Out<3>& to) {
    const int64_t bytes = element_count(to.shape()) * element_bytes(to.element());
    check(cudaMemsetAsync(to.data(), 0, static_cast<size_t>(bytes), call.stream()),
          "clearing memory");
}

}  // namespace

struct DenseAttentionCudnn::Library {
    cudnnHandle_t handle = nullptr;
    std::string failure;  // empty: it has started
    LruCache<Plan, kMostPlans> plans;

    Library() {
        failure = guarded([&]() -> std::string {
            if (fe::detail::create_handle(&handle) != CUDNN_STATUS_SUCCESS)
                return "it does not start";
            return "";
        });
    }
    ~Library() {
        guarded([&]() -> std::string {
            if (handle != nullptr) fe::detail::destroy_handle(handle);
            return "";
        });
    }
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;

    std::shared_ptr<Plan> plan_of(const Call& call, const Sizes& sizes) {
        return plans.get([&](const Plan& plan) { return plan.sizes == sizes; },
                         [&] {
                             require_host_copies(*call.owner);
                             // The kernels of the plan that goes may be running.
                             if (plans.is_full())
                                 check(cudaStreamSynchronize(call.stream()), "dense_attention");
                             return std::make_shared<Plan>(sizes, handle);
                         });
    }

    /// What is wrong; empty: it is queued. `pointers`: of the operands and outputs.
    std::string execute(const Call& call, const Plan& plan, Placement& at,
                        std::unordered_map<int64_t, void*> pointers) const {
        if (plan.sizes.ragged) at.add_to(pointers);
        auto workspace = call.scratch<char, 1>({plan.workspace});
        return guarded([&]() -> std::string {
            if (fe::detail::set_stream(handle, call.stream()) != CUDNN_STATUS_SUCCESS)
                return "it does not take the stream";
            fe::error_t error = plan.graph.execute(handle, pointers, workspace.data());
            return error.is_bad() ? error.get_message() : "";
        });
    }
};

DenseAttentionCudnn::DenseAttentionCudnn(bool unordered) : unordered_(unordered) {
    static const std::string failure = open_library();  // once for all threads
    why_not_ = failure;
}

DenseAttentionCudnn::~DenseAttentionCudnn() = default;

std::string DenseAttentionCudnn::version() const {
    if (fe::cudnn_dlhandle == nullptr) return "";
    return "cuDNN " + fe::detail::get_backend_version_string();
}

std::string DenseAttentionCudnn::gradient_name() const {
    if (unordered_) return version() + ", unordered";
    return pieces_ == 1 ? version() : concat(version(), ", in ", pieces_, " pieces");
}

std::shared_ptr<Plan> DenseAttentionCudnn::plan_of(const Call& call, const std::vector<Span>& spans,
                                                   Direction direction, Element element) {
    if (!library_) {
        require_host_copies(*call.owner);  // nor can it start there
        library_ = std::make_unique<Library>();
    }
    why_not_ = library_->failure;
    if (!why_not_.empty()) return nullptr;
    std::shared_ptr<Plan> plan =
        library_->plan_of(call, Sizes(call.problem, spans, direction, element));
    why_not_ = plan->refusal;
    return why_not_.empty() ? plan : nullptr;
}

bool DenseAttentionCudnn::run(const Call& call, const AttentionInput& in,
                              const AttentionOutput& to) {
    if (fe::cudnn_dlhandle == nullptr) return false;  // why_not_ is what the constructor found
    const Problem& p = call.problem;
    const std::vector<Span> spans = spans_of(p, call.layout->visible_host());
    why_not_ =
        (in.k.paged() ? in_pages() : takes(p, spans, in.q.element(), in.q, in.k, in.v, to.out))
            .why_not;
    if (!why_not_.empty()) return false;
    const std::shared_ptr<Plan> plan = plan_of(call, spans, Direction::attention, in.q.element());
    if (!plan) return false;
    const std::shared_ptr<Placement> at = plan->place(call, spans);
    auto found = call.scratch<int32_t, 1>({1});
    const In<3>& v = in.v;  // never in pages
    if (at->most_hidden > 0) find_non_finite(call, v, at->hidden, at->most_hidden, found.data());
    const Span first = plan->first(*at);
    why_not_ = library_->execute(call, *plan, *at,
                                 {{kQ, row(in.q, first.query)},
                                  {kK, row(in.k, first.key)},
                                  {kV, row(in.v, first.key)},
                                  {kOut, row(to.out, first.query)},
                                  {kLse, to.lse[first.query].data()}});
    if (!why_not_.empty()) {
        cudaGetLastError();  // of a launch that failed
        return false;
    }
    call.keep_for_graph(plan);
    call.keep_for_graph(at);
    if (at->most_hidden > 0) dense_attention_any(call, in, to, found.data());
    return true;
}

bool DenseAttentionCudnn::run_plan(const Call& call, const std::shared_ptr<Plan>& plan,
                                   const std::vector<Span>& spans, const AttentionInput& in,
                                   const AttentionSaved& saved, const AttentionGradient& to) {
    const std::shared_ptr<Placement> at = plan->place(call, spans);
    const Span first = plan->first(*at);
    why_not_ = library_->execute(call, *plan, *at,
                                 {{kQ, row(in.q, first.query)},
                                  {kK, row(in.k, first.key)},
                                  {kV, row(in.v, first.key)},
                                  {kOut, row(saved.out, first.query)},
                                  {kLse, const_cast<float*>(saved.lse[first.query].data())},
                                  {kDOut, row(saved.d_out, first.query)},
                                  {kDQ, row(to.d_q, first.query)},
                                  {kDK, row(to.d_k, first.key)},
                                  {kDV, row(to.d_v, first.key)}});
    if (!why_not_.empty()) {
        cudaGetLastError();  // of a launch that failed
        return false;
    }
    call.keep_for_graph(plan);
    call.keep_for_graph(at);
    return true;
}

bool DenseAttentionCudnn::run_pieces(const Call& call, int64_t most, const AttentionInput& in,
                                     const AttentionSaved& saved, const AttentionGradient& to) {
    const Problem& p = call.problem;
    const int64_t key_values = p.kv_heads * p.head_dim;
    struct Sum {
        Out<3> to;
        Tensor<uint16_t, 1> part;  // the bits of the operands' type
        Tensor<float, 1> sums;
    };
    const auto sum_of = [&](const Out<3>& result) {
        Sum sum{result, call.scratch<uint16_t, 1>({p.keys() * key_values}),
                call.scratch<float, 1>({p.keys() * key_values})};
        check(cudaMemsetAsync(sum.sums.data(), 0,
                              static_cast<size_t>(sum.sums.size()) * sizeof(float), call.stream()),
              "clearing memory");
        return sum;
    };
    Sum d_k = sum_of(to.d_k), d_v = sum_of(to.d_v);
    const auto part_of = [](Sum& sum) {
        return Out<3>(sum.part.data(), sum.to.shape(), sum.to.element(), Space::device);
    };
    pieces_ = 0;
    for (const QueryRange range : query_tiles(p, most)) {
        const Problem piece = p.with_queries(range);
        const Call some = call.with_queries(piece, range.begin);
        const std::vector<Span> spans = spans_of(piece, visible_keys(piece));
        const auto rows = [&](const auto& view) {
            auto part = view;
            return decltype(part)(row(view, range.begin),
                                  {piece.queries(), p.query_heads, p.head_dim}, view.element(),
                                  view.space());
        };
        const std::shared_ptr<Plan> plan =
            plan_of(some, spans, Direction::gradient, in.q.element());
        if (!plan || !run_plan(some, plan, spans, {rows(in.q), in.k, in.v},
                               {rows(saved.out), saved.lse.slice(range.begin, piece.queries()),
                                rows(saved.d_out)},
                               {rows(to.d_q), part_of(d_k), part_of(d_v)}))
            return false;
        for (const Span& span : spans)
            for (Sum* sum : {&d_k, &d_v})
                add_parts(call, sum->to.element(), sum->part.data() + span.key * key_values,
                          span.keys * key_values, sum->sums.data() + span.key * key_values);
        ++pieces_;
    }
    for (const Sum* sum : {&d_k, &d_v})
        round_sums(call, sum->to.element(), sum->sums.data(), sum->sums.size(), sum->to.data());
    return true;
}

bool DenseAttentionCudnn::run_gradient(const Call& call, const AttentionInput& in,
                                       const AttentionSaved& saved, const AttentionGradient& to) {
    if (fe::cudnn_dlhandle == nullptr) return false;  // why_not_ is what the constructor found
    const Problem& p = call.problem;
    const std::vector<Span> spans = spans_of(p, call.layout->visible_host());
    why_not_ = takes(p, spans, in.q.element(), in.q, in.k, in.v, saved.out, saved.d_out, to.d_q,
                     to.d_k, to.d_v)
                   .why_not;
    if (why_not_.empty() && p.head_dim > kMostGradientDim)
        why_not_ = above("the head dim", p.head_dim, kMostGradientDim).why_not;
    if (!why_not_.empty()) return false;
    const std::shared_ptr<Plan> plan =
        plan_of(call, spans, unordered_ ? Direction::unordered_gradient : Direction::gradient,
                in.q.element());
    if (!plan) return false;
    int64_t seen = 0;
    for (const Span& span : spans) seen += span.keys;
    if (seen < p.keys()) {  // keys that no query sees
        clear(call, to.d_k);
        clear(call, to.d_v);
    }
    pieces_ = 1;
    if (unordered_ || plan->workspace <= kMostWorkspace) {
        if (!run_plan(call, plan, spans, in, saved, to)) return false;
    } else {
        const int64_t each = plan->workspace / (plan->sizes.sequences * plan->sizes.queries);
        const auto most = static_cast<uint64_t>(std::max<int64_t>(1, kMostWorkspace / each));
        if (!run_pieces(call, static_cast<int64_t>(std::bit_floor(most)), in, saved, to))
            return false;
    }
    auto found = call.scratch<int32_t, 1>({1});
    find_non_finite(call, {to.d_q, to.d_k, to.d_v}, found.data());
    auto delta = call.scratch<float, 2>({p.queries(), p.query_heads});
    output_gradient_products(call, saved, delta.data(), to.d_sinks ? nullptr : found.data());
    dense_attention_grad_any(call, in, saved, to, delta.data(), found.data());
    sink_gradient(call, in.sinks, saved.lse.data(), delta.data(), to.d_sinks);
    return true;
}

}  // namespace msa::cuda
