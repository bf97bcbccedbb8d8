#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The sweeps of studies/pilot/README.md on a machine with GPUs, a run on each at a time, what is missing.
#   studies/pilot/gpu.sh OUT SECONDS [OPTIONS...] [-- WORDS...]
# CORPUS in the environment: an archive of what `./msalab corpus` writes (default:
# results/corpus.tar.xz), unpacked into results/corpus unless that is there. msa-pretrain is built
# unless it is there. SECONDS are those of the runs, without the building. OUT gets runs.tar, for pack_records.py, and a
# log of each process. DEVICES in the environment: the GPUs, 0,1 say (default: all); with 0,0 two runs share a GPU, for
# which CUDA's Multi-Process Service should run. OPTIONS and WORDS as studies/pilot/run_missing.py has them; default: the
# blocks of Pilot II, in their order, on GPUs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$1 seconds=$2
shift 2
bin=build/release/bin
# shellcheck source=SCRIPTDIR/../../gpu/steps.sh
. gpu/steps.sh

if [[ ! -x $bin/msa-pretrain ]]; then
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [[ $capability == 90 ]] && capability=90a
    offline=()
    # shellcheck disable=SC1091
    [[ ! -f build/offline/use.sh ]] || . build/offline/use.sh
    step configure 120 "" cmake --preset release -DMSA_CUDA=ON "${offline[@]}" \
        -DCMAKE_CUDA_ARCHITECTURES="$capability-real"
    if grep -q 'CUDNN.*INCLUDE_DIR:PATH=.*NOTFOUND' build/release/CMakeCache.txt; then
        echo "$0: no headers of cuDNN and its frontend (.ci/cudnn-requirements.txt; name their folder in" \
            "CMAKE_INCLUDE_PATH): dense attention would run by the plain kernel" >&2
        exit 1
    fi
    step build 420 "" cmake --build --preset release --parallel "$(nproc)" --target msa-pretrain
fi
if [[ ! -f results/corpus/manifest.json ]]; then
    mkdir -p results/corpus
    tar -C results/corpus -xJf "${CORPUS:-results/corpus.tar.xz}"
fi
IFS=, read -ra devices <<<"${DEVICES:-$(nvidia-smi --query-gpu=index --format=csv,noheader | paste -sd ,)}"
sweeps=()
[[ " $* " == *.json* ]] || sweeps=(studies/pilot/block_{a,d,c,d2,e1,e2,a2,b2,f}.json)
# Probes and evaluations compute on the host, and threads that spin while they wait keep those of the other runs from
# working.
threads=$(($(nproc) / ${#devices[@]}))
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
started=()
for device in "${devices[@]}"; do
    CUDA_VISIBLE_DEVICES=$device python3 studies/pilot/run_missing.py "${sweeps[@]}" --seconds "$seconds" \
        "$@" >"$out/log-${#started[@]}.txt" 2>&1 &
    started+=($!)
done
for process in "${started[@]}"; do wait "$process" || failed=1; done
find results/pilot -path '*/seed-*/*' \( -name summary.json -o -name curves.csv -o -name diverged.json \) -printf '%P\n' |
    tar -cf "$out/runs.tar" -C results/pilot -T -
exit "$failed"
