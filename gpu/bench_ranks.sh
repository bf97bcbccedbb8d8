#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# One layer over two GPUs beside one of them: right, and how fast. About two minutes.
#   gpu/bench_ranks.sh BIN_DIR [OUT]
# BIN_DIR has test_parallel and msa-bench, built with MSA_CUDA=ON. OUT (default: results/ranks) gets
# a log and a record of each step; a record is written after every measurement, so a step that is
# cut off leaves what it had. LIMIT in the environment: seconds of all steps together, 145 by
# default. A step that fails does not stop the others; the script fails last.
set -uo pipefail
bin=$(cd "${1:?BIN_DIR is missing}" && pwd) || exit
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${2:-results/ranks} limit=${LIMIT:-145} failed=0
mkdir -p "$out"
for folder in "$bin" "$bin/../experiments" /usr/local/cuda/lib64 /usr/local/cuda/lib; do
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
# Kernels are loaded at the start: none is while another waits for its peer.
export LD_LIBRARY_PATH MSA_REQUIRE=cuda OMP_WAIT_POLICY=passive CUDA_MODULE_LOADING=EAGER

# step NAME SECONDS COMMAND...
step() {
    local name=$1 most=$2 began=$SECONDS outcome=ok left=$((limit - SECONDS))
    shift 2
    if ((left < 5)); then
        printf '%-10s no time left\n' "$name"
        failed=1
        return
    fi
    timeout -k 3 $((most < left ? most : left)) "$@" >"$out/$name.log" 2>&1 ||
        outcome="FAILED ($?)"
    [[ $outcome == ok ]] || failed=1
    printf '%-10s %-12s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    tail -n "$([[ $outcome == ok ]] && echo 12 || echo 30)" "$out/$name.log"
}

nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader || true
nvidia-smi topo -m 2>/dev/null | head -n 4
step tests 40 "$bin/test_parallel" --gtest_brief=1 --gtest_filter='TwoGpus.*'
bench=("$bin/msa-bench" --backend cuda --devices "0,1" --preset paper --index-element bf16)
# bench_step NAME SECONDS OPTIONS...
bench_step() {
    local name=$1 most=$2
    shift 2
    step "$name" "$most" "${bench[@]}" --out "$out/$name.json" --overwrite "$@"
}
bench_step decode 60 --cases decode --tokens 128K,1M --samples 9
bench_step prefill 110 --cases square --tokens 512K,1M --samples 3
bench_step short 40 --cases square --tokens 128K --samples 5
exit "$failed"
