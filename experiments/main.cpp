// SPDX-License-Identifier: MIT
// The main function of every program; MSA_PROGRAM_SPACE is its namespace.
#include "experiments/driver/program.h"
#include "experiments/programs.h"

int main(int argc, char** argv) {
    namespace program = msa::experiments::MSA_PROGRAM_SPACE;
    return msa::experiments::program_main(program::kProgram.name, program::run, argc, argv);
}
