// SPDX-License-Identifier: MIT
// Launchers of the kernels other than attention. Contracts are those of the operations of the same
// name in core/train/ops.h. Shapes are already checked.
#pragma once

#include "core/train/ops.h"
#include "gpu/runtime.h"

namespace msa::cuda {

using train::Sum;

// elementwise.cu
void add(cudaStream_t, In<1> x, float factor, Out<1> y, Sum);
void swiglu(cudaStream_t, In<2> gate, In<2> up, Out<2> y);
void swiglu_grad(cudaStream_t, In<2> gate, In<2> up, In<2> d_y, Out<2> d_gate, Out<2> d_up);
void rotate(cudaStream_t, Out<3> heads, const int32_t* positions, View<const float, 3> table,
            bool backward);
void repeat(cudaStream_t, In<2> one, Out<3> many);
void sum_heads(cudaStream_t, In<3> many, Out<2> one);

// norm.cu
void rms_norm(cudaStream_t, In<2> x, const float* w, Out<2> y);
/// Floats of `parts`, the scratch memory of rms_norm_grad. UnsupportedError if rows are too wide
/// for a thread block's memory.
int64_t norm_parts(int64_t rows, int64_t width);
void rms_norm_grad(cudaStream_t, In<2> x, const float* w, In<2> d_y, Out<2> d_x, float* d_w, Sum,
                   float* parts);

// rows.cu
/// Row i of to [m, width] = row rows[i] of from.
void copy_rows(cudaStream_t, In<2> from, View<const int32_t, 1> rows, Out<2> to);
/// Adds row i of from to row rows[i] of to.
void add_rows(cudaStream_t, In<2> from, View<const int32_t, 1> rows, Out<2> to);
/// Floats of `parts`, the scratch memory of embed_grad.
int64_t embed_parts(int64_t tokens, int64_t vocabulary, int64_t width);
void embed_grad(cudaStream_t, View<const int32_t, 1> tokens, In<2> d_x, View<float, 2> d_table,
                float* parts);
void merge_attention(cudaStream_t, In<3> part_out, const float* part_lse,
                     View<const int32_t, 1> rows, Out<3> out, float* lse);

// losses.cu
/// Doubles of `parts`, the scratch memory of total.
inline constexpr int64_t kTotalParts = 512;
/// sum [1] of f32 or f64 values.
void total(cudaStream_t, In<1> values, double* parts, double* sum);
void cross_entropy(cudaStream_t, Out<2> logits, const int32_t* targets, float* losses, float factor,
                   bool gradient);

// optimizer.cu
/// Doubles of `parts` per part of the list, the scratch memory of squared_norms.
inline constexpr int64_t kNormTiles = 64;
/// sums [count]: sums of squares of [starts[i], starts[i + 1]).
void squared_norms(cudaStream_t, const float* values, const int64_t* starts, int64_t count,
                   double* parts, double* sums);
void adamw(cudaStream_t, const AdamW&, int64_t step, double lr, double factor,
           View<float, 1> weights, const float* gradient, float* first, float* second);

/// A product of row-major matrices with float sums: to [m, n] = left right.
struct Product {
    In<2> left;   // [m, k], or its transpose
    In<2> right;  // [k, n], or its transpose
    bool left_transposed = false, right_transposed = false;
    Out<2> to;
    Sum sum = Sum::set;

    int64_t rows() const { return to.shape()[0]; }
    int64_t columns() const { return to.shape()[1]; }
    int64_t depth() const { return left.shape()[left_transposed ? 0 : 1]; }
};
// product_any.cu
void product_any(cudaStream_t, const Product&);

}  // namespace msa::cuda
