// SPDX-License-Identifier: MIT
// Which tuned kernels of the cuda backend take heads as wider ones, on any machine.
#include <gtest/gtest.h>

#include <string>

#include "gpu/plan/padded_heads.h"
#include "gpu/plan/tuned.h"

namespace msa::test {
namespace {

const cuda::Device kPadsOnHopper{0, 90, 132, 227 << 10}, kPadsOnAmpere{0, 80, 108, 163 << 10};

Problem heads_of(int64_t head_dim, int64_t queries = 4096, int64_t block_size = 128) {
    Problem p = square_problem(0, 64, 4, head_dim, 128, block_size);
    p.batch = PackedBatch({0, queries}, {0, 4096});
    return p;
}

TEST(CudaPlan, HeadsArePaddedToTheNextWidth) {
    for (const auto& [dim, width] : {std::pair{64, 64},
                                     {72, 128},
                                     {96, 128},
                                     {128, 128},
                                     {136, 256},
                                     {192, 256},
                                     {256, 256},
                                     {56, 56},
                                     {100, 100},
                                     {264, 264}})
        EXPECT_EQ(cuda::kernel_head_dim(dim), width);
    const Problem p = heads_of(96), wide = cuda::kernel_heads(p);
    EXPECT_EQ(wide.head_dim, 128);
    EXPECT_EQ(wide.softmax_scale(), p.softmax_scale());
    EXPECT_EQ(cuda::padding_of(p), ", heads padded to 128 channels");
    EXPECT_EQ(cuda::padding_of(wide), "");
    EXPECT_FALSE(cuda::kernel_heads(heads_of(128)).softmax_scale_override.has_value());
}

TEST(CudaPlan, PaddedHeadsInSparseAttention) {
    const auto why_not = [](const Problem& p, const cuda::Device& on,
                            LoopOrder order = LoopOrder::automatic) {
        const SparseAttentionRequest request{
            .element = Element::bf16, .top_k = 16, .order = order, .out = Element::bf16};
        return cuda::takes_sparse_attention_tuned(on, p, request).why_not;
    };
    for (const int64_t dim : {72, 96, 192, 248}) {
        EXPECT_EQ(why_not(heads_of(dim), kPadsOnHopper), "");
        EXPECT_EQ(why_not(heads_of(dim), kPadsOnAmpere), "");
        EXPECT_EQ(why_not(heads_of(dim, 1), kPadsOnHopper), "");
        EXPECT_EQ(why_not(heads_of(dim, 1), kPadsOnAmpere),
                  "all keys would be padded for few queries");
        EXPECT_EQ(why_not(heads_of(dim, 1), kPadsOnAmpere, LoopOrder::tile_union), "");
    }
    EXPECT_EQ(why_not(heads_of(96, 4096, 32), kPadsOnHopper), "");
    EXPECT_EQ(why_not(heads_of(192, 4096, 32), kPadsOnHopper),
              "the block size is 32, must be 64 or 128");
    EXPECT_EQ(why_not(heads_of(56), kPadsOnHopper),
              "the head dim is 56, must be a multiple of 8 from 64 to 256");
    EXPECT_EQ(why_not(heads_of(100), kPadsOnHopper),
              "the head dim is 100, must be a multiple of 8 from 64 to 256");
}

TEST(CudaPlan, PaddedHeadsInTheGradientAndBlockMass) {
    const auto why_not = [](int64_t head_dim, int64_t top_k) {
        const SparseAttentionGradRequest request{
            .element = Element::bf16, .top_k = top_k, .saved = Element::bf16};
        return cuda::takes_sparse_attention_grad_tuned(kPadsOnHopper, heads_of(head_dim), request)
            .why_not;
    };
    EXPECT_EQ(why_not(96, 32), "");
    EXPECT_EQ(why_not(192, 16), "");
    EXPECT_EQ(why_not(192, 17), "k is 17, must be at most 16");
    EXPECT_EQ(cuda::grad_problem(heads_of(96)).head_dim, 128);
    EXPECT_EQ(cuda::grad_problem(heads_of(96)).block_size, 128);
    EXPECT_EQ(cuda::grad_problem(heads_of(192)).block_size, 64);
    const auto mass = [](int64_t head_dim, const cuda::Device& on) {
        return cuda::takes_block_mass_tuned(on, heads_of(head_dim), {Element::bf16}, false, true)
            .why_not;
    };
    EXPECT_EQ(mass(192, kPadsOnHopper), "");
    EXPECT_EQ(mass(96, kPadsOnAmpere), "");
    EXPECT_EQ(mass(192, kPadsOnAmpere),
              "it has no kernel in the instructions of compute capability 8.0");
}

TEST(CudaPlan, PaddedIndexInIndexSelect) {
    const auto why_not = [](int64_t index_dim, Element element, const cuda::Device& on) {
        const Problem p = square_problem(4096, 64, 4, 128, index_dim, 128);
        const IndexSelectRequest request{.element = element, .top_k = 16};
        return (on.is_hopper() ? cuda::takes_index_select_sm90 : cuda::takes_index_select_sm80)(
                   on, p, request, true)
            .why_not;
    };
    for (const int64_t dim : {72, 96, 192, 248})
        EXPECT_EQ(why_not(dim, Element::bf16, kPadsOnHopper), "");
    for (const Element element : {Element::e4m3, Element::int8}) {
        EXPECT_EQ(why_not(80, element, kPadsOnHopper), "");
        EXPECT_EQ(why_not(72, element, kPadsOnHopper),
                  "the index dim is 72, must be a multiple of 16 from 64 to 256");
    }
    EXPECT_EQ(why_not(56, Element::bf16, kPadsOnHopper),
              "the index dim is 56, must be a multiple of 8 from 64 to 256");
    EXPECT_EQ(why_not(264, Element::bf16, kPadsOnHopper),
              "the index dim is 264, must be a multiple of 8 from 64 to 256");
    EXPECT_EQ(why_not(192, Element::bf16, kPadsOnAmpere),
              "the index dim is 192, must be 64, 128 or 256");
    Problem p = heads_of(128);
    EXPECT_EQ(cuda::index_padding_of(p), "");
    p.index_dim = 192;
    EXPECT_EQ(cuda::index_padding_of(p), ", index padded to 256 channels");
}

}  // namespace
}  // namespace msa::test
