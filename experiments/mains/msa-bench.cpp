// SPDX-License-Identifier: MIT
#include "experiments/bench/bench.h"
#include "experiments/common/program.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main("msa-bench", msa::experiments::bench, argc, argv);
}
