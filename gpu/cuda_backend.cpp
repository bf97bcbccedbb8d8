// SPDX-License-Identifier: MIT
#include "gpu/cuda_backend.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/threads.h"
#include "gpu/half_types.h"
#include "gpu/kernels/fill_caches.h"
#include "gpu/kernels/kernels.h"
#include "gpu/layout.h"
#include "gpu/plan/dense_attention_cudnn.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/padded_heads.h"
#include "gpu/plan/tuned.h"
#include "gpu/shared_stream.h"
#include "gpu/start.h"

namespace msa {
namespace cuda {
namespace {

/// Pinned or managed host memory, which a copy reads after it has returned.
bool is_read_later(const void* host) {
    cudaPointerAttributes attributes{};
    check(cudaPointerGetAttributes(&attributes, host), "asking for the kind of host memory");
    return attributes.type != cudaMemoryTypeUnregistered;
}

class CudaBackend final : public Backend {
public:
    CudaBackend(const CudaOptions& options, const Variant& variant)
        : variant_(variant),
          threads_(threads_or_all(options.threads)),
          device_(require_device(options.device, variant)),
          stream_(std::make_shared<Stream>(options)),
          scratch_(std::make_shared<Scratch>(stream_)),
          layouts_(stream_),
          cudnn_(std::make_shared<DenseAttentionCudnn>(variant.unordered)) {
        // Somebody else's kernels may be ahead on a borrowed stream.
        foreign_.add_everything();
    }

    CudaBackend(const CudaBackend&) = delete;
    CudaBackend& operator=(const CudaBackend&) = delete;
    /// Tensors may outlive their backend: what it was still to write is there then.
    ~CudaBackend() override { cudaStreamSynchronize(stream_->get()); }

    std::string_view name() const override { return variant_.name; }
    std::string device() const override {
        cudaDeviceProp properties{};
        int driver = 0;
        check(cudaGetDeviceProperties(&properties, device_.ordinal),
              "asking for the device's name");
        check(cudaDriverGetVersion(&driver), "asking for the driver's version");
        return concat(properties.name, ", ", properties.multiProcessorCount, " SMs, CUDA ",
                      version(CUDART_VERSION), ", driver for CUDA ", version(driver),
                      cudnn_->version().empty() ? "" : ", ", cudnn_->version());
    }
    Space space() const override { return Space::device; }
    int host_threads() const override { return threads_; }

    Support supports(const Problem& p, const Request& request) const override {
        const bool index = std::holds_alternative<IndexScoresRequest>(request) ||
                           std::holds_alternative<IndexSelectRequest>(request);
        const bool narrow = index || std::holds_alternative<SparseAttentionRequest>(request);
        const Element element = operand_element(request);
        if (element != Element::f32 && !is_half(element) && !(narrow && element == Element::e4m3) &&
            !(index && element == Element::int8))
            return Support::no(concat("it takes f32, f16",
                                      index    ? ", bf16, e4m3 and int8"
                                      : narrow ? ", bf16 and e4m3"
                                               : " and bf16",
                                      ", not ", to_string(element)));
        const auto* grad = std::get_if<SparseAttentionGradRequest>(&request);
        if (grad != nullptr && is_tuned_alone(*grad))
            return takes_sparse_attention_grad_tuned(device_, p, *grad);
        const auto* sparse = std::get_if<SparseAttentionRequest>(&request);
        if (sparse != nullptr && sparse->order == LoopOrder::tile_union)
            return takes_sparse_attention_tuned(device_, p, *sparse);
        return {};
    }

