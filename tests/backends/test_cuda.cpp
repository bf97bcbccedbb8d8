// SPDX-License-Identifier: MIT
// What only the cuda backend has: bf16 outputs, device memory that runs out, several devices, and
// tensors of more than 2^31 elements.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "core/number/half.h"
#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/truth.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

class Cuda : public testing::Test {
protected:
    void SetUp() override { MSA_SKIP_UNLESS_USABLE("cuda"); }

    template <typename Error, typename Call>
    static std::string refusal(const Call& call) {
        try {
            call();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }

    static Tensor<bf16, 3> narrowed(Backend& backend, const Tensor<float, 3>& wide) {
        Tensor<bf16, 3> narrow(wide.shape());
        for (int64_t i = 0; i < wide.size(); ++i) narrow.data()[i] = bf16(wide.data()[i]);
        return backend.upload(narrow.view());
    }

    /// Overwrites elements [first, first + values.size()) of a tensor on the device.
    template <typename T, int Rank>
    static void put(Backend& backend, Tensor<T, Rank>& here, int64_t first,
                    const std::vector<T>& values) {
        backend.copy(here.data() + first, Space::device, values.data(), Space::host,
                     static_cast<int64_t>(values.size() * sizeof(T)));
    }
    template <typename T, int Rank>
    static std::vector<T> get(Backend& backend, const Tensor<T, Rank>& here, int64_t first,
                              int64_t count) {
        std::vector<T> values(static_cast<size_t>(count));
        backend.copy(values.data(), Space::host, here.data() + first, Space::device,
                     count * int64_t{sizeof(T)});
        return values;
    }
};

TEST_F(Cuda, OutputsOfHalfTypesAreTheFloatOnesRounded) {
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    const Case c{"half_out", square_problem(90, 8, 2, 40, 16, 16), {.top_k = 3}};
    for (const Element element : {Element::bf16, Element::f16}) {
        const Operands o = make_operands(c, element);
        const Tensor<int32_t, 3> ids =
            backend->upload(reference().index_select(c.problem, c.rule, o).view());
        const Uploaded<3> q(*backend, element, o.q), k(*backend, element, o.k),
            v(*backend, element, o.v), rounded(*backend, element, o.q);
        Tensor<float, 3> out = backend->make<float, 3>(o.q.shape());
        Tensor<float, 2> lse = backend->make<float, 2>({90, 8});
        for (LoopOrder order :
             orders_of(*backend, c.problem, {.element = element, .top_k = c.rule.top_k})) {
            backend->sparse_attention(c.problem, {q, k, v}, ids, {out, lse}, order);
            backend->sparse_attention(c.problem, {q, k, v}, ids, {rounded, lse}, order);
            const Tensor<float, 3> want = backend->download(out.view()), got = rounded.download();
            for (int64_t i = 0; i < want.size(); ++i)
                EXPECT_NEAR(got.data()[i], want.data()[i],
                            stored_bound(element, std::fabs(double{want.data()[i]})))
                    << to_string(element);
        }
    }
}

TEST_F(Cuda, OtherElementsAreRefusedWithAReason) {
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    const auto why_not = [&](const Request& request) {
        return backend->supports(square_problem(8, 1, 1, 16, 16, 8), request).why_not;
    };
    for (const Element element : {Element::f32, Element::f16, Element::bf16, Element::e4m3}) {
        for (const Request& request :
             {Request(DenseAttentionRequest{element}), Request(BlockMassRequest{element}),
              Request(IndexKlRequest{.element = element})})
            EXPECT_EQ(why_not(request),
                      element == Element::e4m3 ? "it takes f32, f16 and bf16, not e4m3" : "")
                << operation_name(request);
        for (const Request& request :
             {Request(IndexScoresRequest{element}),
              Request(IndexSelectRequest{.element = element, .top_k = 1}),
              Request(SparseAttentionRequest{.element = element, .top_k = 1})})
            EXPECT_EQ(why_not(request), "") << operation_name(request);
    }
    EXPECT_EQ(why_not(IndexScoresRequest{Element::int8}), "");
    EXPECT_EQ(why_not(IndexSelectRequest{.element = Element::int8, .top_k = 1}), "");
    EXPECT_EQ(why_not(IndexScoresRequest{Element::f64}),
              "it takes f32, f16, bf16, e4m3 and int8, not f64");
    EXPECT_EQ(why_not(SparseAttentionRequest{.element = Element::int8, .top_k = 1}),
              "it takes f32, f16, bf16 and e4m3, not int8");
}

TEST_F(Cuda, OrdersThatAreMissingAreRefusedWithAReason) {
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    const Case c{"orders", square_problem(90, 8, 2, 40, 16, 16), {.top_k = 3}};
    SparseAttentionRequest request{
        .element = Element::f32, .top_k = 3, .order = LoopOrder::tile_union};
    EXPECT_NE(backend->supports(c.problem, request).why_not, "");
    for (LoopOrder order : {LoopOrder::automatic, LoopOrder::q_outer, LoopOrder::kv_outer}) {
        request.order = order;
        EXPECT_TRUE(backend->supports(c.problem, request).yes) << to_string(order);
    }
    Runner runner({"cuda", Element::f32});
    const Operands o = make_operands(c, Element::f32);
    const Tensor<int32_t, 3> ids = reference().index_select(c.problem, c.rule, o);
    EXPECT_THROW(runner.sparse_attention(c.problem, o, ids, LoopOrder::tile_union),
                 UnsupportedError);
    // One query at a time is the plain kernel, wherever it runs.
    runner.sparse_attention(c.problem, o, ids, LoopOrder::q_outer);
    EXPECT_TRUE(runner.backend().answered_by().starts_with("sparse_attention_q_outer_any; sm90: "))
        << runner.backend().answered_by();
}

TEST_F(Cuda, DenseAttentionSaysWhyCudnnDoesNotAnswer) {
    // tests/CMakeLists.txt runs it once more with a libcudnn that lacks what is called.
    const Case c{"dense", square_problem(200, 4, 2, 64, 64, 64), {.top_k = 2}};
    const Operands o = make_operands(c, Element::bf16);
    Runner runner({"cuda", Element::bf16, Element::bf16});
    for (int call = 0; call < 2; ++call) {
        EXPECT_TRUE(matches(runner.dense_attention(c.problem, o),
                            reference().dense_attention(c.problem, o), half_bounds(c.problem, o)));
        const std::string by = runner.backend().answered_by(),
                          plain = "dense_attention_any; cuDNN: ";
        if (std::getenv("MSA_STUB_CUDNN") != nullptr || !by.starts_with("cuDNN ")) {
            EXPECT_TRUE(by.starts_with(plain) && by.size() > plain.size()) << by;
        }
    }
}

TEST_F(Cuda, MoreSequencesThanAGridHasRows) {
    constexpr int64_t kSequences = 70000;
    std::vector<int64_t> queries{0}, keys{0};
    for (int64_t s = 0; s < kSequences; ++s) {
        queries.push_back(queries.back() + 1 + s % 2);
        keys.push_back(keys.back() + 2 + s % 3);
    }
    Case c{"many", square_problem(0, 2, 1, 64, 64, 64), {.top_k = 1}};
    c.problem.batch = PackedBatch(queries, keys);
    const Problem& p = c.problem;
    Operands o = make_operands(c, Element::bf16);
    const Bounds b = half_bounds(p, o);
    // Values of a late sequence that only its own queries see.
    const int64_t late = kSequences - 3;
    for (int64_t j = keys[late]; j < keys[late + 1]; ++j) o.v(j, 0, 5) = std::nanf("");
    Runner runner({"cuda", Element::bf16, Element::bf16});
    EXPECT_TRUE(matches(runner.dense_attention(p, o), reference().dense_attention(p, o), b))
        << runner.backend().answered_by();
    const Tensor<int32_t, 3> ids = reference().index_select(p, c.rule, o);
    EXPECT_TRUE(identical(runner.index_select(p, c.rule, o), ids));
    for (LoopOrder order : orders_of(runner, p, 1))
        EXPECT_TRUE(matches(runner.sparse_attention(p, o, ids, order),
                            reference().sparse_attention(p, o, ids), b))
            << to_string(order);
    Backend& backend = runner.backend();
    const Tensor<bf16, 3> q = narrowed(backend, o.q), k = narrowed(backend, o.k);
    Tensor<float, 3> mass = backend.make<float, 3>({p.queries(), 1, p.blocks()});
    backend.block_mass(p, {q, k}, {mass, {}});
    EXPECT_TRUE(close(backend.download(std::as_const(mass).view()),
                      reference().block_mass(p, o).mass, b.mass))
        << backend.answered_by();
}

TEST_F(Cuda, OutOfMemoryNamesTheBytesAndLeavesTheBackendUsable) {
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    const std::string message = refusal<SystemError>([&] { backend->allocate(int64_t{1} << 48); });
    EXPECT_NE(message.find("not enough device memory: 281474976710656 bytes asked, "),
              std::string::npos)
        << message;
    const Tensor<float, 1> zeros = backend->make<float, 1>({1000});
    EXPECT_EQ(get(*backend, zeros, 999, 1)[0], 0.0F);
}

TEST_F(Cuda, WhatCopiesToTheHostRefusesToBeCaptured) {
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    const Case c{"capture", square_problem(90, 8, 2, 40, 16, 16), {.top_k = 3}};
    const Operands o = make_operands(c, Element::f32);
    const Tensor<int32_t, 3> ids =
        backend->upload(reference().index_select(c.problem, c.rule, o).view());
    const Tensor<float, 3> q = backend->upload(o.q.view()), k = backend->upload(o.k.view()),
                           v = backend->upload(o.v.view());
    Tensor<float, 3> out = backend->make<float, 3>(o.q.shape());
    Tensor<float, 2> lse = backend->make<float, 2>({o.q.extent(0), o.q.extent(1)});
    const auto call = [&] {
        backend->sparse_attention(c.problem, {q, k, v}, ids, {out.view(), lse},
                                  LoopOrder::kv_outer);
    };
    call();
    const Tensor<float, 3> want = backend->download(out.view());
    EXPECT_THROW(backend->make_graph(call), UnsupportedError);
    call();
    EXPECT_TRUE(identical(backend->download(out.view()), want));
}

TEST_F(Cuda, CallsInARowReadWhatThoseBeforeWrote) {
    // Kernels may start before the call ahead of them is done: every one of so few queries does.
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    Case c{"in_a_row", square_problem(0, 64, 4, 128, 64, 64), {.top_k = 3}};
    c.problem.batch = PackedBatch({0, 4}, {0, 512});
    const Problem& p = c.problem;
    Operands o = make_operands(c, Element::bf16);
    const Tensor<int32_t, 3> ids = backend->upload(reference().index_select(p, c.rule, o).view());
    for (int64_t i = 0; i < o.k.size(); ++i)
        o.k.data()[i] *= 8;  // outputs are about one value each
    const Tensor<bf16, 3> k = narrowed(*backend, o.k), v = narrowed(*backend, o.v),
                          index_q = narrowed(*backend, o.index_q), q = narrowed(*backend, o.q);
    std::reverse(o.q.data(), o.q.data() + o.q.size());
    const Tensor<bf16, 3> other_q = narrowed(*backend, o.q);
    Tensor<bf16, 3> out[4];
    for (Tensor<bf16, 3>& to : out) to = backend->make<bf16, 3>(o.q.shape());
    Tensor<int32_t, 3> own_ids = backend->make<int32_t, 3>(ids.shape());
    Tensor<float, 2> lse = backend->make<float, 2>({p.queries(), p.query_heads});
    const View<const bf16, 2> keys(out[2].data(), {p.keys(), p.index_dim}, Space::device);

    const auto results = [&](const Tensor<bf16, 3>& first, LoopOrder order, bool waits) {
        const auto attend = [&](const Tensor<bf16, 3>& from, const Tensor<int32_t, 3>& by, int to,
                                LoopOrder in_order) {
            backend->sparse_attention(p, {from, k, v}, by, {out[to], lse}, in_order);
            if (waits) backend->finish();
        };
        backend->dense_attention(p, {first, k, v}, {out[0], lse});
        if (waits) backend->finish();
        attend(out[0], ids, 1, order);
        attend(out[1], ids, 2, LoopOrder::automatic);
        backend->index_select(p, c.rule, {index_q, keys}, own_ids);
        if (waits) backend->finish();
        attend(out[2], own_ids, 3, LoopOrder::automatic);
        return std::pair(get(*backend, own_ids, 0, ids.size()), get(*backend, out[3], 0, q.size()));
    };
    for (LoopOrder order :
         orders_of(*backend, p,
                   {.element = Element::bf16, .top_k = c.rule.top_k, .out = Element::bf16})) {
        const auto want = results(q, order, true), other = results(other_q, order, true);
        EXPECT_NE(want.first, other.first);  // what a call that does not wait would read
        EXPECT_FALSE(want.second == other.second);
        const auto got = results(q, order, false);
        EXPECT_EQ(got.first, want.first) << to_string(order);
        EXPECT_TRUE(got.second == want.second) << to_string(order);
    }
}

TEST_F(Cuda, NoSuchDeviceIsAnInputError) {
    const auto start = [](int device) {
        return [device] { make_backend("cuda", {.device = device}); };
    };
    EXPECT_NE(refusal<InputError>(start(-1)).find("device is -1, must be from 0 to "),
              std::string::npos);
    EXPECT_NE(refusal<InputError>(start(4096)).find("device is 4096, must be from 0 to "),
              std::string::npos);
}

TEST_F(Cuda, TensorsOutliveTheirBackend) {
    Tensor<float, 1> tensor;
    {
        const std::unique_ptr<Backend> backend = make_backend("cuda");
        tensor = backend->make<float, 1>({100});
        put(*backend, tensor, 99, {7.0F});
    }
    const std::unique_ptr<Backend> other = make_backend("cuda");
    EXPECT_EQ(get(*other, tensor, 99, 1)[0], 7.0F);
}

TEST_F(Cuda, LongSelectsPast2To31Elements) {
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    const Problem p = square_problem(290000, 1, 1, 16, 16, 32);
    const int64_t blocks = p.blocks(), last = p.queries() - 1;
    Tensor<float, 3> scores = backend->make<float, 3>({p.queries(), 1, blocks});
    ASSERT_GT(scores.size(), int64_t{1} << 31);
    put(*backend, scores, last * blocks + 4000, {1.0F, 3.0F, 2.0F});
    Tensor<int32_t, 3> ids = backend->make<int32_t, 3>({p.queries(), 1, 4});
    backend->select_blocks(p, {.top_k = 4}, scores, ids);
    const auto local = static_cast<int32_t>(blocks - 1);
    EXPECT_EQ(get(*backend, ids, last * 4, 4), (std::vector<int32_t>{4000, 4001, 4002, local}));
    EXPECT_EQ(get(*backend, ids, (last - 1) * 4, 4), (std::vector<int32_t>{0, 1, 2, local}));
}

TEST_F(Cuda, LongAttentionPast2To31Elements) {
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    // Many queries on the last of few keys: the same answer for the first and the last of them.
    Problem p = square_problem(0, 64, 4, 256, 16, 32);
    p.batch = PackedBatch({0, 140000}, {0, 40}, std::vector<int64_t>(140000, 39));
    const int64_t row = p.query_heads * p.head_dim, last = p.queries() - 1;
    const Problem one = p.with_queries({last, last + 1});
    const Case c{"one", one, {.top_k = 2}};
    const Operands o = make_operands(c, Element::bf16);
    Tensor<bf16, 3> q = backend->make<bf16, 3>({p.queries(), p.query_heads, p.head_dim});
    ASSERT_GT(q.size(), int64_t{1} << 31);
    std::vector<bf16> values(static_cast<size_t>(row));
    for (int64_t d = 0; d < row; ++d) values[static_cast<size_t>(d)] = bf16(o.q.data()[d]);
    put(*backend, q, last * row, values);
    const Tensor<bf16, 3> k = narrowed(*backend, o.k), v = narrowed(*backend, o.v);
    Tensor<bf16, 3> out = backend->make<bf16, 3>(q.shape());
    Tensor<float, 2> lse = backend->make<float, 2>({p.queries(), p.query_heads});
    const Tensor<int32_t, 3> ids = backend->upload(all_visible_blocks(p).view());
    const Attention want = reference().dense_attention(one, o);
    const auto check = [&](const char* what) {
        const std::vector<bf16> got = get(*backend, out, last * row, row);
        for (int64_t d = 0; d < row; ++d)
            ASSERT_NEAR(static_cast<float>(got[static_cast<size_t>(d)]), want.out.data()[d],
                        bounds(one, o).out +
                            storage_roundoff(Element::bf16) * std::fabs(want.out.data()[d]))
                << what << ' ' << d;
        put(*backend, out, last * row, values);
    };
    backend->dense_attention(p, {q, k, v}, {out, lse});
    check("dense_attention");
    for (LoopOrder order :
         orders_of(*backend, p, {.element = Element::bf16, .top_k = 2, .out = Element::bf16})) {
        backend->sparse_attention(p, {q, k, v}, ids, {out, lse}, order);
        check(to_string(order));
    }
}

}  // namespace
}  // namespace msa::test
