// SPDX-License-Identifier: MIT
// msa-precision --indexer against weights and products that are rounded here, by hand.
#include <algorithm>
#include <cmath>
#include <iterator>

#include "core/indexer/projection.h"
#include "core/io/results.h"
#include "core/selection.h"
#include "experiments/fit/state.h"
#include "experiments/precision/layer.h"
#include "tests/experiments/fit_test.h"
#include "tests/experiments/report_of.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

using io::Field;
using nlohmann::json;

/// A binary format: bits of its fraction, and the exponent of its least normal number.
struct Format {
    const char* name;
    int fraction, least;
};
constexpr Format kHalf{"f16", 10, -14}, kBfloat{"bf16", 7, -126}, kQuarter{"e5m2", 2, -14};

/// To the nearest, ties to even.
void round_to(const Format& format, float* values, int64_t count) {
    for (int64_t n = 0; n < count; ++n) {
        if (values[n] == 0) continue;
        const int step = std::max(std::ilogb(values[n]), format.least) - format.fraction;
        values[n] = std::ldexp(std::nearbyint(std::ldexp(values[n], -step)), step);
    }
}

class PrecisionProjections : public Fit {
protected:
    static constexpr int64_t kBlock = 8, kTopK = 4;

    std::string fit() const {
        const Outcome outcome = run({file_}, "fit");
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return path("fit/results.h5");
    }
    Outcome precision(const std::string& file, std::vector<std::string> more = {}) const {
        more.insert(more.begin(), {file, "--out", path("out"), "--overwrite", "--sample-queries",
                                   "0", "--threads", "2", "--keep", "0.1", "--error", "9"});
        return kPrecision(more);
    }
    json summary(const std::string& file, const std::vector<std::string>& more) const {
        const Outcome outcome = precision(file, more);
        EXPECT_EQ(outcome.code, 0) << outcome.err;
        return json::parse(file_text(path("out/summary.json")));
    }
    /// ids of every query, with weights in a format, and with the product, too, if `product`;
    /// without a format in f32.
    Tensor<int32_t, 3> ids(const std::string& results, const Format* format, bool product) const {
        const io::ActivationsReader file(file_);
        IndexWeights weights = experiments::fit::read_weights(io::ResultsReader(results), 3);
        const IndexForm& form = weights.form();
        Problem p = io::layer_problem(file.info(), file.layer(3), kBlock);
        p.index_dim = form.index_dim;
        const Tensor<float, 3> x = file.read(3, Field::x, {0, p.keys()});
        std::vector<int64_t> positions;
        for (const KeyRange& keys : visible_keys(p)) positions.push_back(keys.count - 1);
        const auto heads = [&](View<float, 2> w, View<const float, 1> norm, int64_t count) {
            if (format != nullptr) round_to(*format, w.data(), w.size());
            Tensor<float, 3> made({p.keys(), count, form.index_dim});
            for (int64_t i = 0; i < p.keys(); ++i)
                for (int64_t row = 0; row < w.extent(0); ++row) {
                    double sum = 0;
                    for (int64_t c = 0; c < w.extent(1); ++c)
                        sum += double{x(i, 0, c)} * double{w(row, c)};
                    made(i, row / form.index_dim, row % form.index_dim) = static_cast<float>(sum);
                }
            if (product) round_to(*format, made.data(), made.size());
            if (norm) rms_norm(made, norm, IndexForm::kNormEpsilon, 0);
            if (form.rope_frequencies.empty())
                apply_rope(made, positions, form.rotary_dim, form.rope_theta);
            else
                apply_rope(made, positions, form.rope_frequencies);
            return made;
        };
        const Tensor<float, 3> q = heads(weights.w_q(), weights.norm_q(), form.groups),
                               k = heads(weights.w_k(), weights.norm_k(), 1);
        const std::unique_ptr<Backend> reference = make_backend("reference");
        return experiments::precision::select_ids(*reference, p, {.top_k = kTopK}, q.view(),
                                                  k.view(), Element::f32);
    }
    /// Mean share of the ids that `other` has, too, over queries with more than k visible blocks.
    double common(const Tensor<int32_t, 3>& one, const Tensor<int32_t, 3>& other) const {
        const io::ActivationsReader file(file_);
        const Problem p = io::layer_problem(file.info(), file.layer(3), kBlock);
        const std::vector<KeyRange> seen = visible_keys(p);
        int64_t both = 0, all = 0;
        for (int64_t i = 0; i < p.queries(); ++i) {
            if (seen[static_cast<size_t>(i)].count <= kTopK * kBlock) continue;
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                const std::span<const int32_t> a = selected(one.view(), i, r),
                                               b = selected(other.view(), i, r);
                std::vector<int32_t> shared;
                std::ranges::set_intersection(a, b, std::back_inserter(shared));
                both += std::ssize(shared);
                all += std::ssize(a);
            }
        }
        return static_cast<double>(both) / static_cast<double>(all);
    }

    const std::string file_ = write("a.h5", {.cu_seqlens = {0, 300, 684}});
};

