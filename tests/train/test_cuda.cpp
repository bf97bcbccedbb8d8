// SPDX-License-Identifier: MIT
// Models that are trained on a GPU, beside the same ones on the host.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "core/error.h"
#include "core/train/tolerance.h"
#include "gpu/train/cuda_ops.h"
#include "tests/support/subjects.h"
#include "tests/train/shares.h"

namespace msa::train {
namespace {

/// A sample in memory of a backend.
class Placed {
public:
    Placed(Backend& backend, const Sample& sample)
        : layout_(sample.layout),
          tokens_(upload(backend, sample.tokens)),
          targets_(upload(backend, sample.targets)),
          positions_(upload(backend, sample.positions)) {}
    Batch batch() const { return {layout_, tokens_, targets_, positions_}; }

private:
    static Tensor<int32_t, 1> upload(Backend& backend, const std::vector<int32_t>& list) {
        return backend.upload(View<const int32_t, 1>(list.data(), {std::ssize(list)}));
    }
    PackedBatch layout_;
    Tensor<int32_t, 1> tokens_, targets_, positions_;
};

Model make_on_gpu(const ModelConfig& config, Element element, std::span<const float> start = {}) {
    return {config, make_cuda_ops(make_backend("cuda"), element), kSeed, start};
}

struct Arm {
    const char* name;
    ModelConfig config;
    Sample sample{};
};

/// Sizes that the tuned kernels take, in sequences of several blocks with a tail.
Arm tuned(const char* name, Attention attention, int64_t block_size = 64) {
    Arm arm{name, nano(attention)};
    train::ModelSizes& s = arm.config.sizes;
    s.model_dim = 128;
    s.hidden_dim = 192;
    s.query_heads = 8;
    s.head_dim = s.index_dim = 64;
    s.rotary_dim = s.index_rotary = 32;
    s.max_positions = 512;
    arm.config.msa.block_size = block_size;
    Sample& sample = arm.sample;
    sample.layout = PackedBatch({0, 450, 962}, {0, 450, 962});
    sample.positions = token_positions(sample.layout);
    sample.tokens.clear();
    for (int64_t i = 0; i < sample.layout.queries(); ++i)
        sample.tokens.push_back(static_cast<int32_t>(mix(kSeed, i) % 29));
    sample.targets = next_tokens(sample.tokens, sample.layout);
    return arm;
}

std::vector<Arm> arms() {
    std::vector<Arm> all{
        {"full", nano(Attention::full)},           {"msa", nano(Attention::msa)},
        {"window", nano(Attention::window)},       {"value_head", nano(Attention::msa)},
        {"full_support", nano(Attention::msa)},    tuned("tuned_full", Attention::full),
        tuned("tuned_msa", Attention::msa),        tuned("tuned_window", Attention::window),
        tuned("tuned_value_head", Attention::msa), tuned("tuned_blocks_of_32", Attention::msa, 32)};
    for (Arm& arm : all) {
        const std::string name = arm.name;
        MsaOptions& o = arm.config.msa;
        o.sink = name == "full" || name == "window" || name == "value_head" || name == "tuned_msa";
        o.value_head = name.find("value_head") != std::string::npos;
        o.detach = !o.value_head;
        o.kl_full_support = name == "full_support";
    }
    return all;
}

class OnGpu : public testing::TestWithParam<Arm> {
protected:
    void SetUp() override { MSA_SKIP_UNLESS_USABLE("cuda"); }

    /// Twenty steps, beside those of the host.
    static void expect_curve(Element element) {
        const ModelBounds bounds = model_bounds(element);
        const auto& [name, config, sample] = GetParam();
        const TrainingOptions o{.steps = 20, .warmup_steps = 4, .lr = 3e-3};
        Model host = make(config), gpu = make_on_gpu(config, element);
        Trainer on_host(host, o), on_gpu(gpu, o);
        const Placed there(gpu.ops().backend(), sample);
        double first = 0, last = 0, worst = 0;
        for (int64_t step = 0; step < o.steps; ++step) {
            const StepReport want = on_host.gradient(sample.batch()),
                             got = on_gpu.gradient(there.batch());
            worst = std::max(worst, std::fabs(got.losses.lm / want.losses.lm - 1));
            ASSERT_NEAR(got.losses.lm, want.losses.lm, bounds.loss * want.losses.lm) << step;
            ASSERT_TRUE(got.finite()) << step;
            ASSERT_EQ(got.losses.kl.size(), want.losses.kl.size());
            on_host.update(want);
            on_gpu.update(got);
            if (step == 0) first = want.losses.lm;
            last = want.losses.lm;
        }
        EXPECT_LT(last, first * (1 - 3 * bounds.loss));  // the curve is no straight line
        std::printf("%s %s: the loss falls from %.3f to %.3f, off by at most %.2e of it\n", name,
                    to_string(element), first, last, worst);
    }

