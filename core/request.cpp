// SPDX-License-Identifier: MIT
#include "core/request.h"

#include <array>

namespace msa {

const char* operation_name(const Request& request) {
    constexpr std::array kNames{"dense_attention",       "dense_attention_grad", "index_scores",
                                "select_blocks",         "index_select",         "sparse_attention",
                                "sparse_attention_grad", "block_mass",           "index_kl"};
    static_assert(kNames.size() == std::variant_size_v<Request>);
    return kNames[request.index()];
}

Element operand_element(const Request& request) {
    return std::visit(
        [](const auto& asked) {
            if constexpr (requires { asked.element; }) return asked.element;
            return Element::f32;
        },
        request);
}

int64_t page_size(const Request& request) {
    return std::visit(
        [](const auto& asked) {
            if constexpr (requires { asked.page_size; }) return asked.page_size;
            return int64_t{0};
        },
        request);
}

LoopOrder loop_order(const Request& request) {
    return std::visit(
        [](const auto& asked) {
            if constexpr (requires { asked.order; }) return asked.order;
            return LoopOrder::automatic;
        },
        request);
}

const char* to_string(LoopOrder order) {
    switch (order) {
        case LoopOrder::automatic: return "automatic";
        case LoopOrder::q_outer: return "q_outer";
        case LoopOrder::tile_union: return "union";
        case LoopOrder::kv_outer: return "kv_outer";
    }
    return "?";
}

}  // namespace msa
