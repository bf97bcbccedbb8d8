// SPDX-License-Identifier: MIT
// A cuda backend on a stream and an allocator that are not its own, and what it may keep.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <thread>

#include "core/error.h"
#include "core/number/half.h"
#include "gpu/cuda_backend.h"
#include "gpu/layout.h"
#include "gpu/plan/sparse_attention.h"
#include "tests/support/compare.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

void ok(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

/// An allocator that counts. Its memory is zeroed neither before nor after.
struct Allocator {
    std::map<void*, int64_t> live;
    int64_t calls = 0, bytes = 0, peak = 0;
    bool refuses = false;
    void* stream = nullptr;  // where every call must be; null: any

    CudaOptions options(void* on) {
        stream = on;
        return {.device = 0,
                .stream = on,
                .allocate = [this](int64_t asked, void* in) { return allocate(asked, in); },
                .free = [this](void* memory, int64_t asked, void* in) { free(memory, asked, in); }};
    }
    void* allocate(int64_t asked, void* in) {
        if (stream != nullptr) {
            EXPECT_EQ(in, stream);
        }
        void* memory = nullptr;
        if (refuses || cudaMallocAsync(&memory, static_cast<size_t>(asked),
                                       static_cast<cudaStream_t>(in)) != cudaSuccess) {
            cudaGetLastError();
            return nullptr;
        }
        ++calls;
        live[memory] = asked;
        bytes += asked;
        peak = std::max(peak, bytes);
        return memory;
    }
    void free(void* memory, int64_t asked, void* in) {
        EXPECT_EQ(live.at(memory), asked);
        live.erase(memory);
        bytes -= asked;
        cudaFreeAsync(memory, static_cast<cudaStream_t>(in));
    }
};

Tensor<bf16, 3> narrowed(Backend& backend, const Tensor<float, 3>& wide) {
    Tensor<bf16, 3> narrow(wide.shape());
    for (int64_t i = 0; i < wide.size(); ++i) narrow.data()[i] = bf16(wide.data()[i]);
    return backend.upload(narrow.view());
}

class CudaBorrowed : public testing::Test {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE("cuda");
        ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    void TearDown() override {
        if (stream_ != nullptr) cudaStreamDestroy(stream_);
    }

    cudaStream_t stream_ = nullptr;
    Allocator allocator_;
};

/// A layer of few queries whose calls need no copy from the host once the layout is there.
struct Layer {
    Case c;
    Operands o;
    Tensor<int32_t, 3> host_ids, ids;
    Tensor<bf16, 3> q, k, v, out;
    Tensor<float, 2> lse;

    Layer(Backend& backend, std::vector<int64_t> queries, std::vector<int64_t> keys)
        : c{"layer", square_problem(0, 32, 2, 128, 64, 64), {.top_k = 3}} {
        c.problem.batch = PackedBatch(std::move(queries), std::move(keys));
        o = make_operands(c, Element::bf16);
        host_ids = reference().index_select(c.problem, c.rule, o);
        ids = backend.upload(host_ids.view());
        q = narrowed(backend, o.q);
        k = narrowed(backend, o.k);
        v = narrowed(backend, o.v);
        out = backend.make<bf16, 3>(o.q.shape());
        lse = backend.make<float, 2>({c.problem.queries(), 32});
    }
    void attend(Backend& backend, LoopOrder order = LoopOrder::automatic) {
        backend.sparse_attention(c.problem, {q, k, v}, ids, {out, lse}, order);
    }
    testing::AssertionResult is_right(Backend& backend) {
        const Tensor<bf16, 3> narrow = backend.download(std::as_const(out).view());
        Tensor<float, 3> wide(narrow.shape());
        for (int64_t i = 0; i < wide.size(); ++i)
            wide.data()[i] = static_cast<float>(narrow.data()[i]);
        return matches({std::move(wide), backend.download(std::as_const(lse).view())},
                       reference().sparse_attention(c.problem, o, host_ids),
                       half_bounds(c.problem, o));
    }
};

TEST_F(CudaBorrowed, EverythingRunsOnTheStreamAndInTheMemoryOfTheCaller) {
    {
        const auto backend = make_cuda_backend(allocator_.options(stream_));
        for (const std::vector<int64_t>& queries : {std::vector<int64_t>{0, 2}, {0, 700}}) {
            Layer layer(*backend, queries, {0, 700});
            for (LoopOrder order :
                 orders_of(*backend, layer.c.problem,
                           {.element = Element::bf16, .top_k = 3, .out = Element::bf16})) {
                layer.attend(*backend, order);
                EXPECT_TRUE(layer.is_right(*backend)) << to_string(order);
            }
            backend->dense_attention(layer.c.problem, {layer.q, layer.k, layer.v},
                                     {layer.out, layer.lse});
        }
        backend->finish();
        EXPECT_GT(allocator_.calls, 0);
    }
    EXPECT_TRUE(allocator_.live.empty()) << allocator_.bytes << " bytes are not given back";
    ok(cudaStreamSynchronize(stream_));  // it is still there
}

TEST_F(CudaBorrowed, HalfAnAllocatorIsRefused) {
    CudaOptions options = allocator_.options(stream_);
    options.free = nullptr;
    EXPECT_THROW(make_cuda_backend(options), InputError);
}

TEST_F(CudaBorrowed, AnAllocatorWithoutMemoryIsAnErrorWithTheBytes) {
    const auto backend = make_cuda_backend(allocator_.options(stream_));
    allocator_.refuses = true;
    try {
        backend->allocate(12345);
        FAIL();
    } catch (const MemoryError& error) {
        EXPECT_NE(std::string(error.what()).find("12345 bytes asked"), std::string::npos);
    }
    allocator_.refuses = false;
    EXPECT_NE(backend->allocate(12345), nullptr);
}

TEST_F(CudaBorrowed, CallsGoIntoTheGraphThatTheCallerCaptures) {
    const auto backend = make_cuda_backend(allocator_.options(stream_));
    Layer layer(*backend, {0, 2}, {0, 700});
    const auto calls = [&] {
        layer.attend(*backend, LoopOrder::automatic);
        backend->copy(layer.q.data(), Space::device, layer.out.data(), Space::device,
                      layer.out.size() * int64_t{sizeof(bf16)});
        layer.attend(*backend, LoopOrder::q_outer);
    };
    const Tensor<bf16, 3> first_q = backend->download(std::as_const(layer.q).view());
    calls();
    const Tensor<bf16, 3> want = backend->download(std::as_const(layer.out).view());
    // Other problems in between must not take away what the graph needs.
    cudaGraph_t graph = nullptr;
    ok(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    calls();
    ok(cudaStreamEndCapture(stream_, &graph));
    cudaGraphExec_t run = nullptr;
    ok(cudaGraphInstantiate(&run, graph, 0));
    for (int64_t n = 0; n < 2 * int64_t{cuda::LayoutCache::kMost}; ++n) {
        Layer other(*backend, {0, 2}, {0, 100 + n});
        other.attend(*backend, LoopOrder::q_outer);
    }
    backend->copy(layer.q.data(), Space::device, first_q.data(), Space::host,
                  first_q.size() * int64_t{sizeof(bf16)});
    backend->copy(layer.out.data(), Space::device, first_q.data(), Space::host,
                  first_q.size() * int64_t{sizeof(bf16)});
    ok(cudaGraphLaunch(run, stream_));
    const Tensor<bf16, 3> got = backend->download(std::as_const(layer.out).view());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), static_cast<size_t>(want.size()) * sizeof(bf16)),
              0);
    ok(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    EXPECT_THROW(backend->download(std::as_const(layer.out).view()), UnsupportedError);
    EXPECT_THROW(backend->upload(first_q.view()), UnsupportedError);
    cudaGraph_t nothing = nullptr;
    cudaStreamEndCapture(stream_, &nothing);
    cudaGetLastError();
    if (nothing != nullptr) cudaGraphDestroy(nothing);
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
}

