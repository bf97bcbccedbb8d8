// SPDX-License-Identifier: MIT
#pragma once

#include "core/backend.h"

namespace msa::test {

/// The same question of operands in float: for backends that answer any element by the cpu's.
inline Request in_float(Request request) {
    std::visit(
        [](auto& of) {
            if constexpr (requires { of.element; }) of.element = Element::f32;
            if constexpr (requires { of.out; }) of.out = Element::f32;
        },
        request);
    return request;
}

}  // namespace msa::test
