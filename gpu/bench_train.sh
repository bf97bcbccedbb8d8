#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tokens per second and MFU of msa-pretrain on a machine with a GPU, what matters most first: steps of
# MSA beside dense ones at 32K and 128K tokens, and the preset large beside the same dense model in
# PyTorch, where python3 has it.
#   TEXT='FILE...' gpu/bench_train.sh BIN_DIR [OUT]
# BIN_DIR has msa-pretrain, built with MSA_CUDA=ON. TEXT: any files of text, some megabytes in all;
# default: the sources of this project. OUT (default: results/bench-train) gets the logs, the runs and
# rates.json, in the form of data/bench/pretrain-h100.json. LIMIT in the environment: seconds of all
# steps together, 190 by default. STEPS: names of those to run; default: all. A step that is cut off
# leaves the rates that it had.
set -uo pipefail
bin=$(cd "${1:?BIN_DIR is missing}" && pwd) || exit
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${2:-results/bench-train}
LIMIT=${LIMIT:-190}
# shellcheck source=SCRIPTDIR/steps.sh
. gpu/steps.sh
find_libraries
export MSA_DATA_DIR=$PWD/data
text_of 160 # longer than the longest context

# train NAME SECONDS PRESET STEPS OPTIONS...: no warm-up of the Index Branch, rates every two steps.
train() {
    local name=$1 most=$2 preset=$3 count=$4
    shift 4
    step "$name" "$most" "$bin/msa-pretrain" "$out/text.bin" --held-out 0.2 --preset "$preset" \
        --steps "$count" --lr-warmup 4 --warmup-steps 0 --log 2 --probe 0 --evaluate 0 \
        --checkpoint 0 --exercises 0 --eval-sequences 1 --eval-exercises 0 --out "$out/$name" \
        --overwrite "$@"
    grep -hE ',(tokens_per_second|mfu),' "$out/$name/curves.csv" 2>/dev/null | tail -n 2
}
# The dense gradient at these lengths is faster in any order; MSA's is the same in both backends.
for kind in full msa; do
    train "${kind}_32k" 60 pilot 20 --attention $kind --context 32768 --sequences 1 \
        --backend cuda-unordered
done
for kind in full msa; do
    train "${kind}_128k" 75 pilot 8 --attention $kind --context 131072 --sequences 1 \
        --backend cuda-unordered
done
train full_large 40 large 30 --attention full --backend cuda
train msa_large 40 large 30 --attention msa --backend cuda
step torch_large 120 python3 gpu/train/baseline.py --preset large
step torch_pilot 120 python3 gpu/train/baseline.py --preset pilot
train full_pilot 40 pilot 30 --attention full --backend cuda

python3 - "$out" "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader |
    tr '\n' ';')" <<'PYTHON' || failed=1
import json
import pathlib
import statistics
import sys

out, rates, shares = pathlib.Path(sys.argv[1]), {}, {}
for path in sorted(out.glob("*/curves.csv")):
    rows = [line.split(",") for line in path.read_text().splitlines()]
    for name, to in (("tokens_per_second", rates), ("mfu", shares)):
        # The first entry counts start-up.
        found = [float(row[4]) for row in rows if row[2] == name][1:]
        if found:
            to[path.parent.name] = found
for path in sorted(out.glob("torch_*.log")):
    last = path.read_text().splitlines()[-1:]
    if last and last[0].isdigit():
        rates[path.stem] = [int(last[0])]
record = {"format": "msa-pretrain-rates", "format_version": 1, "device": sys.argv[2].strip("; "),
          "what": "tokens per second of msa-pretrain by the log's entries of two steps but the first "
                  "(gpu/bench_train.sh). Names: arm, then context or preset; 32k and 128k are one "
                  "sequence of the preset pilot's sizes, by cuda-unordered. torch: "
                  "gpu/train/baseline.py in the same run.",
          "tokens_per_second": rates, "mfu": shares}
(out / "rates.json").write_text(json.dumps(record, indent=2) + "\n")
for length in ("32k", "128k"):
    if f"full_{length}" in rates and f"msa_{length}" in rates:
        ratio = statistics.median(rates[f"msa_{length}"]) / statistics.median(rates[f"full_{length}"])
        print(f"{length}: a step of MSA is {ratio:.2f} times as fast as a dense one")
PYTHON
exit "$failed"
