// SPDX-License-Identifier: MIT
#include <ostream>
#include <set>

#include "experiments/bench/case_run.h"
#include "experiments/bench/meter.h"
#include "experiments/bench/rank_operands.h"
#include "experiments/driver/layers.h"
#include "experiments/driver/options.h"
#include "experiments/driver/program.h"
#include "experiments/programs.h"
#include "experiments/report/text.h"
#include "gpu/cuda_backend.h"

namespace msa::experiments::bench {

int run(std::span<const std::string> args, std::ostream& out, std::ostream& err) {
    register_cuda_backend();
    const std::optional<BenchOptions> options = parse_bench_options(args, out);
    if (!options) return 0;
    if (!options->devices.empty()) {
        bench_over_ranks(*options, args, out, err);
        return 0;
    }
    if (const auto& captured = options->captured)
        for (int64_t layer : captured->layers())
            warn_of_own_attention(captured->file(), layer, Computed::plain, err);
    const std::unique_ptr<Backend> backend = make_backend(options->backend);
    const std::vector<Case> cases = make_cases(*options);
    Meter meter(*backend);
    Record record(*options, args, backend->device(), measure_ceilings(*backend));
    std::set<std::string> stages;
    for (const Case& c : cases)
        run_case(*backend, meter, *options, c, [&](const Measurement& measured) {
            record.add(c, measured);
            stages.insert(measured.stage);
            err << record.last_line() << std::endl;
        });
    require(!stages.empty(), "--stages is ", join(options->stages), ": no case of ",
            join(options->cases), " measures it; msa-bench --help says which case has which stage");
    record.finish(out);
    return 0;
}

}  // namespace msa::experiments::bench
