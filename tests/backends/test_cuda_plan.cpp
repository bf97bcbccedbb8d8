// SPDX-License-Identifier: MIT
// How the tuned kernels of the cuda backend cut their work: arithmetic, on any machine.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/number/half.h"
#include "gpu/lru_cache.h"
#include "gpu/plan/sparse_attention.h"
#include "gpu/plan/sparse_attention_grad.h"
#include "gpu/plan/tuned.h"
#include "gpu/runtime.h"
#include "gpu/start.h"

namespace msa::test {
namespace {

using cuda::SparsePlan;
using cuda::SparseWorkspaceSize;

constexpr int kSms = 132;
const cuda::Device kHopper{0, 90, kSms};

Problem layer(int64_t tokens, int64_t query_heads, int64_t kv_heads) {
    return square_problem(tokens, query_heads, kv_heads, 128, 128, 128);
}

SparseWorkspaceSize size_of(const SparsePlan& plan) { return {plan.schedule, plan.chunks_at_once}; }

TEST(CudaPlan, WorkspacesStayWithinTheirBounds) {
    for (const auto& [query_heads, kv_heads] :
         {std::pair{64, 4}, {16, 16}, {32, 16}, {64, 16}, {64, 1}})
        for (int64_t top_k : {16, 32})
            for (LoopOrder order :
                 {LoopOrder::automatic, LoopOrder::tile_union, LoopOrder::kv_outer}) {
                const SparsePlan plan(layer(1 << 20, query_heads, kv_heads), top_k, Element::bf16,
                                      order, kHopper);
                ASSERT_FALSE(plan.decode);
                EXPECT_LE(size_of(plan).list_bytes(), cuda::kMostListBytes)
                    << query_heads << '/' << kv_heads << ", k " << top_k << ' ' << to_string(order);
                // Each slot has its log-sum beside its 128 channels, and a tile is taken whole.
                EXPECT_LE(size_of(plan).slot_bytes(128), cuda::kSparseSlotBytes / 64 * 66)
                    << query_heads << '/' << kv_heads << ", k " << top_k << ' ' << to_string(order);
            }
}

TEST(CudaPlan, WhatHasRoomIsNotCut) {
    // The paper's layer at 128K: unions in one chunk; slots of 8192 queries, 16 chunks a schedule.
    const SparsePlan unions(layer(1 << 17, 64, 4), 16, Element::bf16, LoopOrder::tile_union,
                            kHopper);
    EXPECT_EQ(unions.schedule.tile_queries, 8);
    EXPECT_EQ(unions.schedule.least_sharing, 1);
    EXPECT_EQ(unions.schedule.chunk_tiles, unions.tiles);
    EXPECT_EQ(size_of(unions).slot_bytes(128), 0);
    const SparsePlan automatic(layer(1 << 17, 64, 4), 16, Element::bf16, LoopOrder::automatic,
                               kHopper);
    EXPECT_EQ(automatic.schedule.least_sharing, 3);
    EXPECT_EQ(automatic.schedule.chunk_tiles, 1024);
    EXPECT_EQ(automatic.chunks_at_once, 16);
    // Steps of e4m3 are cheaper; and short sequences leave nothing to slots.
    const auto least = [](int64_t tokens, Element element) {
        return SparsePlan(layer(tokens, 64, 4), 16, element, LoopOrder::automatic, kHopper)
            .schedule.least_sharing;
    };
    EXPECT_EQ(least(1 << 17, Element::e4m3), 2);
    EXPECT_EQ(least(8192 + 1, Element::bf16), 3);
    EXPECT_EQ(least(8192, Element::bf16), 1);
    const SparsePlan kv_outer(layer(1 << 17, 64, 4), 16, Element::bf16, LoopOrder::kv_outer,
                              kHopper);
    EXPECT_EQ(kv_outer.schedule.least_sharing, 9);
}

TEST(CudaPlan, FewQueriesAreDecodedInTheAutomaticOrderAlone) {
    Problem p = layer(0, 64, 4);
    p.batch = PackedBatch({0, 1}, {0, 1 << 20});
    EXPECT_TRUE(SparsePlan(p, 16, Element::bf16, LoopOrder::automatic, kHopper).decode);
    EXPECT_FALSE(SparsePlan(p, 16, Element::bf16, LoopOrder::tile_union, kHopper).decode);
    EXPECT_FALSE(
        SparsePlan(layer(4096, 64, 4), 16, Element::bf16, LoopOrder::automatic, kHopper).decode);
}

TEST(CudaPlan, PredicatesSayWhy) {
    const cuda::Device hopper{0, 90, kSms}, older{0, 80, 108, 163 << 10};
    const Problem p = layer(4096, 64, 4);
    const SparseAttentionRequest request{.element = Element::bf16,
                                         .top_k = 16,
                                         .order = LoopOrder::tile_union,
                                         .out = Element::bf16};
    const auto why_not = [&](auto change, const Problem& of, const cuda::Device& on) {
        SparseAttentionRequest changed = request;
        change(changed);
        return cuda::takes_sparse_attention_tuned(on, of, changed).why_not;
    };
    const auto as_is = [](SparseAttentionRequest&) {};
    EXPECT_EQ(why_not(as_is, p, hopper), "");
    EXPECT_EQ(why_not(as_is, p, older), "");
    EXPECT_EQ(why_not([](auto& r) { r.order = LoopOrder::q_outer; }, p, hopper),
              "it has no kernel for one query at a time");
    EXPECT_EQ(why_not([](auto& r) { r.element = r.out = Element::f16; }, p, hopper), "");
    EXPECT_EQ(why_not([](auto& r) { r.out = Element::f32; }, p, hopper),
              "an operand or output is f32, must be bf16");
    EXPECT_EQ(why_not([](auto& r) { r.element = Element::f16; }, p, hopper),
              "an operand or output is bf16, must be f16");
    EXPECT_EQ(why_not([](auto& r) { r.element = Element::f32; }, p, hopper),
              "an operand or output is f32, must be bf16, f16 or e4m3");
    const auto e4m3 = [](auto& r) { r.element = Element::e4m3; };
    Problem fine = p;
    fine.block_size = 32;
    EXPECT_EQ(why_not(e4m3, p, hopper), "");
    EXPECT_EQ(why_not(as_is, fine, hopper), "");
    EXPECT_EQ(why_not(e4m3, fine, hopper), "");
    EXPECT_EQ(why_not([](auto& r) { r.top_k = 33; }, p, hopper), "k is 33, must be at most 32");
    EXPECT_EQ(why_not(as_is, layer(4096, 65, 1), hopper), "G is 65, must be at most 64");
    Problem narrow = p;
    narrow.head_dim = 96;
    EXPECT_EQ(why_not(as_is, narrow, hopper), "");
    EXPECT_EQ(why_not(e4m3, narrow, hopper), "the head dim is 96, must be 64 or 128");
    Problem small = p;
    small.block_size = 16;
    EXPECT_EQ(why_not(as_is, small, hopper), "the block size is 16, must be 32, 64 or 128");
    small.block_size = 32;
    EXPECT_EQ(why_not(as_is, small, hopper), "");
    EXPECT_EQ(
        cuda::takes_index_select_sm90(hopper, p, {.element = Element::bf16, .top_k = 16}, false)
            .why_not,
        "operands and outputs must begin at multiples of 16 bytes");
    EXPECT_EQ(cuda::takes_block_mass_tuned(hopper, p, {Element::bf16}, true, true).why_not,
              "max_logit is asked for");
    EXPECT_EQ(cuda::takes_block_mass_tuned(hopper, p, {Element::bf16}, false, true, true).why_not,
              "there are sinks");
    Problem own = p;
    own.softcap = 50.0;
    EXPECT_EQ(why_not(as_is, own, hopper), "the soft cap is 50, must be absent");
    own.window = 512;
    EXPECT_EQ(why_not(as_is, own, hopper), "the window is 512, must be absent");
    EXPECT_EQ(cuda::takes_block_mass_tuned(hopper, own, {Element::bf16}, false, true).why_not,
              "the window is 512, must be absent");
    EXPECT_EQ(cuda::takes_select_blocks_tuned({.top_k = 40}).why_not,
              "k is 40, must be at most 32");
}

TEST(CudaPlan, ChipsThatNobodyTestedAreNamed) {
    EXPECT_EQ(cuda::never_run_on(90), "");
    EXPECT_EQ(cuda::never_run_on(120),
              "the kernels of backend cuda have never run on compute capability 12.0; "
              "gpu/check.sh tests them");
}

TEST(CudaPlan, E4m3NeedsHopperOrCodeForAda) {
    const cuda::Device older{.capability = 80, .shared_bytes = 163 << 10, .compiled_for = 80};
    cuda::Device ada{.capability = 89, .shared_bytes = 99 << 10, .compiled_for = 89};
    Problem p = layer(4096, 64, 4);
    const auto of_attention = [&](const cuda::Device& device) {
        return cuda::takes_sparse_attention_tuned(
                   device, p, {.element = Element::e4m3, .top_k = 16, .out = Element::bf16})
            .why_not;
    };
    const auto why_not = [&](const cuda::Device& device, Element element) {
        return cuda::takes_index_select_sm80(device, p, {.element = element, .top_k = 16}, true)
            .why_not;
    };
    const std::string compiled =
        "its kernels were compiled for compute capability 8.0, e4m3 needs 8.9 or later";
    EXPECT_EQ(of_attention(older), compiled);
    EXPECT_EQ(of_attention(ada), "");
    EXPECT_EQ(why_not(older, Element::e4m3), compiled);
    EXPECT_EQ(why_not(ada, Element::e4m3), "");
    EXPECT_EQ(why_not(older, Element::int8), "");
    EXPECT_EQ(why_not(older, Element::f32),
              "an operand or output is f32, must be bf16, f16, e4m3 or int8");
    ada.compiled_for = 80;  // whose code runs there
    EXPECT_EQ(why_not(ada, Element::e4m3), compiled);
    EXPECT_EQ(of_attention(ada), compiled);
    ada.compiled_for = 89;
    p.block_size = 32;
    EXPECT_EQ(of_attention(ada), "the block size is 32, must be 64 or 128");
}

TEST(CudaPlan, SelectionAndMassTakeEitherHalfTypeAndSmallBlocks) {
    const cuda::Device hopper{0, 90, kSms};
    Problem p = layer(4096, 64, 4);
    p.block_size = 32;
    const auto why_not = [&](Element element) {
        return std::pair(
            cuda::takes_index_select_sm90(hopper, p, {.element = element, .top_k = 16}, true)
                .why_not,
            cuda::takes_block_mass_tuned(hopper, p, {element}, false, true).why_not);
    };
    for (const Element element : {Element::bf16, Element::f16})
        EXPECT_EQ(why_not(element), (std::pair<std::string, std::string>()));
    EXPECT_EQ(why_not(Element::f32).first,
              "an operand or output is f32, must be bf16, f16, e4m3 or int8");
    EXPECT_EQ(why_not(Element::f32).second, "an operand or output is f32, must be bf16 or f16");
}

TEST(CudaPlan, ChunksOfTheGradientAreThoseMeasured) {
    const auto chunk_queries = [](const Problem& p, int64_t top_k) {
        return cuda::SparseGradPlan(p, top_k).sizes.chunk_tiles * cuda::kGradTileQueries;
    };
    EXPECT_EQ(chunk_queries(layer(1 << 17, 64, 4), 16), 16384);
    EXPECT_EQ(chunk_queries(layer(1 << 15, 64, 4), 16), 8192);
    EXPECT_EQ(chunk_queries(layer(1 << 13, 64, 4), 16), 4096);
    EXPECT_EQ(chunk_queries(layer(1000, 64, 4), 16), 1024);             // whole tiles
    EXPECT_EQ(chunk_queries(layer(1 << 17, 64, 4), 32), 8192);          // slots fit
    EXPECT_EQ(chunk_queries(layer(1 << 17, 1 << 14, 1 << 8), 32), 64);  // a tile at least
    const auto narrow = [](int64_t tokens) { return square_problem(tokens, 16, 4, 64, 64, 64); };
    EXPECT_EQ(chunk_queries(narrow(1 << 17), 16), 32768);
    EXPECT_EQ(chunk_queries(narrow(1 << 15), 16), 32768);
    EXPECT_EQ(chunk_queries(narrow(10'000), 16), 10'048);
    EXPECT_EQ(cuda::SparseGradPlan(narrow(1 << 15), 16).sizes.slot_buffers(), 1);
    const cuda::SparseGradPlan plan(layer(1 << 17, 64, 4), 16);
    EXPECT_EQ(plan.sizes.step_queries, 4);
    EXPECT_EQ(plan.sizes.slot_bytes(), cuda::kGradSlotBytes);
    EXPECT_EQ(plan.sizes.chunks(), 8);
    EXPECT_EQ(plan.sizes.batch_chunks, 8);
}

TEST(CudaPlan, WorkItemsOfTheGradientHaveAboutAsManySteps) {
    const auto item_uses = [](int64_t tokens, int64_t query_heads, int64_t kv_heads) {
        return cuda::SparseGradPlan(layer(tokens, query_heads, kv_heads), 16).sizes.item_uses;
    };
    for (int64_t tokens : {1 << 13, 1 << 15, 1 << 17}) EXPECT_EQ(item_uses(tokens, 64, 4), 256);
    // Steps of four times as many queries: as many items as before in a larger chunk.
    EXPECT_EQ(item_uses(1 << 15, 16, 4), 256);
    EXPECT_EQ(item_uses(1 << 17, 16, 4), 512);
    const Problem narrow = square_problem(1 << 15, 16, 4, 64, 64, 64);
    EXPECT_EQ(cuda::SparseGradPlan(narrow, 16).sizes.item_uses, 1024);
    EXPECT_EQ(item_uses(1 << 17, 64, 1), 256);  // of 256 steps
    EXPECT_EQ(item_uses(1 << 17, 8, 8), 1024);  // steps take 16 queries at most
    EXPECT_EQ(item_uses(1000, 16, 4), 256);
}

TEST(CudaPlan, ListsOfTheGradientStayWithinTheirBound) {
    for (const auto& [query_heads, kv_heads] :
         {std::pair{64, 4}, {16, 16}, {32, 16}, {64, 16}, {64, 1}})
        for (int64_t top_k : {16, 32})
            for (int64_t block_size : {32, 128}) {
                Problem p = layer(1 << 20, query_heads, kv_heads);
                p.block_size = block_size;
                const cuda::SparseGradPlan plan(p, top_k);
                EXPECT_LE(plan.list_bytes(), cuda::kMostListBytes)
                    << query_heads << '/' << kv_heads << ", blocks of " << block_size;
                EXPECT_LE(plan.sizes.slot_bytes(), cuda::kGradSlotBytes);
                EXPECT_GE(plan.sizes.batch_chunks, 1);
                EXPECT_GE(plan.sizes.chunk_tiles, 1);
            }
}

TEST(CudaPlan, TheGradientsPredicateSaysWhy) {
    const cuda::Device hopper{0, 90, kSms}, older{0, 80, 108, 163 << 10}, ada{0, 89, 128, 99 << 10};
    const auto why_not = [](const cuda::Device& device, const Problem& p, const auto& change,
                            bool aligned = true) {
        SparseAttentionGradRequest request{.element = Element::bf16,
                                           .top_k = 16,
                                           .order = LoopOrder::automatic,
                                           .saved = Element::bf16};
        change(request);
        return cuda::takes_sparse_attention_grad_tuned(device, p, request, aligned).why_not;
    };
    const auto as_is = [](auto&) {};
    const Problem p = layer(4096, 64, 4);
    EXPECT_EQ(why_not(hopper, p, as_is), "");
    EXPECT_EQ(why_not(hopper, p, [](auto& r) { r.order = LoopOrder::kv_outer; }), "");
    EXPECT_EQ(why_not(older, p, as_is), "");
    EXPECT_EQ(why_not(ada, p, as_is), "");
    EXPECT_EQ(why_not(ada, layer(4096, 48, 1), as_is), "G is 48, must be at most 32");
    EXPECT_EQ(why_not(hopper, p, [](auto& r) { r.order = LoopOrder::q_outer; }),
              "it has no kernel for one query at a time");
    EXPECT_EQ(why_not(hopper, p, [](auto& r) { r.order = LoopOrder::tile_union; }),
              "it has no kernel for unions of blocks");
    const std::string wide = "an operand or output is f32, must be bf16";
    EXPECT_EQ(why_not(hopper, p, [](auto& r) { r.element = r.saved = Element::f16; }), "");
    EXPECT_EQ(why_not(hopper, p, [](auto& r) { r.saved = Element::f32; }), wide);
    EXPECT_EQ(why_not(hopper, p, [](auto& r) { r.element = Element::f32; }), wide + " or f16");
    EXPECT_EQ(why_not(hopper, p, [](auto& r) { r.top_k = 33; }), "k is 33, must be at most 32");
    EXPECT_EQ(why_not(hopper, p, as_is, false),
              "operands and outputs must begin at multiples of 16 bytes");
    EXPECT_EQ(why_not(hopper, layer(4096, 65, 1), as_is), "G is 65, must be at most 64");
    EXPECT_EQ(why_not(hopper, layer(0, 64, 4), as_is), "there are no queries or no keys");
    EXPECT_EQ(why_not(hopper, layer(1 << 25, 64, 4), as_is),
              "Nq Hq is 2147483648, must be at most 2147483646");
    Problem narrow = p;
    narrow.head_dim = 96;
    EXPECT_EQ(why_not(hopper, narrow, as_is), "");
    Problem small = p;
    small.block_size = 96;
    EXPECT_EQ(why_not(hopper, small, as_is), "the block size is 96, must be 32, 64 or 128");
    small.block_size = 32;
    EXPECT_EQ(why_not(hopper, small, as_is), "");
}

TEST(CudaPlan, TheKlPredicateSaysWhy) {
    const cuda::Device hopper{0, 90, kSms}, newer{0, 100, kSms};
    struct Arguments {
        Problem p = layer(4, 64, 4);
        Tensor<bf16, 3> q{{4, 64, 128}}, k{{4, 4, 128}}, index_q{{4, 4, 128}};
        Tensor<bf16, 2> index_k{{4, 128}};
        Tensor<float, 2> main_lse{{4, 64}};
        Tensor<float, 3> d_index_q{{4, 4, 128}};
        Tensor<float, 2> d_index_k{{4, 128}};
        IndexKlInput in{{index_q, index_k}, q, k, {}};
        IndexKlOutput to{{}, d_index_q, d_index_k};
    };
    const auto why_not = [](const cuda::Device& device, const auto& change) {
        Arguments a;
        a.in.main_lse = a.main_lse;
        change(a);
        return cuda::takes_index_kl_sm90(device, a.p, a.in, a.to).why_not;
    };
    EXPECT_EQ(why_not(hopper, [](auto&) {}), "");
    EXPECT_EQ(why_not(newer, [](auto&) {}),
              "it has no kernel in the instructions of compute capability 8.0");
    EXPECT_EQ(why_not(hopper,
                      [](auto& a) {
                          const auto of = [](const In<3>& view) {
                              return In<3>(view.data(), view.shape(), Element::f16, view.space());
                          };
                          a.in.q = of(a.in.q), a.in.k = of(a.in.k);
                          a.in.index.index_q = of(a.in.index.index_q);
                      }),
              "");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.p.block_size = 32; }),
              "the block size is 32, must be 64 or 128");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.p.query_heads = 68; }),
              "G is 17, must be at most 16");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.p.query_heads = 12; }), "");  // any G up to that
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.p.head_dim = 256; }),  // index_kl_mma has these
              "the head dim is 256, must be 64 or 128");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.p.head_dim = 64; }),
              "the index dim is 128, must be at most 64");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.p.index_dim = 96; }),
              "the index dim is 96, must be 64 or 128");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.in.main_lse = {}; }), "main_lse is not given");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.in.teacher = Teacher::max; }),
              "the teacher is not the mean");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.to.d_index_q = {}; }), "no gradient is asked for");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.p.window = 512; }),
              "the window is 512, must be absent");
    EXPECT_EQ(why_not(hopper, [](auto& a) { a.p = layer(1 << 25, 64, 4); }),
              "Nq Hq is 2147483648, must be at most 2147483646");
}

