// SPDX-License-Identifier: MIT
// Uses each installed library once: the header is found, the call links, the answer is right.
#include <cmath>
#include <cstdio>
#include <vector>

#include "analysis/recall.h"
#include "core/io/activations.h"
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
    const bool core = core_answers(), io = io_answers(), analysis = analysis_answers(),
               gpu = gpu_answers();
    std::printf("core %d, io %d, analysis %d, gpu %d\n", core, io, analysis, gpu);
    return core && io && analysis && gpu ? 0 : 1;
}
