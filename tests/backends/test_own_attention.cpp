// SPDX-License-Identifier: MIT
// Windows, soft caps and sinks in closed form; every size of them beside the reference is in the
// tests of each operation.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "core/error.h"
#include "core/selection.h"
#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

Tensor<float, 1> sinks_of(std::initializer_list<float> values) {
    Tensor<float, 1> sinks({std::ssize(values)});
    std::copy(values.begin(), values.end(), sinks.data());
    return sinks;
}

/// Dense attention, and sparse attention over all blocks in every order: the same by definition.
class OwnAttention : public SubjectTest {
protected:
    std::vector<Attention> all(const Problem& p, const Operands& o) {
        std::vector<Attention> got;
        got.push_back(runner_.dense_attention(p, o));
        const Tensor<int32_t, 3> ids = all_visible_blocks(p);
        for (LoopOrder order : orders_of(runner_, p, ids.extent(2)))
            got.push_back(runner_.sparse_attention(p, o, ids, order));
        return got;
    }
    Operands operands(const Case& c) { return make_operands(c, GetParam().element); }
    Runner runner_{GetParam()};
};
MSA_FOR_ALL_SUBJECTS(OwnAttention);

/// Every logit is 1, value j is j.
Operands counting(const Case& c, Element element) {
    Operands o = make_operands(c, element);
    for (int64_t j = 0; j < o.v.extent(0); ++j)
        std::fill_n(o.v.view()[j].data(), o.v.view()[j].size(), static_cast<float>(j));
    return o;
}

TEST_P(OwnAttention, AWindowAveragesTheNewestValues) {
    Case c{"window", square_problem(60, 4, 2, 16, 16, 8), {}, Values::equal};
    c.problem.window = 11;
    const Operands o = counting(c, GetParam().element);
    const Bounds b = bounds(c.problem, o);
    for (const Attention& got : all(c.problem, o))
        for (int64_t i = 0; i < 60; ++i) {
            const int64_t first = std::max<int64_t>(0, i - 10);
            EXPECT_NEAR(got.out(i, 3, 5), static_cast<double>(first + i) / 2, b.out) << i;
            EXPECT_NEAR(got.lse(i, 3), 1 + std::log(static_cast<double>(i - first + 1)), b.lse);
        }
    const BlockMass mass = runner_.block_mass(c.problem, o);
    // Query 19 attends to 9 .. 19: 7 tokens of block 1, and 4 of block 2.
    EXPECT_EQ(mass.mass(19, 1, 0), 0.0F);
    EXPECT_EQ(mass.max_logit(19, 1, 0), -kInfinity);
    EXPECT_NEAR(mass.mass(19, 1, 1), 7.0 / 11, b.mass);
    EXPECT_NEAR(mass.mass(19, 1, 2), 4.0 / 11, b.mass);
    EXPECT_EQ(mass.mass(19, 1, 3), 0.0F);
}

TEST_P(OwnAttention, NanBeforeTheWindowChangesNothing) {
    Case c{"nan", square_problem(60, 4, 2, 16, 16, 8), {}};
    c.problem.window = 13;
    Operands o = operands(c);
    const std::vector<Attention> clean = all(c.problem, o);
    const BlockMass clean_mass = runner_.block_mass(c.problem, o);
    const IndexKl clean_kl = runner_.index_kl(c.problem, o, {});
    o.k(20, 0, 3) = std::nanf("");
    o.v(20, 0, 3) = std::nanf("");
    const std::vector<Attention> spoilt = all(c.problem, o);
    const BlockMass mass = runner_.block_mass(c.problem, o);
    const IndexKl kl = runner_.index_kl(c.problem, o, {});
    for (int64_t i = 0; i < 60; ++i) {
        const bool affected = 20 <= i && i < 33;
        for (size_t n = 0; n < clean.size(); ++n)
            for (int64_t h = 0; h < 4; ++h) {
                EXPECT_EQ(std::isnan(spoilt[n].lse(i, h)), affected && h < 2) << i << ' ' << h;
                EXPECT_EQ(std::isnan(spoilt[n].out(i, h, 3)), affected && h < 2) << i << ' ' << h;
                if (!affected || h >= 2) {
                    EXPECT_EQ(spoilt[n].out(i, h, 7), clean[n].out(i, h, 7)) << i << ' ' << h;
                }
            }
        EXPECT_EQ(std::isnan(kl.kl(i, 0)), affected) << i;
        if (affected) continue;
        EXPECT_EQ(kl.kl(i, 0), clean_kl.kl(i, 0)) << i;
        for (int64_t b = 0; b < c.problem.blocks(); ++b)
            EXPECT_EQ(mass.mass(i, 0, b), clean_mass.mass(i, 0, b)) << i;
    }
}

