#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One run as a job array: every task does units that no other task does, and the last one writes the
# results.
#
#   sbatch --array=0-7 examples/slurm/array.sh capture.h5 results
#
# A task that was killed or requeued goes on with what is missing. Put #SBATCH lines of your own (time,
# memory, partition) below.
#SBATCH --cpus-per-task=16
set -euo pipefail
input=$1 out=$2
msa-analyze "$input" --out "$out" --threads "$SLURM_CPUS_PER_TASK"
