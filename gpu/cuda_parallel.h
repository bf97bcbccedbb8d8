// SPDX-License-Identifier: MIT
// Ranks that are GPUs of one host, a thread for each: copies from one to another beside the
// kernels, and a decode step whose kernels write into each other's memory. See core/parallel.
#pragma once

#include <memory>
#include <span>

#include "core/parallel/decode.h"
#include "core/parallel/peer_copies.h"

namespace msa::parallel {

/// Can these GPUs read and write each other's memory, each another one?
Support cuda_ranks(std::span<const int64_t> devices);

/// Collective. Copies are peer copies on a stream of their own, so that kernels overlap with them;
/// ranks wait for each other on the GPU. `backend` is a cuda backend that lives longer.
/// UnsupportedError where a rank's GPU cannot reach another's memory.
std::unique_ptr<PeerCopies> make_cuda_peer_copies(const Group&, Backend& backend);

/// decode() on GPUs, in three kernels, none of which returns to the host: the keys of a rank are
/// scored, its best blocks are exchanged and the best of all picked, and partial outputs are
/// exchanged and joined in the order of the ranks.
class CudaDecode {
public:
    virtual ~CudaDecode() = default;
    CudaDecode() = default;
    CudaDecode(const CudaDecode&) = delete;
    CudaDecode& operator=(const CudaDecode&) = delete;

    /// Collective: all ranks must queue the same steps, in graphs too; a rank that waits for
    /// another in vain fails after some seconds. ids [Nq, Hkv, k] of the whole sequence, out
    /// [Nq, Hq, dh] like q and lse [Nq, Hq] are the same bits with all. The first step waits; later
    /// ones are asynchronous and may be captured. `settled`: nothing in the stream that is not
    /// done writes the keys or queries of `in`, but for index_q, so that they are read early.
    virtual void run(const DecodeInput& in, View<int32_t, 3> ids, Out<3> out, View<float, 2> lse,
                     bool settled = false) = 0;
};

/// Collective. UnsupportedError, with the reason, for what the tuned kernels of decoding do not
/// take: bf16 or f16, compute capability 9.0, few queries, no sinks; and where the blocks that are
/// forced as the newest are not all with the last rank, or a rank has too few keys.
std::unique_ptr<CudaDecode> make_cuda_decode(PeerCopies&, const SplitKeys&, const SelectionRule&);

}  // namespace msa::parallel
