// SPDX-License-Identifier: MIT
// What msa-precision simulates against what computes it otherwise: msa-analyze, which rounds
// operands on their way in, the reference on the stored cache, and on every backend the kernels
// that have a format themselves.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/selection.h"
#include "core/tolerance.h"
#include "experiments/driver/operands.h"
#include "experiments/precision/layer.h"
#include "tests/experiments/broken_backend.h"
#include "tests/experiments/precision_test.h"
#include "tests/experiments/report_of.h"
#include "tests/support/compare.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

using experiments::precision::select_element;
using experiments::precision::select_ids;
using io::Field;
using nlohmann::json;

std::vector<std::string> backends_and_broken() {
    register_broken_backend("nothing");  // cpu, which reads every format
    std::vector<std::string> names;
    for (const BackendInfo& info : known_backends()) names.push_back(info.name);
    return names;
}

/// Index operands of real values: the first query head of each group, at every 15th token, and the
/// first head of the keys.
struct RealIndex {
    Problem p;
    Tensor<float, 3> q, k;

    RealIndex() {
        const io::ActivationsReader file(std::string(MSA_SOURCE_DIR) + "/data/sample.h5");
        const io::LayerInfo& layer = file.info().layers.front();
        const Problem all = io::layer_problem(file.info(), layer, 32);
        std::vector<int64_t> tokens;
        for (int64_t i = 0; i < all.queries(); i += 15) tokens.push_back(i);
        p = all.with_query_rows(tokens);
        p.index_dim = p.head_dim;
        const auto first_heads = [&](Field field, int64_t heads) {
            const Tensor<float, 3> from = file.read(layer.layer, field, {0, all.keys()});
            Tensor<float, 3> to({from.extent(0), heads, p.index_dim});
            for (int64_t i = 0; i < to.extent(0); ++i)
                for (int64_t h = 0; h < heads; ++h)
                    std::copy_n(&from(i, h * from.extent(1) / heads, 0), p.index_dim, &to(i, h, 0));
            return to;
        };
        q = experiments::gather_rows(first_heads(Field::q, p.kv_heads).view(), tokens);
        k = first_heads(Field::k, 1);
    }
};

Tensor<float, 3> copy_of(const Tensor<float, 3>& values) {
    Tensor<float, 3> copy(values.shape());
    std::copy_n(values.data(), values.size(), copy.data());
    return copy;
}

Operands operands(const RealIndex& of) {
    Operands o;
    o.index_q = copy_of(of.q);
    o.index_k = Tensor<float, 2>({of.k.extent(0), of.k.extent(2)});
    std::copy_n(of.k.data(), of.k.size(), o.index_k.data());
    return o;
}

/// The share of the ids of one that the other lacks.
double missing(const Problem& p, const Tensor<int32_t, 3>& one, const Tensor<int32_t, 3>& other) {
    int64_t ids = 0, common = 0;
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const std::span<const int32_t> a = selected(one.view(), i, r),
                                           b = selected(other.view(), i, r);
            std::vector<int32_t> both;
            std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
            ids += std::ssize(a);
            common += std::ssize(both);
        }
    return static_cast<double>(ids - common) / static_cast<double>(ids);
}

Operands copy_of(const Operands& o) {
    const auto copied = []<int Rank>(const Tensor<float, Rank>& values) {
        Tensor<float, Rank> copy(values.shape());
        std::copy_n(values.data(), values.size(), copy.data());
        return copy;
    };
    return {copied(o.q), copied(o.k), copied(o.v), copied(o.index_q), copied(o.index_k)};
}

/// |got - want| / |want| over all queries of a head, mean over the heads.
double relative_error(const Tensor<float, 3>& got, const Tensor<float, 3>& want) {
    double sum = 0;
    for (int64_t h = 0; h < want.extent(1); ++h) {
        double difference = 0, norm = 0;
        for (int64_t i = 0; i < want.extent(0); ++i)
            for (int64_t d = 0; d < want.extent(2); ++d) {
                difference += std::pow(double{got(i, h, d)} - double{want(i, h, d)}, 2);
                norm += std::pow(double{want(i, h, d)}, 2);
            }
        sum += std::sqrt(difference / norm);
    }
    return sum / static_cast<double>(want.extent(1));
}

/// The mean over queries and groups of the mass of the blocks of ids.
double mean_mass(const Problem& p, const Tensor<float, 3>& mass, const Tensor<int32_t, 3>& ids) {
    double sum = 0;
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int32_t block : selected(ids.view(), i, r)) sum += double{mass(i, r, block)};
    return sum / static_cast<double>(p.queries() * p.kv_heads);
}

