// SPDX-License-Identifier: MIT
#include "gpu/cuda_backend.h"

#include <limits>
#include <string>
#include <utility>

#include "core/error.h"
#include "gpu/kernels/dense_attention_cudnn.h"
#include "gpu/kernels/fill_caches.h"
#include "gpu/kernels/kernels.h"
#include "gpu/layout.h"
#include "gpu/runtime.h"
#include "gpu/tuned_sm90.h"

namespace msa {
namespace cuda {
namespace {

constexpr int kOldestDevice = 80, kHopper = 90;  // compute capability, 10 major + minor

std::string version(int number) { return text(number / 1000, '.', number % 1000 / 10); }

/// Can anything run here at all?
Support usable() {
    int driver = 0, devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return Support::no("there is no NVIDIA driver");
    if (status == cudaErrorInsufficientDriver)
        return Support::no(text("the NVIDIA driver knows CUDA ", version(driver),
                                ", this build needs ", version(CUDART_VERSION)));
    if (status == cudaErrorNoDevice || devices == 0) return Support::no("there is no NVIDIA GPU");
    if (status != cudaSuccess) return Support::no(cudaGetErrorString(status));
    return {};
}

/// Compute capability, 10 major + minor, of device `ordinal`, which must be able to run the kernels
/// of this build.
int require_device(int ordinal) {
    int devices = 0, major = 0, minor = 0;
    check(cudaGetDeviceCount(&devices), "counting the devices");
    require(0 <= ordinal && ordinal < devices, "device is ", ordinal, ", must be from 0 to ",
            devices - 1);
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal),
          "asking for the compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal),
          "asking for the compute capability");
    const auto refuse = [&](const char* rule) {
        throw UnsupportedError(text("backend cuda cannot start on device ", ordinal,
                                    ": its compute capability is ", major, '.', minor, ", ", rule));
    };
    if (10 * major + minor < kOldestDevice) refuse("must be 8.0 or later");
    check(cudaSetDevice(ordinal), "choosing the device");
    if (!kernels_run_here()) refuse("this build has no kernels for it (CMAKE_CUDA_ARCHITECTURES)");
    return 10 * major + minor;
}

class CudaBackend final : public Backend {
public:
    explicit CudaBackend(int device) : device_(device) {
        hopper_ = require_device(device) == kHopper;
        stream_ = std::make_shared<Stream>();
        scratch_ = std::make_shared<Scratch>(stream_);
        // Freed memory stays with us, so that scratch memory costs nothing from the second call.
        cudaMemPool_t pool = nullptr;
        check(cudaDeviceGetDefaultMemPool(&pool, device), "asking for the memory pool");
        uint64_t keep = std::numeric_limits<uint64_t>::max();
        check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
              "setting up the memory pool");
    }

    std::string_view name() const override { return "cuda"; }
    std::string device() const override {
        cudaDeviceProp properties{};
        int driver = 0;
        check(cudaGetDeviceProperties(&properties, device_), "asking for the device's name");
        check(cudaDriverGetVersion(&driver), "asking for the driver's version");
        return text(properties.name, ", ", properties.multiProcessorCount, " SMs, CUDA ",
                    version(CUDART_VERSION), ", driver for CUDA ", version(driver),
                    cudnn_->version().empty() ? "" : ", ", cudnn_->version());
    }
    Space space() const override { return Space::device; }

    Support supports(const Problem&, const Request& request) const override {
        if (std::holds_alternative<DenseAttentionGradRequest>(request) ||
            std::holds_alternative<SparseAttentionGradRequest>(request))
            return Support::no("the gradient is not written yet");
        const bool scores = std::holds_alternative<IndexScoresRequest>(request) ||
                            std::holds_alternative<IndexSelectRequest>(request);
        const Element element = operand_element(request);
        if (element == Element::f32 || element == Element::bf16 ||
            (scores && element == Element::e4m3))
            return {};
        return Support::no(text("it takes f32", scores ? ", bf16 and e4m3" : " and bf16", ", not ",
                                to_string(element)));
    }

    std::shared_ptr<void> allocate(int64_t bytes) override {
        use_device();
        std::shared_ptr<void> memory = cuda::allocate(stream_, bytes);
        check(cudaMemsetAsync(memory.get(), 0, static_cast<size_t>(bytes), stream_->get()),
              "clearing memory");
        return memory;
    }
    void copy(void* to, Space, const void* from, Space, int64_t bytes) override {
        use_device();
        // The direction follows from the addresses. Host memory is free to change on return.
        check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                              stream_->get()),
              "copying");
        finish();
    }
    void finish() override { check(cudaStreamSynchronize(stream_->get()), "running"); }
    /// See cuda_cold_seconds. What the host does for the first calls is hidden behind the reading
    /// of zeros, some 80 us.
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
    std::function<void()> capture(const std::function<void()>& calls) override {
        use_device();
        calls();  // loads the kernels and prepares the layout, which a graph cannot
        finish();
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
            throw;
        }
        const auto [graph, status] = end();
        check(status, "capturing calls");
        cudaGraphExec_t made = nullptr;
        check(cudaGraphInstantiate(&made, graph.get(), 0), "making a graph");
        const std::shared_ptr<CUgraphExec_st> run(made, [device = device_](cudaGraphExec_t old) {
            cudaGraphExecDestroy(old);
            cudaDeviceGraphMemTrim(device);
        });
        return [run, device = device_, stream = stream_, memory = scratch_, layout = layout_,
                cudnn = cudnn_] {
            check(cudaSetDevice(device), "choosing the device");
            check(cudaGraphLaunch(run.get(), stream->get()), "launching a graph");
        };
    }

