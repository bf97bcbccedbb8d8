// SPDX-License-Identifier: MIT
#include "experiments/common/program.h"
#include "experiments/compare/compare.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main("msa-compare", msa::experiments::compare, argc, argv);
}
