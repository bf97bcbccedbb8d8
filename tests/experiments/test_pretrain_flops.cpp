// SPDX-License-Identifier: MIT
// The FLOPs of a step against sums written out by hand, and which peak they are held against.
#include "core/registry.h"
#include "experiments/pretrain/model_flops.h"
#include "tests/experiments/pretrain_test.h"

namespace msa::test {
namespace {

using experiments::pretrain::peak_of;
using experiments::pretrain::step_flops;

// 2 layers, D 32, F 48, 4 heads in 2 groups of 16 channels, didx 16, blocks of 8 and k = 2.
constexpr double kTokens = 24, kPairs = 24 * 25 / 2.0;
constexpr double kProjections = 32 * 64 + 2 * 32 * 32 + 64 * 32, kFeedForward = 3 * 32 * 48;
constexpr double kOutput = 32 * 256, kIndex = 32 * 32 + 32 * 16;
constexpr double kKept = 16 * 17 / 2.0 + 8 * 8 + 8 * 9 / 2.0;  // of k = 2

train::ModelConfig config_of(train::Attention kind) {
    train::ModelConfig config;
    config.sizes = {.layers = 2,
                    .model_dim = 32,
                    .hidden_dim = 48,
                    .query_heads = 4,
                    .kv_heads = 2,
                    .head_dim = 16,
                    .max_positions = 24,
                    .index_dim = 16};
    config.attention = {kind};
    config.msa = {.block_size = 8, .rule = {.top_k = 2}};
    return config;
}

double flops(const train::ModelConfig& config, bool sparse) {
    const train::Model model(config, train::make_cpu_ops(make_backend("cpu")), 1);
    return step_flops(model.config(), model.parameters(), PackedBatch({0, 24}, {0, 24}), sparse);
}

double products(double weights_of_a_layer) {
    return 6 * kTokens * (2 * weights_of_a_layer + kOutput);
}

TEST(StepFlops, OfDenseAttentionAndAWindow) {
    const double weights = products(kProjections + kFeedForward);
    EXPECT_EQ(flops(config_of(train::Attention::full), true), weights + 2 * 12.0 * 4 * 16 * kPairs);
    // A query sees 16 keys at most.
    EXPECT_EQ(flops(config_of(train::Attention::window), true),
              weights + 2 * 12.0 * 4 * 16 * (16 * 17 / 2.0 + 8 * 16));
}

TEST(StepFlops, OfMsaBeforeAndAfterTheWarmUp) {
    train::ModelConfig config = config_of(train::Attention::msa);
    const double weights = products(kProjections + kFeedForward + kIndex);
    const auto layer = [](double pairs) {  // attention and the two gradients of the scores
        return (12.0 * 4 * 16 + 4.0 * 16 * 2) * pairs;
    };
    const double scores = 2.0 * 2 * 16 * kPairs;
    EXPECT_EQ(flops(config, false), weights + 2 * (layer(kPairs) + scores));
    EXPECT_EQ(flops(config, true), weights + 2 * (layer(kKept) + scores));
    config.msa.kl_full_support = true;  // the teacher's logits of all keys, and their gradients
    EXPECT_EQ(flops(config, true), weights + 2 * (12.0 * 4 * 16 * kKept +
                                                  (2.0 * 4 * 16 + 4.0 * 16 * 2) * kPairs + scores));
    config.msa.value_head = true;  // its weights, and attention of two heads
    config.msa.kl = false;
    EXPECT_EQ(flops(config, true),
              products(kProjections + kFeedForward + kIndex + 32 * 16 + 32 * 32) +
                  2 * (12.0 * (4 * 16 + 2 * 16) * kKept + scores));
}

TEST(PeakOf, IsThatOfTheChipInTheElement) {
    EXPECT_EQ(peak_of(Space::device, "NVIDIA H200, 132 SMs", Element::bf16).flops_per_second,
              989.4e12);
    EXPECT_EQ(peak_of(Space::device, "NVIDIA H200, 132 SMs", Element::bf16).words,
              "989.4 TFLOP/s in bf16, NVIDIA H200 SXM 141GB");
    EXPECT_EQ(peak_of(Space::host, "h200", Element::f32).flops_per_second, 0);
    const auto unknown = peak_of(Space::device, "Abacus 9000, 1 SM", Element::bf16);
    EXPECT_EQ(unknown.flops_per_second, 0);
    EXPECT_EQ(unknown.words, "data/hardware has no table of Abacus 9000");
}

TEST_F(Pretrain, SaysWhyThereIsNoMfu) {
    text_file("a.txt");
    const Outcome outcome = run("out");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const nlohmann::json all = row_of(summary("out"), "trained");
    EXPECT_TRUE(all["mfu"].is_null());
    EXPECT_EQ(all["peak"], "the peak of a processor is not known");
    EXPECT_NE(outcome.out.find("model FLOPs utilization: none, the peak of a processor"),
              std::string::npos);
    EXPECT_EQ(file_text(path("out/curves.csv")).find(",mfu,"), std::string::npos);
    // Steps of a resumed run count, too.
    ASSERT_EQ(stop_at_work({"--steps", "40000", "--eval-every", "0", "--probe-every", "0"}), 130);
    const io::ResultsReader kept(path("out/checkpoint.h5"));
    const double steps = kept.number("/state", "step");
    EXPECT_GT(kept.number("/state", "flops"),
              0.5 * steps * 128 * all["flops_per_token"].get<double>());
}

}  // namespace
}  // namespace msa::test
