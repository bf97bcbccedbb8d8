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
out=${2:-results/ranks} LIMIT=${LIMIT:-145}
# shellcheck source=SCRIPTDIR/steps.sh
. gpu/steps.sh
find_libraries
export CUDA_MODULE_LOADING=EAGER # no kernel is loaded while another waits for its peer

nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader || true
nvidia-smi topo -m 2>/dev/null | head -n 4
step tests 40 "$bin/test_parallel" --gtest_brief=1 --gtest_filter='TwoGpus.*'
both=(--backend cuda --devices "0,1" --preset paper --index-element bf16)
bench decode 60 "${both[@]}" --cases decode --tokens 128K,1M --samples 9
bench prefill 110 "${both[@]}" --cases square --tokens 512K,1M --samples 3
bench short 40 "${both[@]}" --cases square --tokens 128K
exit "$failed"
