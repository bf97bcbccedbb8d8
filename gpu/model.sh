#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Whole models on a machine with a GPU: the Python module with the cuda backend, its tests of caches and compiled steps, and
# times beside dense attention.
#   gpu/model.sh STAGE OUT [SECONDS]
# STAGE: build, test, bench or profile; SECONDS: it ends within so many (default: 560). OUT gets a log of each stage, the
# record of bench and the profiles. In the environment: ROWS, a regular expression of rows of tests/bench/time_serve.py;
# TESTS, files under python/tests; TORCH_LOGS as PyTorch reads it.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
stage=$1 out=$2 seconds=${3:-560}
mkdir -p "$out"
out=$(realpath "$out")
python=${PYTHON:-python3}
PATH=$PATH:/usr/local/cuda/bin
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/build/release/python:$PWD/python
export CUDA_MODULE_LOADING=EAGER TORCHINDUCTOR_CACHE_DIR=$PWD/build/inductor

# The headers of Boost and cuDNN, which such a machine may lack: gpu/offline.sh, as build/offline.tar.xz.
build() {
    local offline=() capability
    [[ ! -f build/offline.tar.xz ]] || tar -C build -xJf build/offline.tar.xz
    # shellcheck disable=SC1091
    [[ ! -f build/offline/use.sh ]] || . build/offline/use.sh
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [[ $capability != 90 ]] || capability=90a
    cmake --preset release -DMSA_CUDA=ON -DMSA_PYTHON=ON -DMSA_BUILD_TESTS=OFF "${offline[@]}" \
        -DCMAKE_CUDA_ARCHITECTURES="$capability-real" -DPython_EXECUTABLE="$(command -v "$python")" &&
        cmake --build --preset release --parallel "$(nproc)" --target _msalab &&
        "$python" - <<'CODE'
import msalab, torch, transformers
print("msalab.backends():", msalab.backends())
print(torch.__version__, transformers.__version__, torch.cuda.get_device_name())
assert not msalab.backends()["cuda"]
CODE
}

run() {
    case $stage in
        build) build ;;
        test)
            # shellcheck disable=SC2086
            (cd python/tests && "$python" -m pytest -q -o pythonpath= -p no:cacheprovider --tb=long --durations=10 \
                --junitxml="$out/tests.xml" ${TESTS:-test_kv_cache.py test_torch_cuda.py})
            ;;
        bench)
            "$python" tests/bench/time_serve.py "$out/times.json" --seconds $((seconds - 90)) --rows "${ROWS:-.}"
            ;;
        profile)
            "$python" tests/bench/time_serve.py "$out/profiled.json" --seconds $((seconds - 60)) --profile "$out" \
                --rows "${ROWS:-8b-4/decode/128K/1/(msa-compiled|msa-graph|msa)$|8b-4/decode/8K/1/static-compiled|8b-4/prefill/(8|128)K/1/msa-compiled|small-30/prefill/8K/1/msa}"
            ;;
        *) echo "gpu/model.sh: no stage $stage" >&2 && return 2 ;;
    esac
}

began=$SECONDS
export -f build run 2>/dev/null
export stage out seconds python
timeout -k 5 "$seconds" bash -c 'set -uo pipefail; run' >"$out/$stage.log" 2>&1
outcome=$?
echo "== $stage: exit $outcome after $((SECONDS - began)) s, $out/$stage.log"
case $stage in
    test) grep -E '^(FAILED|ERROR)|passed|failed' "$out/test.log" | cut -c1-160 | tail -n 40 ;;
    bench) grep -E '^[0-9a-z]+-[0-9]+/' "$out/bench.log" ;;
    *) tail -n 30 "$out/$stage.log" | cut -c1-200 ;;
esac
exit "$outcome"
