// SPDX-License-Identifier: MIT
// Tensor maps: descriptors of operands for the TMA unit of compute capability 9.0.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "core/keys.h"
#include "core/tensor.h"

namespace msa::cuda {

/// A matrix with rows of `columns` elements, in boxes of `box_rows` x 128 bytes with the 128-byte
/// swizzle. Reads out of bounds give 0.
CUtensorMap tensor_map(const void* data, Element, int64_t rows, int64_t columns, int64_t box_rows);
/// The tokens of keys, packed or in pages, as rows: of a page stride / token stride rows each.
template <int Rank>
CUtensorMap tensor_map(const Keys<Rank>&, int64_t box_rows);
extern template CUtensorMap tensor_map(const Keys<2>&, int64_t);
extern template CUtensorMap tensor_map(const Keys<3>&, int64_t);
/// Planes of such rows, in boxes of `box_planes` x `box_rows` x 128 bytes.
CUtensorMap tensor_map(const void* data, Element, int64_t planes, int64_t rows, int64_t columns,
                       int64_t box_planes, int64_t box_rows);

}  // namespace msa::cuda
