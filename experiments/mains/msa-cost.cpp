// SPDX-License-Identifier: MIT
#include "experiments/common/program.h"
#include "experiments/cost/cost.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main("msa-cost", msa::experiments::cost, argc, argv);
}
