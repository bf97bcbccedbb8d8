// SPDX-License-Identifier: MIT
// Operands of one layer in a backend's memory. Synthetic values are functions of the seed and their
// position.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"
#include "experiments/bench/cases.h"

namespace msa::experiments::bench {

/// A tensor in a backend's memory whose element type is known only at run time.
template <int Rank>
class Stored {
public:
    Stored() = default;
    Stored(Backend& backend, Shape<Rank> shape, Element element)
        : shape_(shape),
          element_(element),
          space_(backend.space()),
          memory_(backend.allocate(bytes())) {}
    operator In<Rank>() const { return {memory_.get(), shape_, element_, space_}; }
    operator Out<Rank>() { return {memory_.get(), shape_, element_, space_}; }

    char* data() const { return static_cast<char*>(memory_.get()); }
    const Shape<Rank>& shape() const { return shape_; }
    Element element() const { return element_; }
    /// Of the whole, and of one index of the first axis.
    int64_t bytes() const { return element_count(shape_) * element_bytes(element_); }
    int64_t row_bytes() const { return bytes() / shape_[0]; }
    /// The part [first, first + count) of the first axis.
    In<Rank> slice(int64_t first, int64_t count) const {
        Shape<Rank> part = shape_;
        part[0] = count;
        return {data() + first * row_bytes(), part, element_, space_};
    }

private:
    Shape<Rank> shape_{};
    Element element_ = Element::f32;
    Space space_ = Space::host;
    std::shared_ptr<void> memory_;
};

/// Operands of index_select, of one element.
struct IndexOperands {
    Stored<3> q;
    Stored<2> k;
    Tensor<float, 2> q_scales, k_scales;  // of int8: of rows, and of blocks

    IndexInput input() const { return {q, k, {q_scales, k_scales, {}}}; }
    /// Of the queries [first, first + count).
    IndexInput input(int64_t first, int64_t count) const {
        IndexInput part = input();
        part.index_q = q.slice(first, count);
        if (part.scales) part.scales.q = part.scales.q.slice(first, count);
        return part;
    }
};

/// The keys of a layer once more, in pages of a pool in random order.
struct PagedKeys {
    int64_t page_size = 0, pages = 0;
    Tensor<int32_t, 2> table;      // [S, max_pages]
    Tensor<int32_t, 1> lengths;    // [S], where up_to_capacity() is there
    Stored<3> k, v;                // [pages * page_size, Hkv, dh]
    std::vector<Stored<2>> index;  // [pages * page_size, didx], of each element

    template <int Rank>
    Keys<Rank> of(const Stored<Rank>& rows) const {
        Shape<Rank + 1> pool{pages, page_size};
        std::copy(rows.shape().begin() + 1, rows.shape().end(), pool.begin() + 2);
        return {In<Rank + 1>{rows.data(), pool, rows.element(), table.view().space()},
                table.view()};
    }
};

/// One layer: operands and results of its stages. Those that the stages do not need are absent.
struct Layer {
    Stored<3> q, k, v, out;
    Tensor<float, 2> lse;
    Tensor<float, 2> q_scales, k_scales, v_scales;  // of e4m3 operands: per row, per block
    Stored<3> d_out, d_q, d_k, d_v;
    std::vector<IndexOperands> index;  // of each element
    std::vector<PagedKeys> paged;      // of each of BenchOptions::page_sizes
    Tensor<int32_t, 3> ids;
    Tensor<float, 2> index_lse, d_index_k;  // of index_kl, whose main_lse is `lse`
    Tensor<float, 3> d_index_q;

    AttentionInput attention() const { return {q, k, v, {}, {q_scales, k_scales, v_scales}}; }
    AttentionInput attention(const PagedKeys& in) const { return {q, in.of(in.k), in.of(in.v)}; }
    IndexInput index_input(const PagedKeys& in, size_t element) const {
        return {index[element].q, in.of(in.index[element])};
    }
    /// Those of this page size; null: the packed keys.
    const PagedKeys* pages(int64_t page_size) const {
        for (const PagedKeys& each : paged)
            if (each.page_size == page_size) return &each;
        return nullptr;
    }
    AttentionOutput result() { return {out, lse}; }
    AttentionSaved saved() const { return {out, lse.view(), d_out}; }
    AttentionGradient gradient() { return {d_q, d_k, d_v, {}}; }
};

/// The element of attention's output: the operands', but for e4m3 bf16, or f32 on the host.
Element output_element(const BenchOptions&);

/// The parts of a layer. The gradient needs attention; the index gradient needs attention and
/// index.
struct Parts {
    bool index = false, attention = false, gradient = false, index_gradient = false;
};

/// Bytes of a layer.
int64_t layer_bytes(const Case&, const BenchOptions&, Parts);
/// Allocates without filling. Throws MemoryError or std::bad_alloc.
Layer allocate_layer(Backend&, const Case&, const BenchOptions&, Parts);
/// Fills q, k, v as captured, or with noise of unit variance, which repeats after some megabytes.
/// e4m3 scales are 1 for captured operands, else random in [1/2, 1].
void fill_attention(Backend&, const Case&, Layer&, uint64_t seed);
/// Fills d_out with noise of unit variance, likewise.
void fill_gradient(Backend&, Layer&, uint64_t seed);
/// Fills the operands of index_select, with the same values in every element: as captured, else
/// noise for "random", else planted. int8 operands are quantised with scales.
void fill_index(Backend&, const Case&, Layer&, const std::string& selection, uint64_t seed);
/// Pages of all sequences, and their tables and pools, not yet filled.
int64_t pages_of(const Problem&, int64_t page_size);
PagedKeys allocate_pages(Backend&, const Case&, const BenchOptions&, Parts, int64_t page_size);
/// Copies the keys to the pages.
void fill_pages(Backend&, const Case&, Layer&, Parts);
/// Copies the operands to another layer.
void copy_operands(Backend&, const Layer& from, Layer& to, Parts);

/// Fills scores [Nq, 1, B] of a top-k case with noise.
Stored<3> make_scores(Backend&, const Case&, uint64_t seed);

}  // namespace msa::experiments::bench
