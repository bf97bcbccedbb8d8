// SPDX-License-Identifier: MIT
#include "experiments/common/program.h"
#include "experiments/inspect/inspect.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main("msa-inspect", msa::experiments::inspect, argc, argv);
}