TEST(CudaPlan, WhatIsWrittenMustNotBeReadEarly) {
    std::vector<float> memory(300);
    const auto part = [&](int64_t first, int64_t count) {
        return View<const float, 1>(memory.data() + first, {count}, Space::device);
    };
    cuda::WriteSet written(part(0, 100));
    EXPECT_TRUE(written.writes(part(0, 1)));
    EXPECT_TRUE(written.writes(part(99, 100)));
    EXPECT_FALSE(written.writes(part(100, 200)));
    // A call that throws may have queued kernels or not: what was written before stays written.
    written.add(cuda::WriteSet(part(200, 50)));
    EXPECT_TRUE(written.writes(part(50, 1)));
    EXPECT_TRUE(written.writes(part(249, 1)));
    EXPECT_FALSE(written.writes(part(100, 100)));
    EXPECT_FALSE(written.writes(part(250, 50)));
    for (int copy = 0; copy < 100; ++copy) written.add(memory.data(), 4);
    EXPECT_TRUE(written.writes(part(250, 50)));  // so many ranges are not told apart
}

TEST(CudaPlan, TheObjectsUsedLastAreKept) {
    cuda::LruCache<const int, 3> recent;
    int made = 0;
    const auto get = [&](int wanted) {
        return recent.get([&](int known) { return known == wanted; },
                          [&] {
                              ++made;
                              return std::make_shared<const int>(wanted);
                          });
    };
    const std::shared_ptr<const int> one = get(1);
    get(2), get(3);
    EXPECT_EQ(get(1), one);
    EXPECT_EQ(made, 3);
    EXPECT_TRUE(recent.is_full());
    get(4);  // in the place of 2
    EXPECT_EQ(get(1), one);
    EXPECT_EQ(*get(3), 3);
    EXPECT_EQ(made, 4);
    get(2);
    EXPECT_EQ(made, 5);
    get(5), get(6), get(7);
    EXPECT_NE(get(1), one);
    EXPECT_EQ(*one, 1);  // who shares it has it still
}

}  // namespace
}  // namespace msa::test
