// SPDX-License-Identifier: MIT
#include "experiments/cost/from_sizes.h"
#include "experiments/cost/options.h"
#include "experiments/programs.h"

namespace msa::experiments::cost {

int run(std::span<const std::string> args, std::ostream& out, std::ostream&) {
    const std::optional<CostOptions> options = parse_cost_options(args, out);
    if (!options) return 0;
    const analysis::Hardware on = read_hardware(options->hardware, options->ceilings);
    for (Element element : {options->element, options->index_element})
        on.peak(element);  // throws where there is none, before anything is printed
    if (!options->gpus.empty())
        cost_over_gpus(*options, on, out);
    else if (options->results.empty())
        cost_from_sizes(*options, on, out);
    else
        cost_from_results(*options, on, out);
    return 0;
}

}  // namespace msa::experiments::cost
