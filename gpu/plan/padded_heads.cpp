// SPDX-License-Identifier: MIT
#include "gpu/plan/padded_heads.h"

#include "gpu/kernels/resize_rows.h"

namespace msa::cuda {
namespace {

constexpr int64_t kChunkBytes = 16;

void resize(const Call& call, const In<3>& from, const Out<3>& to, const NanMarks& nans) {
    const auto chunks = [](const In<3>& rows) {
        const int64_t bytes = rows.shape()[2] * element_bytes(rows.element());
        MSA_CHECK(bytes % kChunkBytes == 0);
        return static_cast<int>(bytes / kChunkBytes);
    };
    MSA_CHECK(from.element() == to.element() && from.shape()[0] == to.shape()[0] &&
              from.shape()[1] == to.shape()[1]);
    check(launch_resize_rows({.from = static_cast<const uint4*>(from.data()),
                              .to = static_cast<uint4*>(to.data()),
                              .rows = from.shape()[0] * from.shape()[1],
                              .from_chunks = chunks(from),
                              .to_chunks = chunks(to),
                              .lse = nans.lse.data(),
                              .heads = static_cast<int>(call.problem.group_size()),
                              .marked = nans.marked.data()},
                             call.stream()),
          "padding heads");
}

}  // namespace

PaddedRows::PaddedRows(const Call& call, const Shape<3>& rows, Element element, int64_t width)
    : shape_{rows[0], rows[1], width},
      element_(element),
      memory_(call.memory->take(element_count(shape_) * element_bytes(element))) {}

PaddedRows::PaddedRows(const Call& call, const In<3>& rows, int64_t width)
    : PaddedRows(call, rows.shape(), rows.element(), width) {
    resize(call, rows, view(), {});
}

void PaddedRows::copy_to(const Call& call, const Out<3>& rows, const NanMarks& nans) const {
    resize(call, view(), rows, nans);
}

}  // namespace msa::cuda