protected:
    // Which kernel answers: the tuned one where there is one that fits, or else the plain one.
    void do_dense_attention(const Problem& p, const AttentionInput& in,
                            const AttentionOutput& to) override {
        if (p.queries() == 0) return;
        const Call here = call(p, Written(to.out, to.lse));
        if (cudnn_->run(here, in, to)) return answered(cudnn_->version());
        dense_attention_any(here, in, to);
        answered("dense_attention_any; cuDNN: " + cudnn_->why_not());
    }
    void do_index_scores(const Problem& p, const IndexInput& in, View<float, 3> scores) override {
        index_scores_any(call(p), in, scores);
        answered("index_scores_any");
    }
    void do_select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                          View<int32_t, 3> ids) override {
        const Call here = call(p);
        if (hopper_ && select_blocks_sm90(here, rule, scores, ids))
            return answered("select_blocks_sm90");
        select_blocks_any(here, rule, scores, ids);
        answered("select_blocks_any");
    }
    void do_index_select(const Problem& p, const SelectionRule& rule, const IndexInput& in,
                         View<int32_t, 3> ids) override {
        const Call here = call(p, Written(ids));
        if (hopper_ && index_select_sm90(here, rule, in, ids)) return answered("index_select_sm90");
        index_select_any(here, rule, in, ids);
        answered("index_select_any");
    }
    void do_sparse_attention(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                             const AttentionOutput& to, LoopOrder order) override {
        const Call here = call(p, Written(to.out, to.lse));
        if (hopper_ && sparse_attention_sm90(here, in, ids, to, order))
            return answered("sparse_attention_sm90");
        const bool kv_outer = order == LoopOrder::kv_outer;
        (kv_outer ? sparse_attention_kv_outer_any : sparse_attention_q_outer_any)(here, in, ids,
                                                                                  to);
        answered(kv_outer ? "sparse_attention_kv_outer_any" : "sparse_attention_q_outer_any");
    }
    void do_block_mass(const Problem& p, In<3> q, In<3> k, const BlockMassOutput& to) override {
        const Call here = call(p);
        if (hopper_ && block_mass_sm90(here, q, k, to)) return answered("block_mass_sm90");
        block_mass_any(here, q, k, to);
        answered("block_mass_any");
    }
    void do_index_kl(const Problem& p, const IndexKlInput& in, const IndexKlOutput& to) override {
        index_kl_any(call(p), in.index, in.q, in.k, in.ids, to, in.teacher);
        answered("index_kl_any");
    }

private:
    void answered(std::string by) { answered_by_ = std::move(by); }
    void use_device() const { check(cudaSetDevice(device_), "choosing the device"); }

    /// `writes`: what a kernel of the next call may take as an operand. One that starts early sees
    /// it after its wait alone, even where no kernel here lets it start before the end.
    Call call(const Problem& p, Written writes = Written()) {
        use_device();
        if (!layout_ || !layout_->fits(p)) layout_ = std::make_shared<Layout>(p, stream_);
        scratch_->begin_call();
        if (p.queries() > 0) ahead_ = std::exchange(writes_, std::move(writes));
        return {p, stream_, scratch_.get(), layout_->visible(), layout_.get(), ahead_};
    }

    int device_;
    std::shared_ptr<Stream> stream_;
    std::shared_ptr<Scratch> scratch_;
    bool hopper_ = false;
    std::shared_ptr<const Layout> layout_;  // of the last call
    Written writes_, ahead_;                // of the last call and the one before
    std::shared_ptr<DenseAttentionCudnn> cudnn_ = std::make_shared<DenseAttentionCudnn>();
    std::string answered_by_;
    std::shared_ptr<void> zeros_;  // of cold_seconds
};

}  // namespace
}  // namespace cuda

std::optional<double> cuda_cold_seconds(Backend& backend, const std::function<void()>& work) {
    auto* const cuda_backend = dynamic_cast<cuda::CudaBackend*>(&backend);
    if (cuda_backend == nullptr) return std::nullopt;
    return cuda_backend->cold_seconds(work);
}

void register_cuda_backend() {
    register_backend({"cuda", cuda::usable()}, [](const BackendOptions& options) {
        return std::make_unique<cuda::CudaBackend>(options.device);
    });
}

}  // namespace msa
