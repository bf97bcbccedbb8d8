// SPDX-License-Identifier: MIT
// eq:softmax-attention and its gradient with cuDNN's graph API: the dense attention that MSA is
// compared with. libcudnn.so.9, version 9.12 or later, is opened at run time. Without it, and in a
// build without its headers (no_cudnn.cpp), the plain kernels answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "gpu/runtime.h"

namespace msa::cuda {

struct Plan;
struct Span;
/// What a plan of cuDNN computes.
enum class Direction : uint8_t { attention, gradient, unordered_gradient };

class DenseAttentionCudnn {
public:
    /// `unordered`: sums of the gradient may be in any order (backend "cuda-unordered").
    explicit DenseAttentionCudnn(bool unordered);
    ~DenseAttentionCudnn();

    /// Returns false if cuDNN cannot run the call; why_not() gives the reason, and the caller must
    /// use the plain kernel. cuDNN needs operands and outputs that are all bf16 or all f16, queries
    /// at consecutive positions that all see a key, and a positive scale, without window or soft
    /// cap; the caller adds sinks. cuDNN multiplies values after a query's position by 0. The
    /// device checks whether these are finite; if not, the plain kernel then computes the result
    /// again. The first call of a layout builds a plan, which takes a while; the plans used last
    /// are kept.
    bool run(const Call&, const AttentionInput&, const AttentionOutput&);

    /// The same for the gradient, with cuDNN's deterministic algorithm unless sums may be
    /// unordered. That algorithm stores dS, two bytes per query, head and key. If it needs more
    /// than kMostWorkspace, queries are processed in pieces with the keys that they see; d_k and
    /// d_v of the pieces, rounded to their type, are summed in float in order. cuDNN multiplies
    /// masked probabilities (0) by values that may not be finite. So the device checks whether the
    /// gradients are finite; if not, the plain kernel then computes them again. Heads have at most
    /// kMostGradientDim channels: with 256, cuDNN 9.14 left parts of d_k and d_v 0 or undefined.
    bool run_gradient(const Call&, const AttentionInput&, const AttentionSaved&,
                      const AttentionGradient&);

    /// "cuDNN 9.13.1"; empty without the library.
    std::string version() const;
    /// How the last gradient was computed: version, order of sums, and number of pieces.
    std::string gradient_name() const;
    /// The reason of the last call that returned false.
    const std::string& why_not() const { return why_not_; }

private:
    /// Workspace bound of the deterministic algorithm: 16 GiB of dS, and 1 GiB for the rest.
    static constexpr int64_t kMostWorkspace = int64_t{17} << 30;
    static constexpr int64_t kMostGradientDim = 128;

    struct Library;
    /// Null if there is none; why_not_ says why.
    std::shared_ptr<Plan> plan_of(const Call&, const std::vector<Span>&, Direction, Element);
    /// Runs the gradient's plan on the rows of `call`; false if that fails.
    bool run_plan(const Call&, const std::shared_ptr<Plan>&, const std::vector<Span>&,
                  const AttentionInput&, const AttentionSaved&, const AttentionGradient&);
    /// Computes d_q, d_k and d_v in pieces of at most `piece` queries, none across sequences.
    bool run_pieces(const Call&, int64_t piece, const AttentionInput&, const AttentionSaved&,
                    const AttentionGradient&);

    std::unique_ptr<Library> library_;
    bool unordered_;
    int64_t pieces_ = 1;  // of the last gradient
    std::string why_not_;
};

}  // namespace msa::cuda
