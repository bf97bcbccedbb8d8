// SPDX-License-Identifier: MIT
// A step's sequences, dealt out to workers that train together.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/train/tolerance.h"
#include "tests/train/nano.h"

namespace msa::train {

inline constexpr int kSequences = 6;

/// Sequences [first, first + count) of a step, each `scale` times 20 to 60 tokens long, in memory
/// of a backend. The last one has no target.
class Share {
public:
    Share(Backend& backend, int first, int count, int64_t scale = 1) {
        std::vector<int64_t> cu{0};
        for (int s = first; s < first + count; ++s) cu.push_back(cu.back() + scale * length(s));
        layout_ = PackedBatch(cu, cu);
        std::vector<int32_t> tokens;
        for (int s = first; s < first + count; ++s)
            for (int64_t i = 0; i < scale * length(s); ++i)
                tokens.push_back(static_cast<int32_t>(mix(kSeed, s, i) % 29));
        std::vector<int32_t> targets = next_tokens(tokens, layout_);
        if (first + count == kSequences)
            std::fill(targets.end() - scale * length(kSequences - 1), targets.end(),
                      Ops::kNoTarget);
        const auto upload = [&](const std::vector<int32_t>& list) {
            return backend.upload(View<const int32_t, 1>(list.data(), {std::ssize(list)}));
        };
        tokens_ = upload(tokens);
        targets_ = upload(targets);
        positions_ = upload(token_positions(layout_));
    }
    Batch batch() const { return {layout_, tokens_, targets_, positions_}; }

private:
    static int64_t length(int sequence) { return 20 + 8 * sequence; }
    PackedBatch layout_;
    Tensor<int32_t, 1> tokens_, targets_, positions_;
};

/// What a run leaves.
struct Trained {
    std::vector<StepReport> reports;             // of every step
    std::vector<float> first_gradient, weights;  // of the first step, after the last one
};

using MakeModel = std::function<Model(int worker)>;

/// The steps of one worker among `workers`.
inline Trained train_share(const parallel::Group& workers, Model model, const TrainingOptions& o,
                           int64_t scale = 1) {
    Trainer trainer(model, o, workers);
    trainer.broadcast_state();
    const int count = kSequences / workers.size();
    const Share share(model.ops().backend(), workers.rank() * count, count, scale);
    Trained trained;
    while (trainer.step() < o.steps) {
        trained.reports.push_back(trainer.gradient(share.batch()));
        if (trainer.step() == 0)
            trained.first_gradient = on_host(model, std::as_const(model.weights()).gradient());
        trainer.update(trained.reports.back());
    }
    trained.weights = values_of(model);
    return trained;
}

/// Of every worker.
inline std::vector<Trained> train_together(int count, const MakeModel& make_model,
                                           const TrainingOptions& o, int64_t scale = 1) {
    std::vector<Trained> all(static_cast<size_t>(count));
    parallel::run_group(count, [&](const parallel::Group& workers) {
        all[static_cast<size_t>(workers.rank())] =
            train_share(workers, make_model(workers.rank()), o, scale);
    });
    return all;
}

/// How far two runs are from each other: shares of the losses, of the first KL losses, and of the
/// norms of the parameters' first gradients.
struct Distance {
    double loss = 0, kl = 0, gradient = 0;
};
inline Distance distance(const ParameterList& parameters, const Trained& a, const Trained& b) {
    Distance worst;
    EXPECT_EQ(a.reports.size(), b.reports.size());
    for (size_t step = 0; step < a.reports.size(); ++step) {
        const Losses &of_a = a.reports[step].losses, &of_b = b.reports[step].losses;
        worst.loss = std::max(worst.loss, std::fabs(of_a.lm / of_b.lm - 1));
        EXPECT_EQ(of_a.kl.size(), of_b.kl.size());
        for (size_t layer = 0; layer < of_a.kl.size() && step == 0; ++layer)
            if (of_b.kl[layer] > 0)
                worst.kl = std::max(worst.kl, std::fabs(of_a.kl[layer] / of_b.kl[layer] - 1));
    }
    for (const Parameter& p : parameters.all()) {
        double off = 0, size = 0;
        for (auto i = static_cast<size_t>(p.offset); i < static_cast<size_t>(p.offset + p.size());
             ++i) {
            off += std::pow(double{a.first_gradient[i]} - double{b.first_gradient[i]}, 2);
            size += std::pow(double{b.first_gradient[i]}, 2);
        }
        if (size > 0) worst.gradient = std::max(worst.gradient, std::sqrt(off / size));
    }
    return worst;
}

}  // namespace msa::train
