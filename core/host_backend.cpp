// SPDX-License-Identifier: MIT
#include "core/host_backend.h"

#include <cstring>

#include "core/error.h"

namespace msa {

void HostBackend::copy(void* to, Space to_space, const void* from, Space from_space,
                       int64_t bytes) {
    require(to_space == Space::host && from_space == Space::host, "backend ", name(),
            " copies host memory only");
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

Support HostBackend::takes_elements(const Request& request) {
    const Element element = operand_element(request);
    const auto* const sparse = std::get_if<SparseAttentionRequest>(&request);
    if (element != Element::f32 && (sparse == nullptr || element != Element::e4m3))
        return Support::no(concat("it takes f32", sparse != nullptr ? " and e4m3" : "", ", not ",
                                  to_string(element)));
    if (sparse != nullptr && sparse->out != Element::f32)
        return Support::no(concat("it gives f32, not ", to_string(sparse->out)));
    return {};
}

FloatOperands::FloatOperands(const Problem& p, const AttentionInput& in, int threads)
    : floats_(in) {
    if (in.q.element() != Element::e4m3) return;
    q_ = read_scaled(p, in.q.as<const e4m3>(), in.scales.q, false, threads);
    k_ = read_scaled(p, in.k.as<const e4m3>(), in.scales.k, true, threads);
    v_ = read_scaled(p, in.v.as<const e4m3>(), in.scales.v, true, threads);
    floats_ = {q_, k_, v_, in.sinks};
}

}  // namespace msa
