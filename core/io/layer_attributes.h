// SPDX-License-Identifier: MIT
// The attributes of a layer group of the activations format (data/FORMAT.md).
#pragma once

#include "core/io/activations.h"
#include "core/io/h5.h"

namespace msa::io {

/// Reads all attributes of a layer's group except q_state and k_state into `layer`, whose sizes are
/// already set. Throws InputError for what FORMAT.md does not allow.
void read_attributes(hid_t group, const h5::Place& place, LayerInfo& layer);

}  // namespace msa::io
