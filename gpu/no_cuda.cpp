// SPDX-License-Identifier: MIT
// Stands for the backend in builds without a CUDA compiler.
#include "core/error.h"
#include "gpu/cuda_backend.h"
#include "gpu/cuda_parallel.h"
#include "gpu/train/cuda_ops.h"

namespace msa {
namespace {

constexpr const char* kReason = "this build has no CUDA (CMake option MSA_CUDA)";

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&, const std::string&) {
    throw UnsupportedError(concat("backend cuda cannot start: ", kReason));
}

void register_cuda_backend() {
    for (const char* name : {"cuda", "cuda-unordered", "cuda-sm80", "cuda-sm86"})
        register_backend({name, Support::no(kReason)},
                         [](const BackendOptions&) { return std::unique_ptr<Backend>(); });
}

std::optional<double> cuda_cold_seconds(Backend&, const std::function<void()>&) { return {}; }

std::unique_ptr<train::Ops> train::make_cuda_ops(std::unique_ptr<Backend>, Element) {
    throw UnsupportedError(concat("training on cuda cannot start: ", kReason));
}

Support train::cuda_workers() { return Support::no(kReason); }

Support parallel::cuda_ranks(std::span<const int64_t>) { return Support::no(kReason); }

std::unique_ptr<parallel::PeerCopies> parallel::make_cuda_peer_copies(const parallel::Group&,
                                                                      Backend&) {
    throw UnsupportedError(concat("ranks on cuda cannot start: ", kReason));
}

std::unique_ptr<parallel::CudaDecode> parallel::make_cuda_decode(PeerCopies&, const SplitKeys&,
                                                                 const SelectionRule&) {
    throw UnsupportedError(concat("ranks on cuda cannot start: ", kReason));
}

}  // namespace msa