TEST_P(OwnAttention, ASoftCapByHand) {
    // Logits 0 and 4 become 0 and 2 tanh(2).
    Problem p = square_problem(2, 2, 1, 16, 16, 8);
    p.softmax_scale_override = 1.0;
    p.softcap = 2.0;
    const Case c{"cap", p, {}};
    Operands o = operands(c);
    for (Tensor<float, 3>* t : {&o.q, &o.k}) std::fill_n(t->data(), t->size(), 0.0F);
    o.q(1, 0, 0) = 2;
    o.k(1, 0, 0) = 2;
    const double logit = 2 * std::tanh(2.0), second = 1 / (1 + std::exp(-logit));
    const Bounds b = bounds(p, o);
    for (const Attention& got : all(p, o)) {
        EXPECT_NEAR(got.lse(1, 0), std::log(1 + std::exp(logit)), b.lse);
        EXPECT_NEAR(got.out(1, 0, 3),
                    (1 - second) * double{o.v(0, 0, 3)} + second * double{o.v(1, 0, 3)}, b.out);
    }
    const BlockMass mass = runner_.block_mass(p, o);
    EXPECT_NEAR(mass.max_logit(1, 0, 0), logit, b.max_logit);
}

TEST_P(OwnAttention, ASinkTakesItsShare) {
    // i + 1 keys of logit 1, and the sink.
    Case c{"sink", square_problem(30, 4, 2, 16, 16, 8), {}, Values::equal};
    Operands o = counting(c, GetParam().element);
    o.sinks = sinks_of({-2, 0, 1, 5});
    const Bounds b = bounds(c.problem, o);
    const auto kept = [&](int64_t i, int64_t h) {
        const double keys = static_cast<double>(i + 1) * std::exp(1.0);
        return keys / (keys + std::exp(double{o.sinks(h)}));
    };
    for (const Attention& got : all(c.problem, o))
        for (int64_t i = 0; i < 30; ++i)
            for (int64_t h = 0; h < 4; ++h) {
                const double mean = static_cast<double>(i) / 2;
                EXPECT_NEAR(got.out(i, h, 2), kept(i, h) * mean, b.out) << i << ' ' << h;
                EXPECT_NEAR(got.lse(i, h),
                            1 + std::log(static_cast<double>(i + 1)) - std::log(kept(i, h)), b.lse);
            }
    const BlockMass mass = runner_.block_mass(c.problem, o);
    for (int64_t r = 0; r < 2; ++r)  // query 19: 8 of 20 tokens
        EXPECT_NEAR(mass.mass(19, r, 0), 0.4 * (kept(19, 2 * r) + kept(19, 2 * r + 1)) / 2, b.mass);
}

TEST_P(OwnAttention, ASinkAloneIsTheSum) {
    Problem p = square_problem(0, 4, 2, 16, 16, 8);
    p.batch = PackedBatch({0, 5}, {0, 3});
    Operands o = operands({"none", p, {}});
    o.sinks = sinks_of({-3, 2.5, 0, -kInfinity});
    for (const Attention& got : all(p, o))
        for (int64_t h = 0; h < 4; ++h) {
            EXPECT_EQ(got.lse(0, h), o.sinks(h));
            EXPECT_EQ(got.out(0, h, 4), 0.0F);
        }
}

