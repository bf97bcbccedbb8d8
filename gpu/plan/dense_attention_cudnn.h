// SPDX-License-Identifier: MIT
// eq:softmax-attention and its gradient by cuDNN's graph API: the dense attention that MSA is
// compared with. The library, libcudnn.so.9 from 9.12 on, is opened at run time; without it, and in
// a build that found no headers (no_cudnn.cpp), the plain kernels answer.
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
    /// `unordered`: BackendOptions::unordered.
    explicit DenseAttentionCudnn(bool unordered);
    ~DenseAttentionCudnn();

    /// False where cuDNN cannot answer: why_not() says why, and the plain kernel must. It takes
    /// operands and outputs that are all bf16 or all f16, queries at consecutive positions that all
    /// see a key, and a positive scale, without a window or a soft cap; sinks are the caller's.
    /// Values behind a query's position that are not finite, which cuDNN would multiply by 0, are
    /// looked for on the device; where there are any, the plain kernel answers after it. A plan is
    /// made at the first call of a layout, which takes a while; the plans used last are kept.
    bool run(const Call&, const AttentionInput&, const AttentionOutput&);

    /// The same for the gradient, by cuDNN's deterministic algorithm unless sums may be unordered.
    /// The deterministic one keeps dS, two bytes for each query, head and key. Where that is more
    /// than kMostWorkspace, the queries go in pieces behind the keys that they see; d_k and d_v of
    /// a piece, in their type, are added up in float, piece after piece. Gradients that are not
    /// finite are looked for on the device; where there are any, the plain kernel answers after it:
    /// cuDNN multiplies masked probabilities, 0, with what may not be finite.
    bool run_gradient(const Call&, const AttentionInput&, const AttentionSaved&,
                      const AttentionGradient&);

    /// "cuDNN 9.13.1"; empty where there is none.
    std::string version() const;
    /// What answered the last gradient: the version, how sums go, and in how many pieces.
    std::string gradient_name() const;
    /// Of the last of these that returned false.
    const std::string& why_not() const { return why_not_; }

private:
    /// Bytes of a plan of the deterministic algorithm: 16 GiB of dS, and what stands beside them.
    static constexpr int64_t kMostWorkspace = int64_t{17} << 30;

    struct Library;
    /// Null where there is none; why_not_ says why.
    std::shared_ptr<Plan> plan_of(const Call&, const std::vector<Span>&, Direction, Element);
    /// The gradient's plan on the rows of `call`; false where that fails.
    bool run_plan(const Call&, const std::shared_ptr<Plan>&, const std::vector<Span>&,
                  const AttentionInput&, const AttentionSaved&, const AttentionGradient&);
    /// d_q, d_k and d_v in pieces of at most `piece` queries, none across sequences.
    bool run_pieces(const Call&, int64_t piece, const AttentionInput&, const AttentionSaved&,
                    const AttentionGradient&);

    std::unique_ptr<Library> library_;
    bool unordered_;
    int64_t pieces_ = 1;  // of the last gradient
    std::string why_not_;
};

}  // namespace msa::cuda
