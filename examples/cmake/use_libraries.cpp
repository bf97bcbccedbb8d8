// SPDX-License-Identifier: MIT
// Uses each installed library once: the header is found, the call links, the answer is right.
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <vector>

#include "analysis/recall.h"
#include "core/io/activations.h"
#include "core/parallel/group.h"
#include "core/parallel/peer_copies.h"
#include "core/registry.h"
#include "gpu/cuda_backend.h"

namespace {

/// One token sees itself alone, so attention returns v, and lse is the scaled q . k.
bool core_answers() {
    const msa::Problem problem = msa::square_problem(1, 1, 1, 16, 0, 8);
    msa::Tensor<float, 3> q({1, 1, 16}), k({1, 1, 16}), v({1, 1, 16}), out({1, 1, 16});
    msa::Tensor<float, 2> lse({1, 1});
    for (int d = 0; d < 16; ++d) {
        q(0, 0, d) = 1;
        k(0, 0, d) = 1;
        v(0, 0, d) = 0.5F;
    }
    msa::make_backend("cpu")->dense_attention(problem, {q, k, v}, {out, lse});
    return std::abs(out(0, 0, 3) - 0.5F) < 1e-6F && std::abs(lse(0, 0) - 4) < 1e-5F;
}

bool io_answers() {
    try {
        msa::io::ActivationsReader("no-such-file.h5");
    } catch (const msa::InputError&) {
        return true;
    }
    return false;
}

/// Two workers add up what they have, in order.
bool train_answers() {
    float sums[2] = {1, 2};
    msa::parallel::run_group(2, [&](const msa::parallel::Group& worker) {
        worker.all_reduce(std::span(&sums[worker.rank()], 1));
    });
    return sums[0] == 3 && sums[1] == 3;
}

/// A rank reads what the other one has written: its own number.
bool parallel_answers() {
    float seen[2] = {};
    msa::parallel::run_group(2, [&](const msa::parallel::Group& worker) {
        const std::unique_ptr<msa::Backend> backend = msa::make_backend("cpu");
        const auto ranks = msa::parallel::make_peer_copies(worker, *backend);
        const auto memory = ranks->share(2 * sizeof(float));
        auto* const own = static_cast<float*>(memory.own.get());
        own[worker.rank()] = static_cast<float>(worker.rank() + 1);
        const int other = 1 - worker.rank();
        const auto at = static_cast<int64_t>(sizeof(float)) * other;
        ranks->open();
        ranks->fetch(memory, other, at, sizeof(float));
        ranks->close();
        seen[worker.rank()] = own[other];
    });
    return seen[0] == 2 && seen[1] == 1;
}

bool analysis_answers() {
    std::vector<float> mass{0.25F, 0.5F, 0.25F};
    const std::vector<int32_t> ids{0, 2};
    return msa::analysis::mass_of(msa::View<const float, 1>(mass.data(), {3}), ids) == 0.5;
}

/// With a GPU or without, the backend is known, and says why it cannot start where it cannot.
bool gpu_answers() {
    msa::register_cuda_backend();
    for (const msa::BackendInfo& backend : msa::list_backends())
        if (backend.name == "cuda") return backend.usable.yes || !backend.usable.why_not.empty();
    return false;
}

}  // namespace

int main() {
    const bool core = core_answers(), io = io_answers(), train = train_answers(),
               parallel = parallel_answers(), analysis = analysis_answers(), gpu = gpu_answers();
    std::printf("core %d, io %d, train %d, parallel %d, analysis %d, gpu %d\n", core, io, train,
                parallel, analysis, gpu);
    return core && io && train && parallel && analysis && gpu ? 0 : 1;
}