TEST_F(CudaBorrowed, WhatIsKeptApartLeavesTheAllocatorEmptyAndMayBeginInACapture) {
    CudaOptions options = allocator_.options(stream_);
    options.keeps_apart = true;
    const auto first = make_cuda_backend(options);  // loads the kernels
    Layer layer(*first, {0, 2}, {0, 700});
    layer.attend(*first, LoopOrder::q_outer);
    const Tensor<bf16, 3> want = first->download(std::as_const(layer.out).view());
    const int64_t calls = allocator_.calls;
    // A stream whose backend, scratch memory and layout are made while it is captured.
    cudaStream_t captured = nullptr;
    ok(cudaStreamCreateWithFlags(&captured, cudaStreamNonBlocking));
    allocator_.stream = nullptr;
    options.stream = captured;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t run = nullptr;
    {
        ok(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
        const auto second = make_cuda_backend(options);
        layer.attend(*second, LoopOrder::q_outer);
        ok(cudaStreamEndCapture(captured, &graph));
        EXPECT_EQ(allocator_.calls, calls);
        ok(cudaGraphInstantiate(&run, graph, 0));
        for (int repeat = 0; repeat < 2; ++repeat) {
            ok(cudaMemsetAsync(layer.out.data(), 0,
                               sizeof(bf16) * static_cast<size_t>(layer.out.size()), captured));
            ok(cudaGraphLaunch(run, captured));
            const Tensor<bf16, 3> got = second->download(std::as_const(layer.out).view());
            EXPECT_EQ(std::memcmp(got.data(), want.data(),
                                  static_cast<size_t>(want.size()) * sizeof(bf16)),
                      0);
        }
    }
    cudaGraphExecDestroy(run);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(captured);
}

/// Holds a stream up until it is released, or for two seconds.
struct Gate {
    std::atomic<bool> open = false;
    static void wait(void* gate) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
        while (!static_cast<Gate*>(gate)->open && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
    }
};

TEST_F(CudaBorrowed, CopiesToTheDeviceWaitForNothing) {
    const auto backend = make_cuda_backend(allocator_.options(stream_));
    constexpr int64_t kCount = 256;
    std::vector<float> source(kCount, 1.0F), back(kCount);
    Tensor<float, 1> a = backend->make<float, 1>({kCount}), b = backend->make<float, 1>({kCount});
    backend->finish();
    Gate gate;
    ok(cudaLaunchHostFunc(stream_, Gate::wait, &gate));
    const auto began = std::chrono::steady_clock::now();
    constexpr int64_t kBytes = kCount * int64_t{sizeof(float)};
    backend->copy(a.data(), Space::device, source.data(), Space::host, kBytes);
    std::fill(source.begin(), source.end(), 2.0F);  // the source is the caller's own again
    backend->copy(b.data(), Space::device, a.data(), Space::device, kBytes);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(1));
    gate.open = true;
    backend->copy(back.data(), Space::host, b.data(), Space::device, kBytes);
    EXPECT_EQ(back, std::vector<float>(kCount, 1.0F));
}