    /// The gradient of the first step, parameter by parameter, where nothing is selected.
    static void expect_gradient(Element element) {
        const ModelBounds bounds = model_bounds(element);
        const auto& [name, config, sample] = GetParam();
        const std::vector<float> start = lively(config);
        Model host = make(config, start), gpu = make_on_gpu(config, element, start);
        const Placed there(gpu.ops().backend(), sample);
        for (Model* model : {&host, &gpu}) model->weights().clear_gradient();
        const bool sparse = config.attends(Attention::window);
        host.forward_backward(sample.batch(), sparse);
        gpu.forward_backward(there.batch(), sparse);
        const std::vector<float> want = on_host_gradient(host), got = on_host_gradient(gpu);
        double worst = 0;
        for (const Parameter& p : host.parameters().all()) {
            double off = 0, size = 0;
            for (auto i = static_cast<size_t>(p.offset);
                 i < static_cast<size_t>(p.offset + p.size()); ++i) {
                off += std::pow(double{got[i]} - double{want[i]}, 2);
                size += std::pow(double{want[i]}, 2);
            }
            ASSERT_GT(size, 0) << p.name;
            worst = std::max(worst, std::sqrt(off / size));
            EXPECT_LT(std::sqrt(off / size), bounds.gradient) << p.name;
        }
        std::printf("%s %s: gradients off by at most %.2e of their norms\n", name,
                    to_string(element), worst);
    }

