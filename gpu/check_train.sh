#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Training on a machine with a GPU: its tests, then tokens per second of the pilot's sizes, beside
# the same dense model in PyTorch where python3 has it.
#   TEXT='FILE...' SANITIZE=1 gpu/check_train.sh [OUT]
# build/release must be built with MSA_CUDA=ON (test_train, msa-pretrain). TEXT: any files of text,
# some megabytes in all; default: the sources of this project. SANITIZE, where it is set: few tests
# under compute-sanitizer too. OUT (default: results/train) gets the logs and the runs. A step that
# fails does not stop the others; the script fails last.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${1:-results/train}
bin=build/release/bin
# shellcheck source=SCRIPTDIR/steps.sh
. gpu/steps.sh
find_libraries

step tests 240 "$bin/test_train" --gtest_brief=1
grep -hE 'off by at most|cuBLASLt|PASSED|FAILED TEST' "$out/tests.log"
if [[ ${SANITIZE-} ]]; then
    few='All/Operations.*cuda*:Arms/OnGpu.RerunsChangeNoBit/value_head'
    for tool in memcheck racecheck; do
        step "$tool" 240 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/test_train" \
            --gtest_brief=1 --gtest_filter="$few"
        grep -h 'SUMMARY' "$out/$tool.log"
    done
fi

text_of 64

# train NAME STEPS WARMUP_STEPS OPTIONS...: a run of the pilot's sizes, whose last entry of the log
# counts.
train() {
    local name=$1 steps=$2 warm_up=$3
    shift 3
    step "$name" 240 "$bin/msa-pretrain" "$out/text.bin" --held-out 0.2 --preset pilot --backend cuda \
        --steps "$steps" --lr-warmup 5 --warmup-steps "$warm_up" --log 10 --probe 0 --evaluate 0 \
        --checkpoint 0 --eval-sequences 2 --eval-exercises 0 --out "$out/$name" --overwrite "$@"
    rates+=("$(printf '%-22s %s' "$name" \
        "$(grep -h ',tokens_per_second,' "$out/$name/curves.csv" 2>/dev/null | tail -n 1)")")
}
rates=()
train full 31 5 --attention full
train msa 31 5 --attention msa
train msa_warm_up 21 21 --attention msa
train window 31 5 --attention window
train full_again 31 5 --attention full
train msa_again 31 5 --attention msa
for arm in full msa; do  # the same weights, bit by bit?
    python3 - "$out/$arm/curves.csv" "$out/${arm}_again/curves.csv" <<'PYTHON' || failed=1
import sys

def rows(path):
    return [line for line in open(path) if "tokens_per_second" not in line]

same = rows(sys.argv[1]) == rows(sys.argv[2])
print(sys.argv[1], "is" if same else "IS NOT", "what the rerun has")
sys.exit(not same)
PYTHON
done
if python3 -c 'import torch' 2>/dev/null; then
    step torch 400 python3 gpu/train/baseline.py
    rates+=("$(printf '%-22s %s' torch "$(tail -n 1 "$out/torch.log")")")
fi
echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
echo "step,group,name,part,tokens per second:"
printf '%s\n' "${rates[@]}"
exit "$failed"
