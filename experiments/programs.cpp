// SPDX-License-Identifier: MIT
#include "experiments/programs.h"

#include "experiments/report/table.h"

namespace msa::experiments {

std::span<const Program> programs() {
    static constexpr Program kAll[] = {
#define MSA_PROGRAM(space, name, question, tables) {name, space::run, question, tables},
#include "experiments/programs.def"
#undef MSA_PROGRAM
    };
    return kAll;
}

}  // namespace msa::experiments
