// SPDX-License-Identifier: MIT
// Values of e4m3 as the operand that gpu/e4m3_layout.h describes. It reads and writes the
// values once, a small part of what attention to them reads.
#include "gpu/device/by_sizes.cuh"
#include "gpu/kernels/transpose_values.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 128;

/// A thread block per block of keys and group. Keys that are not there become 0.
template <int Dim, int BlockSize>
__global__ void __launch_bounds__(kThreads) transpose_values(TransposeValuesArgs args) {
    constexpr int kWords = Dim / 4;
    __shared__ uint32_t rows[BlockSize][kWords + 1];
    const SequenceBlock block = args.blocks[blockIdx.x];
    const int groups = static_cast<int>(gridDim.y), group = static_cast<int>(blockIdx.y);
    const auto* const from = static_cast<const uint32_t*>(args.values);
    for (int i = static_cast<int>(threadIdx.x); i < BlockSize * kWords; i += kThreads) {
        const int key = i / kWords, word = i % kWords;
        rows[key][word] =
            key < block.keys ? from[((block.key + key) * groups + group) * kWords + word] : 0;
    }
    __syncthreads();
    char* const to =
        args.to + (int64_t{blockIdx.x} * groups + group) * transposed_tile_bytes(Dim, BlockSize);
    for (int i = static_cast<int>(threadIdx.x); i < Dim * BlockSize / 16; i += kThreads) {
        const int channel = i % Dim, chunk = i / Dim;
        uint32_t word[4] = {};
#pragma unroll
        for (int place = 0; place < 16; ++place) {
            const auto* const row =
                reinterpret_cast<const unsigned char*>(rows[16 * chunk + key_at(place)]);
            word[place / 4] |= uint32_t{row[channel]} << place % 4 * 8;
        }
        *reinterpret_cast<uint4*>(to + swizzled_chunk(channel, chunk, BlockSize)) =
            make_uint4(word[0], word[1], word[2], word[3]);
    }
}

}  // namespace

cudaError_t launch_transpose_values(const TransposeValuesArgs& args, int head_dim, int block_size,
                                    int groups, cudaStream_t stream) {
    return by_sizes(head_dim, block_size, [&]<int Dim, int BlockSize>() {
        const dim3 grid(static_cast<unsigned>(args.block_count), static_cast<unsigned>(groups));
        transpose_values<Dim, BlockSize><<<grid, kThreads, 0, stream>>>(args);
        return cudaGetLastError();
    });
}

}  // namespace msa::cuda
