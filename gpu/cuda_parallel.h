// SPDX-License-Identifier: MIT
// core/parallel on several GPUs of one host, one thread per GPU: copies that overlap with kernels,
// and a decode step whose kernels write into each other's memory.
#pragma once

#include <memory>
#include <span>

#include "core/parallel/decode.h"
#include "core/parallel/peer_copies.h"

namespace msa::parallel {

/// Whether these GPUs are distinct and can read and write each other's memory.
Support cuda_ranks(std::span<const int64_t> devices);

/// Collective. Copies are peer copies on a separate stream, so kernels overlap with them. Ranks
/// wait for each other on the GPU. `backend` is a cuda backend that must outlive the result.
/// UnsupportedError if a rank's GPU cannot access another's memory.
std::unique_ptr<PeerCopies> make_cuda_peer_copies(const Group&, Backend& backend);

/// decode() on GPUs, in three kernels without the host in between. They score a rank's keys,
/// exchange the best blocks and pick the best of all, then exchange partial outputs and merge them
/// in rank order.
class CudaDecode {
public:
    virtual ~CudaDecode() = default;
    CudaDecode() = default;
    CudaDecode(const CudaDecode&) = delete;
    CudaDecode& operator=(const CudaDecode&) = delete;

    /// Collective: all ranks must queue the same steps, also in graphs. A rank that waits in vain
    /// for another fails after some seconds. ids [Nq, Hkv, k] of the whole sequence, out
    /// [Nq, Hq, dh] (type of q, of e4m3 bf16) and lse [Nq, Hq] have the same bits on all ranks. The
    /// first step waits for the GPU; later ones are asynchronous and may be captured. `settled`: no
    /// pending work in the stream writes the keys, queries or scales of `in`, except index_q, so
    /// they may be read early.
    virtual void run(const DecodeInput& in, View<int32_t, 3> ids, Out<3> out, View<float, 2> lse,
                     bool settled = false) = 0;
};

/// Collective. The tuned decode kernels need bf16, f16 or e4m3, compute capability 9.0, few queries
/// and no sinks. Moreover the last rank must have all newest forced blocks, and every rank enough
/// keys. Otherwise UnsupportedError with the reason.
std::unique_ptr<CudaDecode> make_cuda_decode(PeerCopies&, const SplitKeys&, const SelectionRule&);

}  // namespace msa::parallel