    static std::vector<float> on_host_gradient(Model& model) {
        return on_host(model, std::as_const(model.weights()).gradient());
    }
};

INSTANTIATE_TEST_SUITE_P(Arms, OnGpu, testing::ValuesIn(arms()),
                         [](const auto& arm) { return std::string(arm.param.name); });

TEST_P(OnGpu, FloatHasTheCurveOfTheHost) { expect_curve(Element::f32); }
TEST_P(OnGpu, Bf16HasTheCurveOfTheHost) { expect_curve(Element::bf16); }
TEST_P(OnGpu, FloatHasTheGradientOfTheHost) { expect_gradient(Element::f32); }
TEST_P(OnGpu, Bf16HasTheGradientOfTheHost) { expect_gradient(Element::bf16); }

TEST_P(OnGpu, RerunsChangeNoBit) {
    const auto& [name, config, sample] = GetParam();
    const TrainingOptions o{.steps = 6, .warmup_steps = 3, .lr = 3e-3};
    std::vector<float> first;
    for (int run = 0; run < 2; ++run) {
        Model model = make_on_gpu(config, Element::bf16);
        Trainer trainer(model, o);
        const Placed there(model.ops().backend(), sample);
        for (int64_t step = 0; step < o.steps; ++step)
            trainer.update(trainer.gradient(there.batch()));
        if (run == 0)
            first = values_of(model);
        else
            EXPECT_EQ(values_of(model), first);
    }
    EXPECT_NE(first, make(config).parameters().start(kSeed));
}

/// The loss of every token on its own, as evaluations read it.
TEST_P(OnGpu, LossesOfTokensAreThoseOfTheHost) {
    const auto& [name, config, sample] = GetParam();
    Model host = make(config), gpu = make_on_gpu(config, Element::f32);
    const Placed there(gpu.ops().backend(), sample);
    const std::vector<float> want = on_host(host, host.forward(sample.batch(), false)),
                             got = on_host(gpu, gpu.forward(there.batch(), false));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << i;
}

/// Is there a second GPU, and what adds up over several?
Support two_gpus() {
    if (const Support sums = cuda_workers(); !sums.yes) return sums;
    try {
        make_backend("cuda", {.device = 1});
    } catch (const InputError& error) {
        return Support::no(error.what());
    }
    return {};
}

TEST(TwoGpus, HaveTheCurveOfOne) {
    MSA_SKIP_UNLESS_USABLE("cuda");
    if (const Support two = two_gpus(); !two.yes) GTEST_SKIP() << two.why_not;
    constexpr int64_t kScale = 8;  // sequences of 160 to 480 tokens
    const TrainingOptions o{.steps = 20, .warmup_steps = 4, .lr = 3e-3};
    for (Attention attention : {Attention::full, Attention::msa})
        for (Element element : {Element::f32, Element::bf16}) {
            const ModelConfig config = tuned("", attention).config;
            const std::vector<float> start = lively(config);
            const auto make_with = [&](std::span<const float> values) -> MakeModel {
                return [&, values](int worker) -> Model {
                    return {config,
                            make_cuda_ops(make_backend("cuda", {.device = worker}), element), kSeed,
                            values};
                };
            };
            const auto curves = [&](int workers) {
                return train_together(workers, make_with({}), o, kScale);
            };
            const auto gradient = [&](int workers) {  // well above roundings
                return train_together(workers, make_with(start), {.steps = 1, .warmup_steps = 1},
                                      kScale)
                    .front();
            };
            const Model names = make(config);
            const Trained one = curves(1).front();
            const std::vector<Trained> two = curves(2);
            const ModelBounds bounds = model_bounds(element);
            Distance off = distance(names.parameters(), two.front(), one);
            off.gradient = distance(names.parameters(), gradient(2), gradient(1)).gradient;
            EXPECT_LT(off.loss, bounds.loss);
            EXPECT_LT(off.gradient, bounds.gradient);
            EXPECT_LT(one.reports.back().losses.lm, 0.99 * one.reports.front().losses.lm);
            EXPECT_EQ(two[0].weights, two[1].weights);
            EXPECT_EQ(curves(2).front().weights, two[0].weights) << "reruns change no bit";
            std::printf("%s: losses of two GPUs off by at most %.1e of one's, gradients %.1e\n",
                        to_string(element), off.loss, off.gradient);
        }
}

TEST(TwoGpus, AddUpALongList) {
    MSA_SKIP_UNLESS_USABLE("cuda");
    if (const Support two = two_gpus(); !two.yes) GTEST_SKIP() << two.why_not;
    constexpr int64_t kValues = 13'900'001;  // as many as the pilot has parameters, and odd
    constexpr int kRounds = 20;
    double seconds = 0;
    parallel::run_group(2, [&](const parallel::Group& workers) {
        const std::unique_ptr<Ops> ops =
            make_cuda_ops(make_backend("cuda", {.device = workers.rank()}));
        std::vector<float> mine(kValues);
        for (int64_t i = 0; i < kValues; ++i)
            mine[static_cast<size_t>(i)] =
                static_cast<float>(i % 1000 + (workers.is_first() ? 0 : 2000));
        Tensor<float, 1> list = ops->backend().upload(View<const float, 1>(mine.data(), {kValues}));
        ops->sum_over(workers, list);
        const Tensor<float, 1> host = ops->backend().download(list.view());
        int64_t wrong = 0;
        for (int64_t i = 0; i < kValues; ++i)
            wrong += host(i) == static_cast<float>(2 * (i % 1000) + 2000) ? 0 : 1;
        EXPECT_EQ(wrong, 0) << workers.rank();
        ops->clear(list);
        workers.barrier();
        const auto begin = std::chrono::steady_clock::now();
        for (int round = 0; round < kRounds; ++round) ops->sum_over(workers, list);
        workers.barrier();
        if (workers.is_first())
            seconds =
                std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
    std::printf("56 MB of two GPUs are added up in %.0f us\n", 1e6 * seconds / kRounds);
}

/// A worker that fails while the other one waits for its GPU does not leave it waiting.
TEST(TwoGpus, AnErrorOfOneEndsBoth) {
    MSA_SKIP_UNLESS_USABLE("cuda");
    if (const Support two = two_gpus(); !two.yes) GTEST_SKIP() << two.why_not;
    const auto work = [](const parallel::Group& workers) {
        const std::unique_ptr<Ops> ops =
            make_cuda_ops(make_backend("cuda", {.device = workers.rank()}));
        Tensor<float, 1> values = ops->backend().make<float, 1>({1000});
        ops->sum_over(workers, values);
        if (workers.rank() == 1) throw InputError("it fails");
        ops->sum_over(workers, values);
    };
    EXPECT_THROW(parallel::run_group(2, work), InputError);
}

TEST(CudaTraining, SaysWhatComputesIt) {
    MSA_SKIP_UNLESS_USABLE("cuda");
    const std::unique_ptr<Ops> ops = make_cuda_ops(make_backend("cuda"));
    EXPECT_NE(ops->device().find("cuBLASLt"), std::string::npos) << ops->device();
    std::printf("%s\n", ops->device().c_str());
}

}  // namespace
}  // namespace msa::train