TEST_F(CudaBorrowed, PinnedMemoryIsTheCallersOwnAfterACopyToo) {
    const auto backend = make_cuda_backend(allocator_.options(stream_));
    constexpr int64_t kCount = int64_t{1} << 22;
    float* pinned = nullptr;
    ok(cudaMallocHost(reinterpret_cast<void**>(&pinned), kCount * sizeof(float)));
    std::fill_n(pinned, kCount, 1.0F);
    Tensor<float, 1> here = backend->make<float, 1>({kCount});
    Gate gate;
    ok(cudaLaunchHostFunc(stream_, Gate::wait, &gate));
    std::thread opener([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        gate.open = true;
    });
    backend->copy(here.data(), Space::device, pinned, Space::host, kCount * int64_t{sizeof(float)});
    std::fill_n(pinned, kCount, 2.0F);
    opener.join();
    const Tensor<float, 1> got = backend->download(std::as_const(here).view());
    EXPECT_EQ(std::count(got.data(), got.data() + kCount, 1.0F), kCount);
    cudaFreeHost(pinned);
}

TEST_F(CudaBorrowed, AlternatingProblemsCopyNoLayoutTwice) {
    const auto backend = make_cuda_backend(allocator_.options(stream_));
    Layer a(*backend, {0, 2}, {0, 300}), b(*backend, {0, 1, 3}, {0, 200, 500});
    const auto attend = [&](Layer& layer) { layer.attend(*backend, LoopOrder::q_outer); };
    attend(a), attend(b);
    const int64_t calls = allocator_.calls;
    for (int step = 0; step < 3; ++step) attend(a), attend(b);
    EXPECT_EQ(allocator_.calls, calls);
    // An equal batch, made anew.
    a.c.problem.batch =
        PackedBatch(a.c.problem.batch.cu_seqlens_q(), a.c.problem.batch.cu_seqlens_k());
    attend(a);
    EXPECT_EQ(allocator_.calls, calls);
    EXPECT_TRUE(a.is_right(*backend));
    // A few are kept, not all.
    const size_t live = allocator_.live.size();
    for (int64_t n = 0; n < 3 * int64_t{cuda::LayoutCache::kMost}; ++n) {
        Layer other(*backend, {0, 1}, {0, 100 + n});
        attend(other);
    }
    EXPECT_LE(allocator_.live.size(), live + cuda::LayoutCache::kMost);
    attend(a);
    EXPECT_TRUE(a.is_right(*backend));
}