TEST_P(OwnAttention, NanSinksSpoilTheirHeadsAndSinksOfMinusInfinityNone) {
    Problem p = square_problem(0, 4, 2, 16, 16, 8);
    p.batch = PackedBatch({0, 20}, {0, 18});  // two queries see no key
    Operands o = operands({"nan", p, {}});
    const std::vector<Attention> plain = all(p, o);
    const IndexKl plain_kl = runner_.index_kl(p, o, {});
    o.sinks = sinks_of({-kInfinity, std::nanf(""), -kInfinity, -kInfinity});
    const std::vector<Attention> got = all(p, o);
    for (size_t n = 0; n < got.size(); ++n)
        for (int64_t i = 0; i < 20; ++i)
            for (int64_t h = 0; h < 4; ++h) {
                EXPECT_EQ(std::isnan(got[n].lse(i, h)), h == 1);
                EXPECT_EQ(std::isnan(got[n].out(i, h, 9)), h == 1);
                if (h == 1) continue;
                EXPECT_EQ(got[n].lse(i, h), plain[n].lse(i, h));
                EXPECT_EQ(got[n].out(i, h, 9), plain[n].out(i, h, 9));
            }
    const BlockMass mass = runner_.block_mass(p, o);
    EXPECT_TRUE(std::isnan(mass.mass(19, 0, 0)));
    EXPECT_FALSE(std::isnan(mass.mass(19, 1, 0)));
    const IndexKl kl = runner_.index_kl(p, o, {});
    EXPECT_TRUE(std::isnan(kl.kl(19, 0)));
    EXPECT_NEAR(kl.kl(19, 1), plain_kl.kl(19, 1), bounds(p, o).kl);
}

TEST_P(OwnAttention, TeachersCountByWhatTheirSinksLeave) {
    // Softmax (1/4, 3/4) of sum 4 and (1/2, 1/2) of sum 2. The sinks leave 1/2 and 1/4 of them: the
    // mean weighs them 2 : 1 and is (1/3, 2/3), the maximum (1/8, 3/8) over its sum.
    Problem p = square_problem(2, 2, 1, 16, 16, 8);
    p.softmax_scale_override = std::log(3.0);
    p.index_scale_override = 1.0;
    const Case c{"two", p, {}};
    Operands o = operands(c);
    for (Tensor<float, 3>* t : {&o.q, &o.k, &o.index_q}) std::fill_n(t->data(), t->size(), 0.0F);
    std::fill_n(o.index_k.data(), o.index_k.size(), 0.0F);
    o.q(1, 0, 0) = o.k(1, 0, 0) = 1;
    o.sinks = sinks_of({std::log(4.0F), std::log(6.0F)});
    for (Teacher teacher : {Teacher::mean, Teacher::max}) {
        const IndexKlRequest request{.element = GetParam().element, .teacher = teacher};
        if (!runner_.backend().supports(p, request).yes) continue;
        const double first = teacher == Teacher::mean ? 1.0 / 3 : 1.0 / 4, second = 1 - first;
        EXPECT_NEAR(runner_.index_kl(p, o, {}, teacher).kl(1, 0),
                    first * std::log(2 * first) + second * std::log(2 * second),
                    bounds(p, o, teacher).kl);
    }
}

TEST_P(OwnAttention, ARowWhoseWindowShowsNothingOfItsSupportTeachesNothing) {
    Problem p = square_problem(40, 4, 2, 16, 16, 8);
    p.window = 4;
    const Operands o = operands({"outside", p, {}});
    Tensor<int32_t, 3> ids({40, 2, 1});  // block 0: queries from 11 on do not attend to it
    Runner truth = reference();
    for (LoopOrder order : orders_of(runner_, p, 1)) {
        const Attention sparse = runner_.sparse_attention(p, o, ids, order);
        EXPECT_TRUE(matches(sparse, truth.sparse_attention(p, o, ids), bounds(p, o)))
            << to_string(order);
        for (int64_t i = 11; i < 40; ++i) {
            EXPECT_EQ(sparse.lse(i, 0), -kInfinity) << to_string(order);
            EXPECT_EQ(sparse.out(i, 0, 0), 0.0F) << to_string(order);
        }
    }
    for (Teacher teacher : {Teacher::mean, Teacher::max}) {
        const IndexKlRequest request{.element = GetParam().element, .teacher = teacher};
        if (!runner_.backend().supports(p, request).yes) continue;
        const IndexKl got = runner_.index_kl(p, o, ids, teacher);
        EXPECT_TRUE(matches(got, truth.index_kl(p, o, ids, teacher), bounds(p, o, teacher)));
        for (int64_t i = 11; i < 40; ++i) {
            EXPECT_EQ(got.kl(i, 1), 0);
            EXPECT_EQ(got.d_index_q(i, 1, 3), 0.0F);
        }
        EXPECT_GT(got.kl(9, 1), 0);
    }
}

