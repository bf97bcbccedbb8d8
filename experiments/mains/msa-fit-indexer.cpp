// SPDX-License-Identifier: MIT
#include "experiments/common/program.h"
#include "experiments/fit/fit.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main("msa-fit-indexer", msa::experiments::fit_indexer, argc,
                                          argv);
}