// The stored K and V, turned back where they were rotated, through the reference.
TEST_F(PrecisionRuns, TheCacheIsReadAsItIsStored) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 300, 512}, .layers = {0}});
    const json all = summary(file, as_analyzed({"--all-rows", "--formats", "int4", "--scales",
                                                "token", "--error", "1", "--keep", "0.9"}));
    const io::ActivationsReader reader(file);
    const Problem p = io::layer_problem(reader.info(), reader.layer(0), 8);
    const SelectionRule rule{.top_k = 4, .forced_local = 1, .forced_first = 0};
    const auto read = [&](Field field) { return reader.read(0, field, {0, 512}); };
    const Tensor<float, 3> index_k = read(Field::index_k);
    Operands full{read(Field::q), read(Field::k), read(Field::v), read(Field::index_q),
                  Tensor<float, 2>({512, p.index_dim})};
    std::copy_n(index_k.data(), index_k.size(), full.index_k.data());

    Runner reference({"reference"});
    const auto oracle = [&](const Operands& of) {
        return reference.select_blocks(p, rule, reference.block_mass(p, of).mass.view());
    };
    const Tensor<int32_t, 3> ids = reference.index_select(p, rule, full);
    const Tensor<float, 3> dense = reference.dense_attention(p, full).out,
                           sparse = reference.sparse_attention(p, full, ids.view()).out,
                           mass = reference.block_mass(p, full).mass;
    for (bool rotated : {false, true}) {
        const Precision precision{NumberFormat::int4, ScaleUnit::token, rotated};
        Operands stored = copy_of(full);
        for (Tensor<float, 3>* values : {&stored.k, &stored.v}) {
            store_as(precision, *values);
            if (rotated) rotate(*values);
        }
        const std::string name = to_string(precision);
        const json row = row_of(all, "cache", name);
        EXPECT_NEAR(mean_of(row, "dense_error"),
                    relative_error(reference.dense_attention(p, stored).out, dense), 1e-5)
            << name;
        EXPECT_NEAR(mean_of(row, "sparse_error"),
                    relative_error(reference.sparse_attention(p, stored, ids.view()).out, sparse),
                    1e-5)
            << name;
        const double kept = mean_mass(p, mass, oracle(stored));
        EXPECT_NEAR(mean_of(row, "mass_kept"), kept, 1e-5) << name;
        EXPECT_NEAR(mean_of(row, "mass_share"), kept / mean_mass(p, mass, oracle(full)), 1e-5);
        EXPECT_LT(mean_of(row, "mass_share"), 1) << name;
    }
}

// Where a file's index operands are rounded on their way in, msa-analyze selects by the same
// values.
TEST_F(PrecisionRuns, IdsAreThoseOfTheBackendsOwnFormats) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 300, 512}, .layers = {0}});
    const json all = summary(file, as_analyzed());
    const io::ActivationsReader reader(file);
    const io::LayerInfo& layer = reader.layer(0);
    const std::unique_ptr<Backend> cpu = make_backend("cpu", {.threads = 2});
    const Problem p = io::layer_problem(reader.info(), layer, 8);
    const SelectionRule rule{.top_k = 4, .forced_local = 1, .forced_first = 0};
    for (const auto& [name, format] : {std::pair{"e4m3", NumberFormat::float8_e4m3},
                                       {"bf16", NumberFormat::bfloat16},
                                       {"f16", NumberFormat::float16}}) {
        std::filesystem::remove_all(path("analyzed"));
        ASSERT_EQ(kAnalyze({file, "--out", path("analyzed"), "--block-size", "8", "--top-k", "4",
                            "--forced-first", "0", "--forced-local", "1", "--selectors", "index",
                            "--index-element", name})
                      .code,
                  0);
        const json analyzed = test::row_of(report_of(path("analyzed")), "selectors");
        const json row = row_of(all, "index", name);
        EXPECT_NEAR(mean_of(row, "mass_kept"), analyzed["mass_kept"].get<double>(), 1e-9) << name;
        EXPECT_NEAR(mean_of(row, "block_recall"), analyzed["block_recall"].get<double>(), 1e-9);
        EXPECT_NEAR(mean_of(row, "output_error"), analyzed["output_error"].get<double>(), 1e-9);

        Tensor<float, 3> q = reader.read(0, Field::index_q, {0, 512}),
                         k = reader.read(0, Field::index_k, {0, 512});
        store_as({format}, q);
        store_as({format}, k);
        const Tensor<int32_t, 3> ids = select_ids(*cpu, p, rule, std::as_const(q).view(),
                                                  std::as_const(k).view(), Element::f32);
        const io::ResultsReader results(path("analyzed/results.h5"));
        const auto theirs = results.read<int32_t, 3>("/select/index/0/ids");
        ASSERT_EQ(theirs.shape(), ids.shape());
        EXPECT_TRUE(std::equal(ids.data(), ids.data() + ids.size(), theirs.data())) << name;
    }
}