TEST_F(PrecisionProjections, IdsAreThoseOfWeightsAndProductsRoundedByHand) {
    for (const std::vector<std::string>& norm :
         {std::vector<std::string>{}, {"--index-norm", "rms"}}) {
        ASSERT_EQ(run({file_}, "fit", norm).code, 0);
        const std::string results = path("fit/results.h5");
        const json all = summary(file_, {"--indexer", results, "--formats", "f16,bf16,e5m2,int8"});
        const json& rows = rows_of_table(all, "projections");
        ASSERT_EQ(rows.size(), 7U);
        EXPECT_EQ(rows[0]["precision"], "f32");
        EXPECT_EQ(rows[0]["precision_recall"], 1.0);
        EXPECT_EQ(rows[0]["bits_per_weight"], 32);
        const Tensor<int32_t, 3> full = ids(results, nullptr, false);
        size_t row = 1;
        for (const Format* format : {&kHalf, &kBfloat, &kQuarter})
            for (bool product : {false, true}) {
                const json& of = rows[row++];
                EXPECT_EQ(of["format"], format->name);
                EXPECT_EQ(of["product"], product ? format->name : "f32");
                EXPECT_EQ(of["precision"],
                          concat(format->name, product ? ", rounded product" : ""));
                EXPECT_EQ(of["bits_per_weight"], format == &kQuarter ? 8 : 16);
                const double share = common(full, ids(results, format, product));
                EXPECT_NEAR(of["precision_recall"].get<double>(), share, 1e-12) << of["precision"];
                if (format != &kHalf) {
                    EXPECT_LT(share, 1) << of["precision"];
                }
            }
        // That a rounded product differs is seen.
        EXPECT_NE(rows[5]["precision_recall"], rows[6]["precision_recall"]);
        std::filesystem::remove_all(path("fit"));
    }
}

TEST_F(PrecisionProjections, OperandsAreThoseThatTheFitWrites) {
    const std::string results = fit();
    const std::vector<std::string> formats{"--formats", "bf16,int4", "--scales", "none,token"};
    std::vector<std::string> with = formats;
    with.insert(with.end(), {"--indexer", results});
    const json projected = summary(file_, with), stored = summary(path("fit/indexer.h5"), formats);
    EXPECT_EQ(projected["run"]["options"]["block_size"], kBlock);
    EXPECT_EQ(projected["run"]["options"]["top_k"], kTopK);
    for (const char* table : {"index", "cache", "index_layers", "cache_layers"})
        EXPECT_EQ(rows_of_table(projected, table), rows_of_table(stored, table)) << table;
    EXPECT_TRUE(rows_of_table(stored, "projections").empty());
    // No format without a scale is asked for.
    const json without = summary(file_, {"--indexer", results, "--formats", "int8"});
    EXPECT_TRUE(rows_of_table(without, "projections").empty());
}

TEST_F(PrecisionProjections, ThePageHasATableAndARecommendation) {
    const Outcome outcome = precision(file_, {"--indexer", fit(), "--formats", "bf16"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const char* words :
         {"index projections: w_q and w_k in the format", "\nbf16    bf16         16 ",
          "index projections, mass share and recall share of at least 0.1: bf16, "})
        EXPECT_NE(outcome.out.find(words), std::string::npos) << words << '\n' << outcome.out;
}

TEST_F(PrecisionProjections, Refusals) {
    const std::string results = fit();
    const auto refused = [&](const std::string& file, const std::vector<std::string>& more,
                             const std::string& why) {
        const Outcome outcome = precision(file, more);
        EXPECT_EQ(outcome.code, 2);
        EXPECT_NE(outcome.err.find(why), std::string::npos) << outcome.err;
    };
    refused(write("bare.h5", {.with_x = false}), {"--indexer", results},
            "bare.h5: /layers/3 has no x, which the Index Branch of");
    refused(file_, {"--indexer", results, "--layers", "4"}, "has no layer 4, must be one of: 3");
    refused(file_, {"--indexer", file_}, "must be 'msa-results'");
}

}  // namespace
}  // namespace msa::test
