// SPDX-License-Identifier: MIT
// Twenty steps of training beside PyTorch's: tests/goldens/train.h5, made by make_train.py in
// float64 from the same values and batches.
#include <gtest/gtest.h>

#include <cmath>

#include "core/registry.h"
#include "core/train/model.h"
#include "tests/support/golden.h"

namespace msa::train {
namespace {

using nlohmann::json;
using test::Golden;

Attention attention_named(const std::string& name) {
    if (name == "full") return Attention::full;
    return name == "window" ? Attention::window : Attention::msa;
}

class Torch : public testing::TestWithParam<const char*> {
protected:
    Golden golden_{"train.h5"};
    json config_ = golden_.config().at(GetParam());
    std::string arm_ = std::string("/arms/") + GetParam() + "/";

    ModelConfig config() const {
        const auto size = [&](const char* name) { return config_.at(name).get<int64_t>(); };
        const auto is = [&](const char* name) { return config_.at(name).get<bool>(); };
        ModelConfig c;
        c.sizes = {.vocabulary = size("vocabulary"),
                   .layers = size("layers"),
                   .model_dim = size("model_dim"),
                   .hidden_dim = size("hidden_dim"),
                   .query_heads = size("query_heads"),
                   .kv_heads = size("kv_heads"),
                   .head_dim = size("head_dim"),
                   .rotary_dim = size("rotary_dim"),
                   .rope_theta = config_.at("rope_theta"),
                   .max_positions = size("max_positions"),
                   .index_dim = size("index_dim"),
                   .index_rotary = size("index_rotary")};
        c.attention = {attention_named(config_.at("attention"))};
        c.msa = {.block_size = size("block_size"),
                 .rule = {.top_k = size("top_k")},
                 .sink = is("sink"),
                 .kl = is("kl"),
                 .kl_weight = config_.at("kl_weight"),
                 .value_head = is("value_head"),
                 .detach = is("detach"),
                 .detach_lm = is("detach"),
                 .kl_full_support = is("kl_full_support")};
        return c;
    }
    Tensor<float, 1> values(const std::string& group, const Parameter& p) const {
        if (p.rows == 1) return golden_.read<float, 1>(group + p.name);
        const Tensor<float, 2> matrix = golden_.read<float, 2>(group + p.name);
        EXPECT_EQ(matrix.shape(), (Shape<2>{p.rows, p.columns})) << p.name;
        Tensor<float, 1> list({p.size()});
        std::copy_n(matrix.data(), p.size(), list.data());
        return list;
    }
    /// The common start, for the parameters of `model`.
    std::vector<float> start(const ParameterList& list) const {
        std::vector<float> all(static_cast<size_t>(list.size()));
        for (const Parameter& p : list.all()) {
            const Tensor<float, 1> own = values("/start/", p);
            std::copy_n(own.data(), own.size(), all.begin() + p.offset);
        }
        return all;
    }
    static std::unique_ptr<Ops> ops() { return make_cpu_ops(make_backend("cpu", {.threads = 2})); }

    /// Every gradient of the first step, relative to its parameter's norm: float against double
    /// through 2 layers of at most 64 terms a sum.
    void expect_gradients(const Model& model, View<const float, 1> gradient) const {
        for (const Parameter& p : model.parameters().all()) {
            const Tensor<float, 1> want = values(arm_, p);
            double error = 0, norm = 0;
            for (int64_t i = 0; i < p.size(); ++i) {
                const double own{want(i)};
                error += std::pow(double{gradient(p.offset + i)} - own, 2);
                norm += own * own;
            }
            EXPECT_LE(std::sqrt(error), 2e-5 * std::sqrt(norm) + 1e-9) << p.name;
        }
    }
};

INSTANTIATE_TEST_SUITE_P(Arms, Torch,
                         testing::Values("full", "full_sink", "msa", "msa_warmup",
                                         "msa_full_support", "msa_sink", "lm_signal",
                                         "both_signals", "no_detach", "window", "window_sink"));

TEST_P(Torch, TrainsAlike) {
    Model names(config(), ops(), 0);
    Model model(config(), ops(), 0, start(names.parameters()));
    const Tensor<int64_t, 1> cu = golden_.read<int64_t, 1>("/cu_seqlens");
    const std::vector<int64_t> sequences(cu.data(), cu.data() + cu.size());
    const PackedBatch layout(sequences, sequences);
    const std::vector<int32_t> positions = token_positions(layout);
    const Tensor<int32_t, 2> tokens = golden_.read<int32_t, 2>("/tokens");
    const Tensor<double, 1> losses = golden_.read<double, 1>(arm_ + "losses");
    const Tensor<double, 1> want_norms = golden_.read<double, 1>(arm_ + "norms");
    const Tensor<double, 2> kl = golden_.read<double, 2>(arm_ + "kl");
    const AdamW rule{.beta2 = 0.95, .weight_decay = config_.at("decay")};
    for (int64_t step = 0; step < tokens.extent(0); ++step) {
        const View<const int32_t, 1> own = tokens.view()[step];
        const std::vector<int32_t> targets =
            next_tokens({own.data(), static_cast<size_t>(own.size())}, layout);
        const auto view = [](const std::vector<int32_t>& list) {
            return View<const int32_t, 1>(list.data(), {std::ssize(list)});
        };
        model.weights().clear_gradient();
        const Losses got = model.forward_backward({layout, own, view(targets), view(positions)},
                                                  step >= config_.at("warmup"));
        if (step == 0) expect_gradients(model, std::as_const(model.weights()).gradient());
        const Weights::Norms norms = model.weights().gradient_norms();
        EXPECT_NEAR(got.lm, losses(step), 1e-5) << step;
        EXPECT_NEAR(norms.all, want_norms(step), 1e-4 * want_norms(step)) << step;
        for (size_t layer = 0; layer < got.kl.size(); ++layer)
            EXPECT_NEAR(got.kl[layer], kl(step, static_cast<int64_t>(layer)), 1e-5) << step;
        model.weights().step(rule, step + 1, config_.at("rate"), norms,
                             {.norm = config_.at("clip"), .apart = false});
    }
}

}  // namespace
}  // namespace msa::train
