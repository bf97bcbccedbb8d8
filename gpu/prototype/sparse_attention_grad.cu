// SPDX-License-Identifier: MIT
// A C interface to sparse_attention_grad alone, for gpu/prototype/sparse_attention_grad.py: what
// the backend's host side will do (tiles, blocks, tensor maps, scratch memory), and times by stage.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/problem.h"
#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace {

using namespace msa;
using namespace msa::cuda;

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::abort();
}

CUtensorMap encode(const void* data, std::vector<int64_t> extents, std::vector<int64_t> box) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                           cudaEnableDefault, &result),
          "entry point");
    cuuint64_t sizes[3], strides[3];
    cuuint32_t boxes[3], steps[3] = {1, 1, 1};
    int64_t bytes = 2;
    for (size_t a = 0; a < extents.size(); ++a) {
        sizes[a] = static_cast<cuuint64_t>(extents[a]);
        boxes[a] = static_cast<cuuint32_t>(box[a]);
        strides[a] = static_cast<cuuint64_t>(bytes *= extents[a]);
    }
    CUtensorMap map{};
    const auto status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(extents.size()),
        const_cast<void*>(data), sizes, strides, boxes, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (status != CUDA_SUCCESS) std::fprintf(stderr, "tensor map: %d\n", int(status)), std::abort();
    return map;
}

struct Plan {
    SparseGradArgs args{};
    int processors = 0;
    std::vector<void*> memory;

    template <typename T>
    T* make(int64_t count) {
        void* data = nullptr;
        const size_t bytes = sizeof(T) * static_cast<size_t>(std::max<int64_t>(count, 1));
        check(cudaMalloc(&data, bytes), "memory");
        check(cudaMemset(data, 0xFF, bytes), "poison");  // NaN, or numbers that are far off
        memory.push_back(data);
        return static_cast<T*>(data);
    }
    template <typename T>
    T* upload(const std::vector<T>& from) {
        T* const to = make<T>(static_cast<int64_t>(from.size()));
        check(cudaMemcpy(to, from.data(), sizeof(T) * from.size(), cudaMemcpyHostToDevice),
              "upload");
        return to;
    }
};

}  // namespace

extern "C" {

/// cu_q, cu_k [sequences + 1] on the host.
void* grad_plan(const int64_t* cu_q, const int64_t* cu_k, int sequences, int query_heads,
                int groups, int head_dim, int block_size, int top_k, int chunk_queries,
                int item_uses) {
    auto* const plan = new Plan;
    SparseGradArgs& args = plan->args;
    std::vector<KeyRange> visible;
    std::vector<QueryTile> tiles;
    std::vector<KeyBlock> blocks;
    for (int s = 0; s < sequences; ++s) {
        const int64_t first = cu_q[s], queries = cu_q[s + 1] - first;
        const int64_t key = cu_k[s], keys = cu_k[s + 1] - key;
        const auto first_block = static_cast<int32_t>(blocks.size());
        for (int64_t i = 0; i < queries; ++i)
            visible.push_back({key, std::max<int64_t>(0, keys - queries + i + 1)});
        for (int64_t i = 0; i < queries; i += kGradTileQueries) {
            const auto count =
                static_cast<int32_t>(std::min<int64_t>(kGradTileQueries, queries - i));
            tiles.push_back({first + i, key, count, 0, first_block});
        }
        for (int64_t i = 0; i < keys; i += block_size)
            blocks.push_back({static_cast<int32_t>(key + i),
                              static_cast<int32_t>(std::min<int64_t>(block_size, keys - i))});
    }
    args.queries = cu_q[sequences], args.keys = cu_k[sequences];
    args.query_heads = query_heads, args.groups = groups, args.head_dim = head_dim;
    args.block_size = block_size, args.top_k = top_k;
    args.derive();
    args.all_blocks = static_cast<int>(blocks.size());
    args.tile_count = static_cast<int>(tiles.size());
    args.chunk_tiles = std::min(args.tile_count, chunk_queries / kGradTileQueries);
    args.batch_chunks = std::min(args.chunks(), 16);
    args.item_uses = item_uses;
    args.tiles = plan->upload(tiles);
    args.visible = plan->upload(visible);
    args.key_blocks = plan->upload(blocks);
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "properties");
    plan->processors = properties.multiProcessorCount;
    GradWorkspace& work = args.workspace;
    const int64_t rows = args.queries * query_heads, c = args.batch_chunks;
    work.lse = plan->make<float>(rows + 1), work.delta = plan->make<float>(rows + 1);
    work.starts = plan->make<int32_t>(c * args.chunk_tiles * args.lists());
    work.bins = plan->make<int32_t>(c * groups * args.chunk_tiles);
    work.uses = plan->make<GradUse>(c * args.most_uses());
    work.found = plan->make<GradItem>(c * args.most_items());
    work.items = plan->make<GradItem>(c * args.most_items());
    work.counts = plan->make<int32_t>(c * 4);
    work.splits = plan->make<GradSplit>(c * args.most_splits());
    work.slots = plan->make<char>(args.slot_buffers() * args.slot_bytes());
    work.parts = plan->make<float>(args.most_parts() * 2 * block_size * head_dim);
    work.d_k = plan->make<float>(args.keys * groups * head_dim);
    work.d_v = plan->make<float>(args.keys * groups * head_dim);
    return plan;
}