    std::shared_ptr<void> allocate(int64_t bytes) override {
        use_device();
        std::shared_ptr<void> memory = cuda::allocate(stream_, bytes);
        check(cudaMemsetAsync(memory.get(), 0, static_cast<size_t>(bytes), stream_->get()),
              "clearing memory");
        written_.add(memory.get(), bytes);
        return memory;
    }
    void copy(void* to, Space to_space, const void* from, Space from_space,
              int64_t bytes) override {
        use_device();
        if (bytes == 0) return;
        const bool to_host = to_space == Space::host, from_host = from_space == Space::host;
        if (to_host && from_host) {
            std::memcpy(to, from, static_cast<size_t>(bytes));
            return;
        }
        if (to_host || from_host) require_host_copies(*stream_);
        check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                              stream_->get()),
              "copying");
        if (!to_host) written_.add(to, bytes);
        // The driver has its own copy of pageable memory when it returns, of pinned memory none.
        if (to_host || (from_host && is_read_later(from))) finish();
    }
    SharedStream share() {
        shared_ = true;
        return {device_, stream_};
    }
    void finish() override { check(cudaStreamSynchronize(stream_->get()), "running"); }
    /// See cuda_cold_seconds. Reading zeros, some 80 us, hides what the host does for first calls.
    double cold_seconds(const std::function<void()>& work) {
        constexpr int64_t kZeros = int64_t{1} << 28;
        use_device();
        if (!zeros_) zeros_ = allocate(kZeros);
        check(cuda::fill_caches(zeros_.get(), kZeros, stream_->get()), "filling the caches");
        const Event begin, end;
        begin.record(*stream_);
        work();
        end.record(*stream_);
        finish();
        return end.seconds_since(begin);
    }
    std::string answered_by() const override { return answered_by_; }
    std::function<void()> make_graph(const std::function<void()>& calls) override {
        use_device();
        calls();  // loads the kernels and prepares the layouts, which a graph cannot
        finish();
        GraphResources others = std::exchange(captured_, {});
        check(cudaStreamBeginCapture(stream_->get(), cudaStreamCaptureModeThreadLocal),
              "capturing calls");
        const auto end = [&] {
            cudaGraph_t graph = nullptr;
            const cudaError_t status = cudaStreamEndCapture(stream_->get(), &graph);
            const auto destroy = [](cudaGraph_t old) {  // an invalid capture gives none
                if (old != nullptr) cudaGraphDestroy(old);
            };
            return std::pair(std::shared_ptr<CUgraph_st>(graph, destroy), status);
        };
        try {
            calls();
        } catch (...) {
            end();
            cudaGetLastError();
            captured_ = std::move(others);
            throw;
        }
        const auto [graph, status] = end();
        GraphResources resources = std::exchange(captured_, std::move(others));
        check(status, "capturing calls");
        cudaGraphExec_t made = nullptr;
        check(cudaGraphInstantiate(&made, graph.get(), 0), "making a graph");
        const std::shared_ptr<CUgraphExec_st> run(made,
                                                  [device = device_.ordinal](cudaGraphExec_t old) {
                                                      cudaGraphExecDestroy(old);
                                                      cudaDeviceGraphMemTrim(device);
                                                  });
        return [run, device = device_.ordinal, stream = stream_, memory = scratch_,
                resources = std::move(resources)] {
            check(cudaSetDevice(device), "choosing the device");
            check(cudaGraphLaunch(run.get(), stream->get()), "launching a graph");
        };
    }

protected:
    // The tuned kernel answers where it takes the call, else the plain one: see answered_by().
    void do_dense_attention(const Problem& p, const AttentionInput& in,
                            const AttentionOutput& to) override {
        if (p.queries() == 0) return;
        answer(p, WriteSet(to.out, to.lse), [&](const Call& call) -> std::string {
            const bool tuned = cudnn_->run(call, in, to);
            if (!tuned) dense_attention_any(CallNow(call, in.k), in, to);
            add_sinks_any(call, in.sinks, to.out, to.lse);
            return tuned ? cudnn_->version() : "dense_attention_any; cuDNN: " + cudnn_->why_not();
        });
    }
    void do_dense_attention_grad(const Problem& p, const AttentionInput& in,
                                 const AttentionSaved& saved,
                                 const AttentionGradient& to) override {
        answer(p, WriteSet(to.d_q, to.d_k, to.d_v, to.d_sinks),
               [&](const Call& call) -> std::string {
                   if (run_cudnn_gradient(call, in, saved, to)) return cudnn_->gradient_name();
                   auto delta = call.scratch<float, 2>({p.queries(), p.query_heads});
                   output_gradient_products(call, saved, delta.data());
                   dense_attention_grad_any(call, in, saved, to, delta.data());
                   sink_gradient(call, in.sinks, saved.lse.data(), delta.data(), to.d_sinks);
                   return "dense_attention_grad_any; cuDNN: " + cudnn_->why_not();
               });
    }
    void do_index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) override {
        answer(p, WriteSet(scores), [&](const Call& call) -> std::string {
            index_scores_any(CallNow(call, in.index_k), call.layout, in, scores);
            return "index_scores_any";
        });
    }
    void do_select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                          View<int32_t, 3> ids) override {
        answer(p, WriteSet(ids), [&](const Call& call) {
            const Support tuned = takes_select_blocks_tuned({.top_k = rule.top_k});
            (tuned.yes ? select_blocks_tuned : select_blocks_any)(call, rule, scores, ids);
            return kernel_name("select_blocks", tuned);
        });
    }
    void do_index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids, View<float, 2> lse) override {
        answer(p, WriteSet(ids, lse), [&](const Call& call) {
            const Support tuned = takes_index_select_tuned(device_, p, rule, in);
            if (tuned.yes)
                index_select_tuned(call, rule, in, ids);
            else
                index_select_any(CallNow(call, in.index_k), rule, in, ids);
            index_lse(call, in, ids, lse);
            return kernel_name("index_select", tuned) + (tuned.yes ? index_padding_of(p) : "");
        });
    }
    void do_sparse_attention(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                             const AttentionOutput& to, LoopOrder order) override {
        const SparseAttentionRequest request{.element = in.q.element(),
                                             .top_k = ids.extent(2),
                                             .order = order,
                                             .out = to.out.element(),
                                             .page_size = in.k.page_size()};
        const Support tuned =
            takes_pages(takes_sparse_attention_tuned(device_, p, request,
                                                     are_aligned(in.q, in.k, in.v, to.out)),
                        in.scales, in.k, in.v);
        if (!tuned.yes && order == LoopOrder::tile_union)
            throw UnsupportedError(
                concat("backend cuda does not support sparse_attention in the order ",
                       to_string(order), " here: ", tuned.why_not));
        answer(p, WriteSet(to.out, to.lse), [&](const Call& call) -> std::string {
            const bool kv_outer = order == LoopOrder::kv_outer;
            if (tuned.yes)
                sparse_attention_tuned(call, in, ids, to, order);
            else
                (kv_outer ? sparse_attention_kv_outer_any : sparse_attention_q_outer_any)(
                    CallNow(call, in.k), in, ids, to);
            add_sinks_any(call, in.sinks, to.out, to.lse);
            if (tuned.yes) return kernel_name("sparse_attention", tuned) + padding_of(p);
            return kernel_name(kv_outer ? "sparse_attention_kv_outer" : "sparse_attention_q_outer",
                               tuned);
        });
    }
    void do_sparse_attention_grad(const Problem& p, const AttentionInput& in,
                                  View<const int32_t, 3> ids, const AttentionSaved& saved,
                                  const AttentionGradient& to, LoopOrder order) override {
        const SparseAttentionGradRequest request =
            sparse_attention_grad_request(in, ids, saved, order);
        const Support tuned = takes_sparse_attention_grad_tuned(
            device_, p, request,
            are_aligned(in.q, in.k, in.v, saved.out, saved.d_out, to.d_q, to.d_k, to.d_v));
        if (!tuned.yes && is_tuned_alone(request))
            throw UnsupportedError(
                concat("backend cuda does not support sparse_attention_grad in the order ",
                       to_string(order), " here: ", tuned.why_not));
        const Problem taken = tuned.yes ? grad_problem(p) : p;
        answer(taken, WriteSet(to.d_q, to.d_k, to.d_v, to.d_sinks), [&](const Call& call) {
            if (tuned.yes) {
                sparse_attention_grad_tuned(call, p, in, ids, saved, to);
            } else {
                auto delta = call.scratch<float, 2>({p.queries(), p.query_heads});
                output_gradient_products(call, saved, delta.data());
                sparse_attention_grad_any(call, in, ids, saved, to, delta.data());
                sink_gradient(call, in.sinks, saved.lse.data(), delta.data(), to.d_sinks);
            }
            return kernel_name("sparse_attention_grad", tuned) + (tuned.yes ? padding_of(p) : "");
        });
    }
    void do_block_mass(const Problem& p, const BlockMassInput& in,
                       const BlockMassOutput& to) override {
        answer(p, WriteSet(to.mass), [&](const Call& call) {
            const Support tuned = takes_block_mass_tuned(
                device_, p, {.element = in.q.element(), .page_size = in.k.page_size()},
                static_cast<bool>(to.max_logit), are_aligned(in.q, in.k),
                static_cast<bool>(in.sinks));
            (tuned.yes ? block_mass_tuned : block_mass_any)(CallNow(call, in.k), in, to);
            return kernel_name("block_mass", tuned) + (tuned.yes ? padding_of(p) : "");
        });
    }
    void do_append(const Problem& p, const In<3>& rows, const Keys<3>& to) override {
        answer(p, WriteSet(to), [&](const Call& call) { return append_rows(call, rows, to); });
    }
    void do_index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) override {
        answer(p, WriteSet(to.kl, to.d_index_q, to.d_index_k),
               [&](const Call& call) { return cuda::index_kl(call, in, to); });
    }

