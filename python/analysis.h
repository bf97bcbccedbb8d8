// SPDX-License-Identifier: MIT
// The measures of analysis/ on arrays: what msalab/analysis.py calls.
#pragma once

#include <nanobind/nanobind.h>

namespace msa {

void define_analysis(nanobind::module_& m);

}  // namespace msa
