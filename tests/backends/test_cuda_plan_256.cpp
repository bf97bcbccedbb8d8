// SPDX-License-Identifier: MIT
// Which tuned kernels of the cuda backend take heads, or an index, of 256 channels, on any machine.
#include <gtest/gtest.h>

#include <string>

#include "gpu/plan/sparse_attention.h"
#include "gpu/plan/tuned.h"
#include "gpu/runtime.h"

namespace msa::test {
namespace {

const cuda::Device kWideHopper{0, 90, 132, 227 << 10}, kWideAmpere{0, 80, 108, 163 << 10},
    kWideAda{0, 89, 128, 99 << 10};  // of the least shared memory

Problem heads_of_256(int64_t block_size) {
    return square_problem(4096, 64, 4, 256, 128, block_size);
}

TEST(CudaPlan, HeadsOf256InSparseAttention) {
    const auto why_not = [](int64_t block_size, const cuda::Device& on,
                            LoopOrder order = LoopOrder::automatic,
                            Element element = Element::bf16) {
        const SparseAttentionRequest request{
            .element = element, .top_k = 16, .order = order, .out = Element::bf16};
        return cuda::takes_sparse_attention_tuned(on, heads_of_256(block_size), request).why_not;
    };
    EXPECT_EQ(why_not(128, kWideHopper), "");
    EXPECT_EQ(why_not(32, kWideHopper), "the block size is 32, must be 64 or 128");
    EXPECT_EQ(why_not(128, kWideHopper, LoopOrder::automatic, Element::e4m3),
              "the head dim is 256, must be 64 or 128");
    // Where a thread block has no room for a block's keys and values, all goes into unions.
    EXPECT_EQ(why_not(128, kWideAda), "");
    EXPECT_EQ(why_not(128, kWideAmpere, LoopOrder::kv_outer), "");
    EXPECT_EQ(why_not(64, kWideAda, LoopOrder::kv_outer), "");
    EXPECT_EQ(why_not(128, kWideAda, LoopOrder::kv_outer),
              "a thread block has 101376 bytes of shared memory, must be at least 131072");
    const auto sharing = [](int64_t block_size, const cuda::Device& device) {
        return cuda::SparsePlan(heads_of_256(block_size), 4, Element::bf16, LoopOrder::automatic,
                                device)
            .schedule.least_sharing;
    };
    EXPECT_EQ(sharing(128, kWideAmpere), 3);
    EXPECT_EQ(sharing(128, kWideAda), 1);
    EXPECT_EQ(sharing(64, kWideAda), 3);
}

TEST(CudaPlan, HeadsOf256InBlockMass) {
    const auto why_not = [](int64_t block_size, const cuda::Device& device) {
        return cuda::takes_block_mass_tuned(device, heads_of_256(block_size), {Element::bf16},
                                            false, true)
            .why_not;
    };
    EXPECT_EQ(why_not(128, kWideHopper), "");
    EXPECT_EQ(why_not(32, kWideHopper), "the block size is 32, must be 64 or 128");
    EXPECT_EQ(why_not(128, kWideAmpere),
              "it has no kernel in the instructions of compute capability 8.0");
}

TEST(CudaPlan, HeadsOf256InTheGradient) {
    const auto why_not = [](int64_t block_size, int64_t top_k, const cuda::Device& on,
                            int64_t kv_heads = 4) {
        Problem p = heads_of_256(block_size);
        p.kv_heads = kv_heads;
        const SparseAttentionGradRequest request{
            .element = Element::bf16, .top_k = top_k, .saved = Element::bf16};
        return cuda::takes_sparse_attention_grad_tuned(on, p, request).why_not;
    };
    EXPECT_EQ(why_not(64, 32, kWideHopper), "");
    EXPECT_EQ(why_not(128, 16, kWideHopper), "");  // two blocks of 64 for each of 128: 32 ids
    EXPECT_EQ(why_not(128, 17, kWideHopper), "k is 17, must be at most 16");
    EXPECT_EQ(why_not(128, 16, kWideAmpere), "");
    EXPECT_EQ(why_not(64, 16, kWideHopper, 1), "");
    EXPECT_EQ(why_not(64, 16, kWideAmpere, 1), "G is 64, must be at most 32");
    EXPECT_EQ(why_not(64, 16, kWideAda),
              "a thread block has 101376 bytes of shared memory, must be at least 151552");
    EXPECT_EQ(cuda::grad_problem(heads_of_256(128)).block_size, 64);
    EXPECT_EQ(cuda::grad_problem(heads_of_256(64)).block_size, 64);
    Problem narrow = heads_of_256(128);
    narrow.head_dim = 128;
    EXPECT_EQ(cuda::grad_problem(narrow).block_size, 128);
}

TEST(CudaPlan, IndexOf256InIndexSelect) {
    const auto why_not = [](int64_t index_dim, Element element, const cuda::Device& on,
                            int64_t page_size = 0) {
        const Problem p = square_problem(4096, 64, 4, 128, index_dim, 128);
        const IndexSelectRequest request{.element = element, .top_k = 32, .page_size = page_size};
        return (on.is_hopper() ? cuda::takes_index_select_sm90 : cuda::takes_index_select_sm80)(
                   on, p, request, true)
            .why_not;
    };
    for (const cuda::Device& device : {kWideHopper, kWideAmpere, kWideAda})
        for (const Element element : {Element::bf16, Element::f16, Element::int8})
            EXPECT_EQ(why_not(256, element, device), "");
    EXPECT_EQ(why_not(256, Element::e4m3, kWideHopper), "");
    EXPECT_EQ(why_not(256, Element::bf16, kWideHopper, 64), "");
    EXPECT_EQ(why_not(256, Element::f32, kWideHopper),
              "an operand or output is f32, must be bf16, f16, e4m3 or int8");
}

}  // namespace
}  // namespace msa::test