// A backend that has the formats itself reads them as they are stored, and selects the same.
TEST_F(PrecisionRuns, ABackendsOwnKernelsAgreeWithTheSimulation) {
    const std::string file = make("random.h5", {.cu_seqlens = {0, 300, 512}, .layers = {0}});
    const std::vector<std::string> some = as_analyzed({"--formats", "bf16,f16,e4m3,int8"});
    const json simulated = summary(file, some);
    register_broken_backend("nothing");
    std::vector<std::string> own = some;
    own.insert(own.end(), {"--backend", "broken"});
    const json answered = summary(file, own);
    for (const char* part : {"index", "cache"})
        ASSERT_EQ(rows_of_table(simulated, part).size(), rows_of_table(answered, part).size());
    for (size_t s = 0; s < rows_of_table(simulated, "index").size(); ++s) {
        json a = rows_of_table(simulated, "index")[s], b = rows_of_table(answered, "index")[s];
        const bool has = b["scale"] == "none";
        EXPECT_EQ(a["computed_in"], "f32") << a["precision"];
        EXPECT_EQ(b["computed_in"], has ? b["format"] : json("f32")) << a["precision"];
        for (const char* measure : {"precision_recall", "block_recall", "mass_kept", "mass_share"})
            EXPECT_EQ(a[measure], b[measure]) << a["precision"] << ' ' << measure;
        // The queries of this file are f32, which is all that a cache is attended to in.
        EXPECT_EQ(rows_of_table(answered, "cache")[s]["computed_in"], "f32");
    }
    EXPECT_NE(file_text(path("out/precision.txt")).find("int8: the values that the format holds"),
              std::string::npos);
}

// A cache is attended to in its own type where the queries have that type, too.
TEST_F(PrecisionRuns, ABackendsOwnKernelsReadACacheOfTheQueriesType) {
    const std::string file = path("bf16.h5");
    ASSERT_EQ(kSynth({"--out", file, "--tokens", "512", "--element", "bf16"}).code, 0);
    register_broken_backend("nothing");
    const json all = summary(file, as_analyzed({"--formats", "f32,bf16,f16,e4m3", "--scales",
                                                "none", "--backend", "broken"}));
    for (const json& row : rows_of_table(all, "cache"))
        EXPECT_EQ(row["computed_in"], row["precision"] == "bf16" ? "bf16" : "f32") << row;
    // What is left is the rounding of the output.
    EXPECT_GT(mean_of(row_of(all, "cache", "bf16"), "dense_error"), 0);
    EXPECT_LT(mean_of(row_of(all, "cache", "bf16"), "dense_error"), 0x1p-9);
}

class PrecisionOnBackends : public testing::TestWithParam<std::string> {};

TEST_P(PrecisionOnBackends, KernelsSelectByTheSimulatedValues) {
    register_broken_backend("nothing");
    MSA_SKIP_UNLESS_USABLE(GetParam());
    const std::unique_ptr<Backend> backend = make_backend(GetParam(), {.threads = 2});
    Runner reference({"reference"});
    const SelectionRule rule{.top_k = 8};
    for (NumberFormat format :
         {NumberFormat::bfloat16, NumberFormat::float16, NumberFormat::float8_e4m3})
        for (bool rotated : {false, true}) {
            const Precision precision{.format = format, .rotated = rotated};
            const std::string name = GetParam() + ' ' + to_string(precision);
            RealIndex full, stored;
            const Problem& p = full.p;
            for (Tensor<float, 3>* values : {&full.q, &full.k})
                if (rotated) rotate(*values);
            store_as(precision, stored.q);
            store_as(precision, stored.k);
            const Operands simulated = operands(stored);

            const Element own = *element_of(format);
            const bool has = backend->supports(p, IndexSelectRequest{own, rule.top_k}).yes;
            const Element element = select_element(*backend, p, precision, rule.top_k);
            EXPECT_EQ(element, has ? own : Element::f32) << name;
            const RealIndex& given = has ? full : stored;
            const Tensor<int32_t, 3> ids = experiments::fetch(
                *backend, select_ids(*backend, p, rule, given.q.view(), given.k.view(), element));

            const double q_norm = largest_norm<3>(simulated.index_q),
                         k_norm = largest_norm<2>(simulated.index_k);
            const double bound =
                element == Element::e4m3 && backend->space() == Space::device
                    ? e4m3_logit_bound(p.index_scale(), q_norm, k_norm, p.index_dim)
                    : logit_bound(p.index_scale(), q_norm, k_norm, p.index_dim);
            EXPECT_TRUE(selection_follows(p, rule, reference.index_scores(p, simulated).view(),
                                          ids.view(), bound))
                << name;
            // The bound is that of the worst case. Sums that are off change far fewer ids than
            // values that are rounded.
            const Tensor<int32_t, 3> want = reference.index_select(p, rule, simulated);
            const double rounding =
                missing(p, want, reference.index_select(p, rule, operands(full)));
            RecordProperty(name,
                           concat(missing(p, want, ids), " of the ids, by rounding ", rounding));
            EXPECT_LE(missing(p, want, ids), rounding / 4) << name;
            if (format == NumberFormat::float8_e4m3) {
                EXPECT_GT(rounding, 0.01) << name;
            }
        }
}

INSTANTIATE_TEST_SUITE_P(All, PrecisionOnBackends, testing::ValuesIn(backends_and_broken()),
                         [](const auto& test) { return identifier(test.param); });

}  // namespace
}  // namespace msa::test
