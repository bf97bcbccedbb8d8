// SPDX-License-Identifier: MIT
#include "experiments/compare/compare.h"
#include "experiments/common/program.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main("msa-compare", msa::experiments::compare, argc, argv);
}