TEST_F(CudaBorrowed, ACallThatThrowsIsNotTheCallBefore) {
    // On a stream of the backend's own, where kernels read early what nothing ahead writes.
    const auto backend = make_cuda_backend(allocator_.options(nullptr));
    Layer layer(*backend, {0, 2}, {0, 700});
    const Problem& p = layer.c.problem;
    const Tensor<float, 3> q = backend->upload(layer.o.q.view()),
                           k = backend->upload(layer.o.k.view()),
                           v = backend->upload(layer.o.v.view());
    Tensor<float, 3> wide = backend->make<float, 3>(layer.o.q.shape());
    Tensor<float, 2> lse = backend->make<float, 2>({p.queries(), p.query_heads});
    Tensor<bf16, 3> middle = backend->make<bf16, 3>(layer.o.q.shape());
    const auto chain = [&](bool waits, bool throws) {
        backend->copy(middle.data(), Space::device, layer.q.data(), Space::device,
                      middle.size() * int64_t{sizeof(bf16)});
        backend->finish();
        for (int n = 0; n < 4; ++n) {
            const bool even = n % 2 == 0;
            if (n > 0 && throws) {
                allocator_.refuses = true;  // the tiles of the plain kernel, the first time
                EXPECT_THROW(backend->dense_attention(p, {q, k, v}, {wide, lse}), MemoryError);
                allocator_.refuses = false;
            }
            backend->sparse_attention(p, {even ? middle : layer.out, layer.k, layer.v}, layer.ids,
                                      {even ? layer.out : middle, layer.lse});
            if (waits) backend->finish();
        }
        return backend->download(std::as_const(middle).view());
    };
    const Tensor<bf16, 3> want = chain(true, false);
    for (int repeat = 0; repeat < 20; ++repeat) {
        const Tensor<bf16, 3> got = chain(false, true);
        ASSERT_EQ(
            std::memcmp(got.data(), want.data(), static_cast<size_t>(want.size()) * sizeof(bf16)),
            0);
    }
}

TEST_F(CudaBorrowed, UnionsOfManyQueriesAreTakenInChunks) {
    const auto backend = make_cuda_backend(allocator_.options(stream_));
    Problem p = square_problem(0, 16, 16, 64, 64, 64);
    constexpr int64_t kQueries = 500000, kKeys = 4096, kTopK = 32;
    p.batch = PackedBatch({0, kQueries}, {0, kKeys}, std::vector<int64_t>(kQueries, kKeys - 1));
    const SparseAttentionRequest request{.element = Element::bf16,
                                         .top_k = kTopK,
                                         .order = LoopOrder::tile_union,
                                         .out = Element::bf16};
    if (!backend->supports(p, request).yes) GTEST_SKIP() << backend->supports(p, request).why_not;
    Tensor<int32_t, 3> ids = backend->make<int32_t, 3>({kQueries, 16, kTopK});
    {
        const Tensor<float, 3> scores = backend->make<float, 3>({kQueries, 16, p.blocks()});
        backend->select_blocks(p, {.top_k = kTopK}, scores, ids);
    }
    const std::vector<int64_t> some{0, 131071, 131072, 262143, 262144, kQueries - 1};
    const Case c{"some", p.with_query_rows(some), {.top_k = kTopK}};
    const Operands o = make_operands(c, Element::bf16);
    Tensor<bf16, 3> q = backend->make<bf16, 3>({kQueries, 16, 64});
    Tensor<bf16, 3> out = backend->make<bf16, 3>(q.shape());
    Tensor<float, 2> lse = backend->make<float, 2>({kQueries, 16});
    const Tensor<bf16, 3> rows = narrowed(*backend, o.q), k = narrowed(*backend, o.k),
                          v = narrowed(*backend, o.v);
    constexpr int64_t kRow = 16 * 64, kRowBytes = kRow * int64_t{sizeof(bf16)};
    for (int64_t n = 0; n < std::ssize(some); ++n)
        backend->copy(q.data() + some[static_cast<size_t>(n)] * kRow, Space::device,
                      rows.data() + n * kRow, Space::device, kRowBytes);
    const int64_t before = allocator_.bytes;
    allocator_.peak = before;
    backend->sparse_attention(p, {q, k, v}, ids, {out, lse}, LoopOrder::tile_union);
    EXPECT_EQ(backend->answered_by(), "sparse_attention_sm90");
    // The lists, a mark per row, the layout; one chunk of all would take 2.1 GB.
    EXPECT_LE(allocator_.peak - before, cuda::kMostListBytes + (int64_t{1} << 27));
    Tensor<int32_t, 3> some_ids({std::ssize(some), 16, kTopK});
    Attention got{Tensor<float, 3>(o.q.shape()), Tensor<float, 2>({std::ssize(some), 16})};
    std::vector<bf16> narrow(kRow);
    for (int64_t n = 0; n < std::ssize(some); ++n) {
        const int64_t i = some[static_cast<size_t>(n)];
        backend->copy(narrow.data(), Space::host, out.data() + i * kRow, Space::device, kRowBytes);
        for (int64_t d = 0; d < kRow; ++d)
            got.out.data()[n * kRow + d] = static_cast<float>(narrow[static_cast<size_t>(d)]);
        backend->copy(&got.lse(n, 0), Space::host, lse.data() + i * 16, Space::device,
                      16 * int64_t{sizeof(float)});
        backend->copy(&some_ids(n, 0, 0), Space::host, ids.data() + i * 16 * kTopK, Space::device,
                      16 * kTopK * int64_t{sizeof(int32_t)});
    }
    EXPECT_TRUE(matches(got, reference().sparse_attention(c.problem, o, some_ids),
                        half_bounds(c.problem, o)));
}

}  // namespace
}  // namespace msa::test
