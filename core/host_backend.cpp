// SPDX-License-Identifier: MIT
#include "core/host_backend.h"

#include <cstring>

#include "core/error.h"
#include "core/number/convert.h"
#include "core/reference/check_index_lse.h"
#include "core/reference/check_saved.h"

namespace msa {

void HostBackend::copy(void* to, Space to_space, const void* from, Space from_space,
                       int64_t bytes) {
    require(to_space == Space::host && from_space == Space::host, "backend ", name(),
            " copies host memory only");
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void HostBackend::check_saved(const Problem& p, const AttentionInput& in,
                              View<const int32_t, 3> ids, const AttentionSaved& saved) const {
    reference::check_saved(p, in, ids, saved);
}

void HostBackend::check_index_lse(const Problem& p, const IndexKlInput& in) const {
    reference::check_index_lse(p, in);
}

Support HostBackend::takes_elements(const Request& request) {
    const Element element = operand_element(request);
    const auto* const sparse = std::get_if<SparseAttentionRequest>(&request);
    const bool index = std::holds_alternative<IndexScoresRequest>(request) ||
                       std::holds_alternative<IndexSelectRequest>(request);
    const bool taken = element == Element::f32 || (sparse != nullptr && element == Element::e4m3) ||
                       (index && element == Element::int8);
    if (!taken)
        return Support::no(concat("it takes f32",
                                  sparse != nullptr ? " and e4m3"
                                  : index           ? " and int8"
                                                    : "",
                                  ", not ", to_string(element)));
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

FloatIndexInput::FloatIndexInput(const IndexInput& in) : floats_(in) {
    if (in.index_q.element() != Element::int8) return;
    q_ = Tensor<float, 3>(in.index_q.shape(), Fill::nothing);
    k_ = Tensor<float, 2>(in.index_k.shape(), Fill::nothing);
    decode(in.index_q.data(), Element::int8, {q_.data(), static_cast<size_t>(q_.size())});
    decode(in.index_k.data(), Element::int8, {k_.data(), static_cast<size_t>(k_.size())});
    floats_ = {q_, k_, in.scales};
}

}  // namespace msa
