// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "core/error.h"

namespace msa::test {

/// The message of the InputError that the call throws; empty if it throws none.
template <typename Call>
std::string refusal(const Call& call) {
    try {
        call();
    } catch (const InputError& error) {
        return error.what();
    }
    return "";
}

}  // namespace msa::test