private:
    /// Orders of the gradient that the plain kernel, one query at a time, does not have.
    static bool is_tuned_alone(const SparseAttentionGradRequest& request) {
        return request.order == LoopOrder::tile_union || request.order == LoopOrder::kv_outer;
    }
    /// "block_mass_sm90", or "block_mass_any; block_mass_sm90: why not".
    std::string kernel_name(const std::string& stem, const Support& tuned) const {
        const std::string family = device_.is_hopper() ? "sm90" : "sm80";
        return stem + (tuned.yes ? "_" + family : "_any; " + family + ": " + tuned.why_not);
    }

    bool run_cudnn_gradient(const Call& call, const AttentionInput& in, const AttentionSaved& saved,
                            const AttentionGradient& to) {
        try {
            return cudnn_->run_gradient(call, in, saved, to);
        } catch (const MemoryError& refused) {
            if (variant_.unordered) throw;
            throw MemoryError(concat(refused.what(),
                                     "; dense_attention_grad sums in one order, for "
                                     "which it keeps dS: backend ",
                                     kUnorderedName, " asks for less"));
        }
    }

    void use_device() const { check(cudaSetDevice(device_.ordinal), "choosing the device"); }

    /// Runs `body`, one call of an operation, which returns what answered it. `writes`: memory that
    /// the kernels of the next call must not read before this one is done.
    template <typename Body>
    void answer(const Problem& p, WriteSet writes, Body body) {
        use_device();
        GraphResources* const resources = stream_->is_capturing() ? &captured_ : nullptr;
        const std::shared_ptr<const Layout> layout = layouts_.of(p);
        scratch_->begin_call();
        const Call call{p,
                        device_,
                        stream_,
                        scratch_.get(),
                        layout->visible(),
                        layout.get(),
                        stream_->is_own() && !shared_ ? written_ : foreign_,
                        resources};
        call.keep_for_graph(layout);
        try {
            answered_by_ = body(call);
        } catch (...) {
            written_.add(writes);  // some of its kernels may be in the stream, or none
            throw;
        }
        if (p.queries() > 0)
            written_ = std::move(writes);
        else
            written_.add(writes);
    }

    Variant variant_;
    int threads_;
    Device device_;
    std::shared_ptr<Stream> stream_;
    bool shared_ = false;  // with kernels of others
    std::shared_ptr<Scratch> scratch_;
    LayoutCache layouts_;
    WriteSet written_;         // by what was queued last
    WriteSet foreign_;         // everything
    GraphResources captured_;  // of a graph under way, or of graphs that others captured
    std::shared_ptr<DenseAttentionCudnn> cudnn_;
    std::string answered_by_;
    std::shared_ptr<void> zeros_;  // of cold_seconds
};

}  // namespace