/// Pages of which the first ones must not be touched.
class GuardedPages {
public:
    GuardedPages(size_t bytes, size_t guarded) : bytes_(bytes) {
        memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory_ == MAP_FAILED || mprotect(memory_, guarded, PROT_NONE) != 0)
            throw std::runtime_error("cannot map memory");
    }
    ~GuardedPages() { munmap(memory_, bytes_); }
    GuardedPages(const GuardedPages&) = delete;
    GuardedPages& operator=(const GuardedPages&) = delete;
    float* data() const { return static_cast<float*>(memory_); }

private:
    size_t bytes_;
    void* memory_;
};

TEST(OwnAttentionOnHost, AWindowCostsAWindow) {
    // A read of keys or values more than a step of 128 before the window ends the program.
    Problem p = square_problem(0, 2, 1, 16, 16, 8);
    constexpr int64_t kKeys = 1 << 15, kToken = 16 * int64_t{sizeof(float)}, kNeeded = 512;
    p.batch = PackedBatch({0, 20}, {0, kKeys});
    p.window = 200;
    const GuardedPages pages(kKeys * kToken, (kKeys - kNeeded) * kToken);
    const View<const float, 3> keys(pages.data(), {kKeys, 1, 16});
    const Tensor<float, 3> q({20, 2, 16});
    Tensor<float, 3> out({20, 2, 16}), mass({20, 1, p.blocks()}), top({20, 1, p.blocks()});
    Tensor<float, 2> lse({20, 2});
    Runner cpu({"cpu"});
    cpu.backend().dense_attention(p, {q, keys, keys}, {out, lse});
    cpu.backend().block_mass(p, {q, keys}, {mass, top});
    EXPECT_NEAR(lse(3, 1), std::log(200.0), lse_bound(0, 200, 6));
    EXPECT_NEAR(mass(19, 0, p.blocks() - 1), 8.0 / 200, mass_bound(0, 200));
}

TEST_P(OwnAttention, SelectionSeesEveryCausalBlock) {
    const Case c{"ids", square_problem(90, 4, 2, 16, 16, 8), {.top_k = 3}};
    const Operands o = operands(c);
    Problem windowed = c.problem;
    windowed.window = 5;
    windowed.softcap = 1.5;
    EXPECT_TRUE(identical(runner_.index_scores(windowed, o), runner_.index_scores(c.problem, o)));
    EXPECT_TRUE(identical(runner_.index_select(windowed, c.rule, o),
                          runner_.index_select(c.problem, c.rule, o)));
}

TEST_P(OwnAttention, GradientsRefuseThemByName) {
    Problem p = square_problem(8, 4, 2, 16, 16, 8);
    const Tensor<float, 3> host({8, 4, 16}), host_k({8, 2, 16});
    Backend& backend = runner_.backend();
    const Tensor<float, 3> q = backend.upload(host.view()), k = backend.upload(host_k.view());
    const Tensor<float, 2> lse = backend.make<float, 2>({8, 4});
    Tensor<float, 3> d_q = backend.make<float, 3>({8, 4, 16}),
                     d_k = backend.make<float, 3>({8, 2, 16}),
                     d_v = backend.make<float, 3>({8, 2, 16});
    const auto said = [&]() -> std::string {
        try {
            backend.dense_attention_grad(p, {q, k, k}, {q, lse.view(), q}, {d_q, d_k, d_v});
        } catch (const UnsupportedError& error) {
            return error.what();
        }
        return "";
    };
    p.window = 5;
    EXPECT_NE(said().find("dense_attention_grad: it takes no window, which is 5"),
              std::string::npos)
        << said();
    p.window.reset();
    p.softcap = 30.0;
    EXPECT_NE(said().find("dense_attention_grad: it takes no soft cap, which is 30"),
              std::string::npos)
        << said();
}

TEST_P(OwnAttention, BadValuesAreNamed) {
    Problem p = square_problem(8, 4, 2, 16, 16, 8);
    Operands o = operands({"bad", p, {}});
    const auto said = [&] { return refusal([&] { runner_.dense_attention(p, o); }); };
    p.window = 0;
    EXPECT_EQ(said(), "window is 0, must be at least 1");
    p.window.reset();
    p.softcap = -1.0;
    EXPECT_EQ(said(), "softcap is -1, must be finite and positive");
    p.softcap.reset();
    o.sinks = sinks_of({1, 2, 3});
    EXPECT_EQ(said(), "sinks has shape [3], must be [Hq] = [4]");
}

}  // namespace
}  // namespace msa::test
