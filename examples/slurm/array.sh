#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One run as a job array, and a job that merges its shards:
#
#   array=$(sbatch --parsable --array=0-7 examples/slurm/array.sh shard capture.h5 results)
#   sbatch --dependency=afterok:"$array" examples/slurm/array.sh merge capture.h5 results
#
# A task that was killed or requeued goes on where it was. Put #SBATCH lines of your own (time,
# memory, partition) below.
#SBATCH --cpus-per-task=16
set -euo pipefail
step=$1 input=$2 out=$3
case $step in
    shard)
        msa-analyze "$input" --out "$out/shard-$SLURM_ARRAY_TASK_ID" --shard slurm --resume \
            --threads "$SLURM_CPUS_PER_TASK"
        ;;
    merge) msa-merge "$out"/shard-* --out "$out" ;;
    *)
        echo "array.sh: '$step' is neither shard nor merge" >&2
        exit 2
        ;;
esac