SharedStream share_stream(Backend& backend) {
    auto* const cuda_backend = dynamic_cast<CudaBackend*>(&backend);
    require(cuda_backend != nullptr, "backend ", backend.name(), " is not a cuda backend");
    return cuda_backend->share();
}

}  // namespace cuda

std::optional<double> cuda_cold_seconds(Backend& backend, const std::function<void()>& work) {
    auto* const cuda_backend = dynamic_cast<cuda::CudaBackend*>(&backend);
    if (cuda_backend == nullptr) return std::nullopt;
    return cuda_backend->cold_seconds(work);
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options, const std::string& name) {
    require(static_cast<bool>(options.allocate) == static_cast<bool>(options.free),
            "only one of allocate and free is present, must be both or none");
    const auto* const found = std::ranges::find(cuda::kVariants, name, &cuda::Variant::name);
    require(found != std::end(cuda::kVariants), "backend is ", name, ", must be one of cuda's");
    if (const Support here = cuda::usable(); !here.yes)
        throw UnsupportedError("backend cuda cannot start: " + here.why_not);
    return std::make_unique<cuda::CudaBackend>(options, *found);
}

void register_cuda_backend() {
    for (const cuda::Variant& variant : cuda::kVariants)
        register_backend({variant.name, cuda::usable()}, [variant](const BackendOptions& options) {
            return make_cuda_backend({.device = options.device, .threads = options.threads},
                                     variant.name);
        });
}

}  // namespace msa
