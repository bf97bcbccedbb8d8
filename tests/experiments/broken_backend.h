// SPDX-License-Identifier: MIT
#pragma once

#include <string>

namespace msa::test {

/// Registers the backend "broken": the cpu backend, which takes every element and has one thing
/// wrong. `what` is the operation or the result that is spoilt, or
///   memory   there is no room for a layer,
///   silence  sparse_attention in the kv_outer order writes nothing,
///   nothing  all is right.
/// It holds until the next call, for backends made before, too.
void register_broken_backend(const std::string& what);

}  // namespace msa::test
