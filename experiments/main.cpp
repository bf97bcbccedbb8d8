// SPDX-License-Identifier: MIT
// The main function of every program; MSA_PROGRAM is its namespace, MSA_PROGRAM_NAME its name.
#include "experiments/driver/program.h"
#include "experiments/programs.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main(MSA_PROGRAM_NAME, msa::experiments::MSA_PROGRAM::run,
                                          argc, argv);
}
