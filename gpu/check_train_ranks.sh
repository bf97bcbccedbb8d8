#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Data-parallel training on a machine with two GPUs: sums over both, curves of two GPUs beside those
# of one, and tokens per second. About three minutes.
#   TEXT='FILE...' gpu/check_train_ranks.sh BIN_DIR [OUT]
# BIN_DIR has test_train and msa-pretrain, built with MSA_CUDA=ON. TEXT: any files of text, some
# megabytes in all; default: the sources of this project. OUT (default: results/ranks) gets the logs
# and the runs. A step that fails does not stop the others; the script fails last.
set -uo pipefail
bin=$(cd "${1:?BIN_DIR is missing}" && pwd) || exit
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${2:-results/ranks}
# shellcheck source=SCRIPTDIR/steps.sh
. gpu/steps.sh
find_libraries
export NCCL_NVLS_ENABLE=0 NCCL_DEBUG=${NCCL_DEBUG:-WARN}

nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader || true
nvidia-smi topo -m 2>/dev/null | head -n 5
# The way between the GPUs: as the program asks for it, else without memory handles, else through
# the host's memory, which is slow, but shows whether the rest is right.
for way in '' NCCL_CUMEM_ENABLE=0 NCCL_P2P_DISABLE=1; do
    [[ -z $way ]] || { echo "once more with $way" && export "${way?}"; }
    failed=0
    step two_gpus 60 "$bin/test_train" --gtest_brief=1 --gtest_filter='TwoGpus.*' || continue
    grep -q 'SKIPPED' "$out/two_gpus.log" || break
    failed=1
done
grep -hE 'off by at most|added up|PASSED|SKIPPED|FAILED TEST' "$out/two_gpus.log"

text_of 64

# train NAME PRESET STEPS DEVICES SEQUENCES OPTIONS...
train() {
    local name=$1 preset=$2 steps=$3 devices=$4 sequences=$5
    shift 5
    step "$name" 50 "$bin/msa-pretrain" "$out/text.bin" --held-out 0.2 --preset "$preset" \
        --backend cuda --devices "$devices" --sequences "$sequences" --steps "$steps" \
        --lr-warmup 5 --warmup-steps 5 --probe 0 --evaluate 0 --checkpoint 0 --eval-sequences 1 \
        --eval-exercises 0 --out "$out/$name" --overwrite "$@"
}
# The curves of two GPUs and one: the first step but for roundings, twenty steps as far as bf16
# goes; and a rerun bit by bit.
compare() {
    python3 - "$out/$1/curves.csv" "$out/$2/curves.csv" <<'PYTHON' || failed=1
import sys

def rows(path, name):
    cells = [line.split(",") for line in open(path).read().splitlines()]
    return {int(c[0]): float(c[4]) for c in cells if c[1] == "train" and c[2] == name}

one, two = sys.argv[1:]
bounds = {"loss": 0.01, "gradient_norm": 0.1}  # of twenty steps: core/train/tolerance.h
first = {"loss": 1e-3, "gradient_norm": 1e-2}
good = True
for name in bounds:
    a, b = rows(one, name), rows(two, name)
    off = {step: abs(b[step] / a[step] - 1) for step in a if step < 20}
    worst = max(off.values())
    right = a.keys() == b.keys() and off[0] <= first[name] and (name != "loss" or worst <= bounds[name])
    good &= right
    print(f"{two} {'has' if right else 'HAS NOT'} the {name} of {one}: "
          f"step 0 off by {off[0]:.1e}, twenty steps by at most {worst:.1e}")
sys.exit(not good)
PYTHON
}
same() {
    if cmp -s <(grep -v tokens_per_second "$out/$1/curves.csv") \
        <(grep -v tokens_per_second "$out/$2/curves.csv"); then
        echo "$2 is what $1 has, bit by bit"
    else
        echo "$2 IS NOT what $1 has" && failed=1
    fi
}

train nano_1 nano 40 0 8 --log 1
train nano_2 nano 40 0,1 8 --log 1
compare nano_1 nano_2
train pilot_1 pilot 22 0 8 --log 1
train pilot_2 pilot 22 0,1 8 --log 1
compare pilot_1 pilot_2
train pilot_2_again pilot 22 0,1 8 --log 1
same pilot_2 pilot_2_again

# Tokens per second: two GPUs with the steps of one, and with steps twice as large.
for arm in msa full; do
    train "${arm}_1" pilot 101 0 8 --attention "$arm" --log 20
    train "${arm}_2" pilot 101 0,1 8 --attention "$arm" --log 20
    train "${arm}_2_wide" pilot 101 0,1 16 --attention "$arm" --log 20
    train "${arm}_1_again" pilot 101 0 8 --attention "$arm" --log 20
done
echo
python3 - "$out" <<'PYTHON' || failed=1
import statistics
import sys

def rate(name):  # median of the entries but the first one, which has the warm-up in it
    lines = open(f"{sys.argv[1]}/{name}/curves.csv").read().splitlines()
    values = [float(line.split(",")[4]) for line in lines if ",tokens_per_second," in line]
    return statistics.median(values[1:])

for arm in ["msa", "full"]:
    ones = [rate(f"{arm}_1"), rate(f"{arm}_1_again")]
    one = statistics.mean(ones)
    print(f"{arm}: one GPU {ones[0]:.0f} and {ones[1]:.0f} tokens per second")
    for name, what in [("2", "8 sequences a step"), ("2_wide", "16 sequences a step")]:
        two = rate(f"{arm}_{name}")
        print(f"{arm}: two GPUs, {what}: {two:.0f} tokens per second, {two / one:.3f} of one")
PYTHON
exit "$failed"