void grad_free(void* plan) {
    for (void* one : static_cast<Plan*>(plan)->memory) cudaFree(one);
    delete static_cast<Plan*>(plan);
}

void grad_bind(void* plan, const void* q, const void* k, const void* v, const int32_t* ids,
               const void* out, const float* lse, const void* d_out, void* d_q, void* d_k,
               void* d_v, double scale) {
    SparseGradArgs& args = static_cast<Plan*>(plan)->args;
    const int64_t dim = args.head_dim, heads = args.query_heads, width = args.groups * dim;
    args.q_one = encode(q, {dim, heads, args.queries}, {64, args.group_size, 1});
    args.d_out_one = encode(d_out, {dim, heads, args.queries}, {64, args.group_size, 1});
    args.k = encode(k, {width, args.keys}, {64, args.block_size});
    args.v = encode(v, {width, args.keys}, {64, args.block_size});
    args.ids = ids, args.out = out, args.lse = lse, args.d_out = d_out;
    args.d_q = d_q, args.d_k = d_k, args.d_v = d_v;
    args.scale = static_cast<float>(scale);
}

void grad_run(void* plan) {
    Plan& p = *static_cast<Plan*>(plan);
    check(launch_sparse_attention_grad_sm90(p.args, p.processors, nullptr), "launch");
}

/// The same with times in ms: prepare, schedule, products (with all slots but the last chunk's),
/// parts and last slots, finish.
void grad_stages(void* plan, float* ms) {
    Plan& p = *static_cast<Plan*>(plan);
    const SparseGradArgs& args = p.args;
    cudaEvent_t from, to;
    check(cudaEventCreate(&from), "event");
    check(cudaEventCreate(&to), "event");
    std::fill_n(ms, 5, 0.0F);
    const auto timed = [&](int stage, auto&& body) {
        check(cudaEventRecord(from), "event");
        check(body(), "stage");
        check(cudaEventRecord(to), "event");
        check(cudaEventSynchronize(to), "stage's end");
        float one = 0;
        check(cudaEventElapsedTime(&one, from, to), "time");
        ms[stage] += one;
    };
    timed(0, [&] { return launch_grad_prepare(args, nullptr); });
    for (int c = 0; c < args.chunks(); ++c) {
        const int scheduled = c % args.batch_chunks;
        if (scheduled == 0) timed(1, [&] { return launch_grad_schedule(args, c, nullptr); });
        const SparseGradArgs chunk = args.chunk(c, scheduled);
        timed(2, [&] { return launch_grad_products(chunk, p.processors, nullptr); });
        timed(3, [&] { return launch_grad_parts(chunk, p.processors, nullptr); });
    }
    timed(3, [&] { return launch_grad_slots(args.chunk(args.chunks() - 1, 0), nullptr); });
    timed(4, [&] { return launch_grad_finish(args, nullptr); });
    cudaEventDestroy(from);
    cudaEventDestroy(to);
}

}  // extern "C"
