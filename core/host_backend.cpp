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

void HostBackend::do_append(const Problem& p, const In<3>& rows, const Keys<3>& to) {
    const auto [page, token, head] = to.strides();
    const int64_t size = to.page_size(), heads = to.shape()[1], each = element_bytes(to.element());
    const int64_t width = to.shape()[2] * each;
    auto* const pool = static_cast<char*>(const_cast<void*>(to.data()));
    const auto* from = static_cast<const char*>(rows.data());
    const std::vector<int64_t> sequences = query_sequences(p);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const int64_t at = visible_keys(p)[static_cast<size_t>(i)].count - 1;
        for (int64_t h = 0; h < heads; ++h, from += width) {
            if (at < 0) continue;
            const int64_t first =
                to.page_table()(sequences[static_cast<size_t>(i)], at / size) * page;
            std::memcpy(pool + (first + at % size * token + h * head) * each, from,
                        static_cast<size_t>(width));
        }
    }
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

namespace {

/// Keys and their scales, packed: in place, or copies of those in pages.
template <typename T, int Rank>
struct PackedKeys {
    PackedKeys(const Problem& p, const Keys<Rank>& of, View<const float, 2> of_keys)
        : scales(of_keys) {
        if (!of.paged()) {
            keys = of.template as<const T>();
            return;
        }
        keys_made = packed<T>(p, of);
        keys = keys_made.view();
        if (of_keys.size() <= 1) return;
        scales_made = packed_scales(p, of, of_keys);
        scales = scales_made.view();
    }
    View<const T, Rank> keys;
    View<const float, 2> scales;
    Tensor<T, Rank> keys_made;
    Tensor<float, 2> scales_made;
};

}  // namespace

FloatOperands::FloatOperands(const Problem& p, const AttentionInput& in, int threads)
    : floats_(in) {
    if (in.q.element() != Element::e4m3) return;
    q_ = read_scaled(p, in.q.as<const e4m3>(), in.scales.q, false, threads);
    const PackedKeys<e4m3, 3> k(p, in.k, in.scales.k), v(p, in.v, in.scales.v);
    k_ = read_scaled(p, k.keys, k.scales, true, threads);
    v_ = read_scaled(p, v.keys, v.scales, true, threads);
    floats_ = {q_, k_, v_, in.sinks};
}

FloatIndexInput::FloatIndexInput(const Problem& p, const IndexInput& in) : floats_(in) {
    if (in.index_q.element() == Element::int8) {
        q_ = Tensor<float, 3>(in.index_q.shape(), Fill::nothing);
        decode(in.index_q.data(), Element::int8, {q_.data(), static_cast<size_t>(q_.size())});
        PackedKeys<Int8, 2> k(p, in.index_k, in.scales.k);
        k_ = Tensor<float, 2>(k.keys.shape(), Fill::nothing);
        decode(k.keys.data(), Element::int8, {k_.data(), static_cast<size_t>(k_.size())});
        floats_ = {q_, k_, {in.scales.q, k.scales, {}}};
        k_scales_ = std::move(k.scales_made);
    }
    rows_ = KeyTokens<float>(p, floats_.index_k);
}

}  // namespace msa
