// SPDX-License-Identifier: MIT
// The kernels tuned for Hopper (compute capability 9.0). Each returns false, having done nothing,
// where it does not fit the call: then the plain kernel answers. Operands bf16 (index_select: or
// e4m3), outputs of attention bf16; head and index dim 64 or 128; block size 64 or 128; k at most
// 32.
#pragma once

#include "core/backend.h"
#include "gpu/runtime.h"

namespace msa::cuda {

/// Any block size.
bool select_blocks_sm90(const Call&, const SelectionRule&, View<const float, 3> scores,
                        View<int32_t, 3> ids);
/// Hkv up to 64; positive index scale.
bool index_select_sm90(const Call&, const SelectionRule&, const IndexInput&, View<int32_t, 3> ids);
/// G up to 64, more only for few queries in LoopOrder::automatic; positive softmax scale.
bool sparse_attention_sm90(const Call&, const AttentionInput&, View<const int32_t, 3> ids,
                           const AttentionOutput&, LoopOrder);
/// G up to 256; positive softmax scale; mass alone.
bool block_mass_sm90(const Call&, In<3> q, In<3> k, const BlockMassOutput&);

}  // namespace msa::cuda
