// SPDX-License-Identifier: MIT
#include "tests/experiments/fit_test.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/indexer/projection.h"
#include "core/io/results.h"
#include "tests/experiments/report_of.h"
#include "tests/support/random.h"

namespace msa::test {

std::vector<std::string> Fit::args(std::vector<std::string> all, const std::string& out,
                                   const std::vector<std::string>& more) const {
    const std::vector<std::pair<std::string, std::string>> defaults{
        {"--out", path(out)},         {"--block-size", "8"}, {"--top-k", "4"},
        {"--index-dim", "16"},        {"--steps", "12"},     {"--warmup-steps", "6"},
        {"--queries-per-step", "32"}, {"--eval-every", "5"}, {"--threads", "1"}};
    for (const auto& [option, value] : defaults)
        if (std::find(more.begin(), more.end(), option) == more.end())
            all.insert(all.end(), {option, value});
    all.insert(all.end(), more.begin(), more.end());
    return all;
}

/// From the sizes of one step: its queries with the most keys, and the vectors that came out.
FitBounds Fit::bounds_of(const std::string& out, const Linear& spec, Teacher teacher,
                         double steps) const {
    constexpr int64_t kQueries = 32, kIndexDim = 16;
    constexpr double kLargestX = 6;  // of whitened ones: as normals of variance 1
    const io::ActivationsReader indexer(path(out + "/indexer.h5"));
    const int64_t tokens = indexer.info().tokens();
    Problem p = io::layer_problem(indexer.info(), indexer.info().layers[0], 8);
    const auto read = [&](io::Field field) {
        return indexer.read(spec.layers[0], field, {0, tokens});
    };
    const Tensor<float, 3> keys = read(io::Field::index_k);
    Operands all{read(io::Field::q), read(io::Field::k), read(io::Field::v),
                 read(io::Field::index_q), Tensor<float, 2>({tokens, kIndexDim})};
    std::copy_n(keys.data(), keys.size(), all.index_k.data());
    const QueryRange last{tokens - kQueries, tokens};
    FitBounds of{bounds(p.with_queries(last), with_queries(all, last), teacher), 0, 0};
    of.gradient = fit_gradient_bound(of.step.d_index_q, of.step.d_index_k,
                                     static_cast<double>(kQueries * spec.kv_heads), kLargestX);
    of.loss = fit_loss_bound(of.step.kl, of.gradient,
                             static_cast<double>((spec.kv_heads + 1) * kIndexDim * spec.model_dim),
                             1e-4, steps);
    return of;
}

std::vector<double> Fit::curve(const std::string& out, const std::string& name) const {
    const Tensor<double, 1> values =
        io::ResultsReader(path(out + "/results.h5")).read<double, 1>("/fit/3/" + name);
    return {values.data(), values.data() + values.size()};
}

nlohmann::json Fit::row(const std::string& out) const {
    const nlohmann::json report = report_of(path(out));
    nlohmann::json row = row_of(report, "evaluations", {{"is_kept", true}});
    row.update(row_of(report, "layers", {{"layer", row["layer"]}}));
    return row;
}

Outcome FitArchitecture::fit(const std::string& file, const std::string& out,
                             std::vector<std::string> more) const {
    more.insert(more.end(), architecture_.begin(), architecture_.end());
    return run({file}, out, more);
}

nlohmann::json FitArchitecture::rows_of(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return selector_rows(nlohmann::json::parse(outcome.out));
}

void FitArchitecture::expect_every_block_selected_is_the_full_support() const {
    const std::string file = write("a.h5");
    ASSERT_EQ(fit(file, "full", {"--warmup-steps", "12", "--top-k", "24"}).code, 0);
    ASSERT_EQ(fit(file, "selected", {"--warmup-steps", "0", "--top-k", "24"}).code, 0);
    const std::vector<double> full = curve("full", "train/kl");
    const std::vector<double> selected = curve("selected", "train/kl");
    for (size_t n = 0; n < full.size(); ++n) EXPECT_NEAR(full[n], selected[n], 1e-5);
    ASSERT_EQ(fit(file, "fewer", {"--warmup-steps", "0"}).code, 0);
    EXPECT_GT(std::fabs(curve("fewer", "train/kl")[0] - full[0]), 1e-3);
}

void FitArchitecture::expect_threads_and_resume_change_no_bit(
    const std::vector<std::string>& options) const {
    const std::string file = write("a.h5");
    const auto with = [&](std::vector<std::string> more) {
        more.insert(more.end(), options.begin(), options.end());
        return more;
    };
    ASSERT_EQ(fit(file, "one", with({"--threads", "1"})).code, 0);
    ASSERT_EQ(fit(file, "three", with({"--threads", "3"})).code, 0);
    EXPECT_TRUE(same_results(path("one/results.h5"), path("three/results.h5")));
    std::vector<std::string> resume = options;
    resume.insert(resume.end(), architecture_.begin(), architecture_.end());
    int code = -1, interrupted = 0;
    for (int64_t delay = 30000; code != 0; delay += delay / 4) {
        code = run_for("msa-fit-indexer", args({file}, "parts", resume),
                       std::chrono::microseconds(delay), SIGINT);
        interrupted += std::filesystem::exists(path("parts/checkpoint-3.h5")) ? 1 : 0;
    }
    EXPECT_GT(interrupted, 0);
    EXPECT_TRUE(same_results(path("one/results.h5"), path("parts/results.h5")));
}

namespace {

/// Channels c and c + rotary/2 go to 2c and 2c + 1.
void interleave(View<float, 3> heads, int64_t rotary) {
    for (int64_t i = 0; i < heads.extent(0); ++i)
        for (int64_t h = 0; h < heads.extent(1); ++h) {
            const std::vector<float> split(&heads(i, h, 0), &heads(i, h, 0) + rotary);
            for (int64_t c = 0; c < rotary; ++c)
                heads(i, h, c) = split[static_cast<size_t>(c / 2 + c % 2 * (rotary / 2))];
        }
}

/// Of projections [heads * dh, d_model].
void make_loud(Tensor<float, 2>& w, const Linear& spec) {
    for (int64_t h = 0; h < w.extent(0); h += spec.head_dim)
        for (int64_t half : {0, 1})
            for (float& value :
                 std::span(w.view()[h + spec.loud_pair + half * spec.rotary_dim / 2].data(),
                           static_cast<size_t>(spec.model_dim)))
                value *= 3;
}

}  // namespace

std::string Fit::write(const std::string& name, const Linear& spec) const {
    io::ActivationsInfo info{"test", "{}", "msalab tests", spec.cu_seqlens, {}, false};
    for (int64_t number : spec.layers) {
        io::LayerInfo layer;
        layer.layer = number;
        layer.query_heads = spec.query_heads;
        layer.kv_heads = spec.kv_heads;
        layer.head_dim = spec.head_dim;
        layer.model_dim = spec.with_x ? spec.model_dim : 0;
        layer.q_state = layer.k_state = spec.state;
        if (spec.rotary_dim > 0) {
            layer.rotary_dim = spec.rotary_dim;
            layer.rope_theta = 100;
            layer.rope_interleaved = spec.interleaved;
        }
        layer.softmax_scale = 0.1;  // of logits with a deviation of about 2.4
        layer.element = Element::f32;
        if (number == spec.window_of) layer.own_attention["sliding_window"] = {64};
        info.layers.push_back(layer);
    }
    std::vector<int64_t> positions;
    const Problem whole = io::layer_problem(info, info.layers[0], 8);
    for (const KeyRange& seen : visible_keys(whole)) positions.push_back(seen.count - 1);
    io::ActivationsWriter writer(path(name), info, true);
    for (const io::LayerInfo& layer : info.layers) {
        Tensor<float, 2> x = normal<2>({info.tokens(), spec.model_dim}, spec.stream);
        for (int64_t i = 0; spec.constant && i < info.tokens(); ++i) x(i, 0) = 1;
        for (io::Field field : {io::Field::q, io::Field::k, io::Field::v}) {
            const int64_t heads = layer.heads(field);
            const auto stream = static_cast<uint64_t>(1000 * (spec.alike ? 4 : layer.layer + 1)) +
                                static_cast<uint64_t>(field);
            Tensor<float, 2> w = normal<2>({heads * spec.head_dim, spec.model_dim}, stream, 0.5F);
            if (spec.loud_pair >= 0 && field != io::Field::v) make_loud(w, spec);
            Tensor<float, 3> values = project(x, w, heads);
            if (field != io::Field::v && spec.rotary_dim > 0)
                apply_rope(values, positions, spec.rotary_dim, 100);
            if (field != io::Field::v && spec.interleaved) interleave(values, spec.rotary_dim);
            writer.write(layer.layer, field, 0, 0, values);
        }
        if (spec.with_x)
            writer.write(layer.layer, io::Field::x, 0, 0,
                         View<const float, 3>(x.data(), {x.extent(0), 1, x.extent(1)}));
    }
    writer.finish();
    return path(name);
}

}  // namespace msa::test
