// SPDX-License-Identifier: MIT
#include "experiments/analyze/analyze.h"
#include "experiments/common/program.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main("msa-analyze", msa::experiments::analyze, argc, argv);
}
