#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# check_wheel.sh PACKAGE PYTHON: a wheel or a source archive, installed into an environment of its
# own away from the sources, works as its users expect, and leaves nothing when it is uninstalled.
set -euo pipefail
package=$(realpath "$1")
python=$2
sample=$(realpath "$(dirname "$0")/../../data/sample.h5")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
unset PYTHONPATH LD_LIBRARY_PATH MSALAB_BIN
"$python" -m venv "$place/env"
cd "$place"

fail() {
    echo "$*" >&2
    exit 1
}

env/bin/pip install --quiet "${package}[paper]"

# Equal keys share the attention: query i's output is the mean of v[0..i].
env/bin/python - <<'CODE'
import msalab
import numpy as np
n = 40
q, k = np.ones((n, 2, 16), np.float32), np.ones((n, 1, 16), np.float32)
v = np.arange(n, dtype=np.float32)[:, None, None] * np.ones((1, 1, 16), np.float32)
out = msalab.dense_attention(q, k, v)
assert np.allclose(out, np.arange(n)[:, None, None] / 2, atol=1e-5), out
ids = np.full((n, 1, 1), -1, np.int32)
ids[:, 0, 0] = np.arange(n) // 8
out = msalab.msa_sparse_attention(q, k, v, ids, block_size=8)
assert np.allclose(out[:, 0, 0], (np.arange(n) // 8 * 8 + np.arange(n)) / 2, atol=1e-5), out
kept = msalab.analysis.recall(ids, msalab.msa_block_mass(q, k, block_size=8), block_size=8)
assert 0 < kept["mass_kept"][0] <= kept["oracle_mass"][0] < 1
assert not msalab.backends()["cpu"] and "cuda" in msalab.backends()
CODE

version=$(env/bin/python -m msalab --version)
env/bin/msalab cost --version | grep -q "^msa-cost ${version#msalab } (" ||
    fail "the package is $version, the program $(env/bin/msalab cost --version)"
for name in advise analyze bench cache compare cost fit-indexer inspect precision pretrain reuse synth; do
    env/bin/msalab "$name" --help >help || fail "msalab $name --help ends with $?"
    grep -q "^msa-$name: " help || fail "msalab $name --help is not of msa-$name"
done
env/bin/msalab cost --preset qwen3-8b >/dev/null
# A processor without AVX2, as glibc can pretend to have.
GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2 env/bin/msalab cost --preset qwen3-8b 2>error >/dev/null &&
    fail "msalab cost runs without AVX2"
grep -q '^msa-cost: .* this one lacks avx2$' error || fail "msalab cost without AVX2: $(<error)"
env/bin/msalab analyze "$sample" --out results --block-size 32 --top-k 8 --selectors oracle,window \
    --queries 1728: >/dev/null
for _ in 1 2; do
    env/bin/msalab analyze "$sample" --out together --block-size 32 --top-k 8 \
        --selectors oracle,window --queries 1728: >/dev/null &
done
wait
cmp together/results.h5 results/results.h5
env/bin/msalab plot results/results.h5 --out pictures >/dev/null
[[ -s pictures/report.html ]] || fail "msalab plot wrote no report.html"

# The demo and the page of the paper, where no compiler and no clone is.
alone() { PATH=$place/env/bin "$place/env/bin/msalab" "$@" >/dev/null || fail "msalab $1 ends with $?"; }
alone demo --out demo
[[ -s demo/report.html ]] || fail "msalab demo wrote no report.html"
alone explore demo/all/results.h5 --out explore.html
alone paper --out paper
[[ -s paper/paper.html ]] || fail "msalab paper wrote no paper.html"

env/bin/pip uninstall --quiet --yes msalab
left=$(find env -ipath '*msalab*')
[[ -z $left ]] || fail "left behind: $left"
