// SPDX-License-Identifier: MIT
// Heads of 96 or 192 channels, and of other multiples of 8, by the tuned kernels of the next width
// that these have: further channels are 0, in memory or as the TMA unit reads them. So are those of
// such an index on Hopper.
#pragma once

#include <memory>
#include <string>

#include "core/backend.h"
#include "core/error.h"
#include "gpu/runtime.h"

namespace msa::cuda {

/// The width with which tuned kernels take such a head: 64, 128 or 256; its own if none does.
constexpr int64_t kernel_head_dim(int64_t head_dim) {
    if (head_dim % 8 != 0 || head_dim < 64 || head_dim > 256) return head_dim;
    return head_dim == 64 ? 64 : head_dim <= 128 ? 128 : 256;
}
inline bool is_padded(const Problem& p) { return kernel_head_dim(p.head_dim) != p.head_dim; }

/// The problem with heads of kernel_head_dim(), which has the same softmax scale.
inline Problem kernel_heads(const Problem& asked) {
    Problem p = asked;
    if (!is_padded(asked)) return p;
    p.head_dim = kernel_head_dim(asked.head_dim);
    p.softmax_scale_override = asked.softmax_scale();
    return p;
}
inline Support not_kernel_head(int64_t head_dim) {
    return Support::no(
        concat("the head dim is ", head_dim, ", must be a multiple of 8 from 64 to 256"));
}
/// What answered_by() says of a kernel that ran a call.
inline std::string padding_of(const Problem& p) {
    return is_padded(p) ? concat(", heads padded to ", kernel_head_dim(p.head_dim), " channels")
                        : "";
}
inline std::string index_padding_of(const Problem& p) {
    const int64_t width = kernel_head_dim(p.index_dim);
    return width != p.index_dim ? concat(", index padded to ", width, " channels") : "";
}

/// The call on the problem, whose sequences and blocks are the same. `ahead`: as of Call.
inline Call with_problem(const Call& call, const Problem& p, const WriteSet& ahead) {
    return {p,           call.device, call.owner,    call.memory, call.visible,
            call.layout, ahead,       call.resources};
}

/// Marks [Nq, Hkv] of the (query, group) pairs whose lse [Nq, Hq] has a NaN; absent: none.
struct NanMarks {
    View<const float, 2> lse = {};
    View<int32_t, 1> marked = {};
};

/// Scratch memory for rows [N, heads, dh] as [N, heads, width], both dh and width multiples of 8.
class PaddedRows {
public:
    /// Not initialised.
    PaddedRows(const Call&, const Shape<3>& rows, Element, int64_t width);
    /// A copy, in whose further channels are zeros.
    PaddedRows(const Call&, const In<3>& rows, int64_t width);

    Out<3> view() const { return {memory_.get(), shape_, element_, Space::device}; }
    /// Copies the first channels to `rows`.
    void copy_to(const Call&, const Out<3>& rows, const NanMarks& = {}) const;

private:
    Shape<3> shape_;
    Element element_;
    std::shared_ptr<void> memory_;
};

}  // namespace msa::cuda
