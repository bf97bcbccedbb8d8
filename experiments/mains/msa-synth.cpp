// SPDX-License-Identifier: MIT
#include "experiments/common/program.h"
#include "experiments/synth/synth.h"

int main(int argc, char** argv) {
    return msa::experiments::program_main("msa-synth", msa::experiments::synth, argc, argv);
}
