#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Whole models on a machine with a GPU: the Python module with the cuda backend, its tests of caches and compiled steps, and
# times beside dense attention.
#   gpu/model.sh STAGE OUT [SECONDS]
# STAGE: build, unpack (the module of an earlier build, build/module-*, in place of build), test, bench, train, serve,
# profile or profile-train; SECONDS: it ends within so many (default: 560). OUT gets a log of each stage, the records and the profiles. In the
# environment: ROWS, a regular expression of rows of bench/time_serve.py; TESTS, what pytest takes under python/tests;
# CASES, ARMS, WORDS of bench/time_model.py; TORCH_LOGS as PyTorch reads it.
# shellcheck disable=SC2317 # functions that a shell of its own calls
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
stage=$1 out=$2 seconds=${3:-560}
mkdir -p "$out"
out=$(realpath "$out")
python=${PYTHON:-python3}
PATH=$PATH:/usr/local/cuda/bin
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD/build/release/python:$PWD/python:$PWD:$PWD/bench
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
        msalab_here
}

msalab_here() {
    "$python" - <<'CODE'
import msalab, torch, transformers
print("msalab.backends():", msalab.backends())
print(torch.__version__, transformers.__version__, torch.cuda.get_device_name())
assert not msalab.backends()["cuda"]
CODE
}

unpack() {
    mkdir -p build/release/python/msalab
    ln -sfn "$PWD"/python/msalab/* build/release/python/msalab/
    cat build/module-* | tar -C build/release -xJ --wildcards 'python/msalab/_msalab*' && msalab_here
}

# The tests in processes of their own, a few in each and many at a time, so that a crash takes no other test along; whoever
# crashes is asked once more without PyTorch's static launcher.
tests() {
    local all=$out/tests
    mkdir -p "$all"
    # shellcheck disable=SC2086
    (cd python/tests && "$python" -m pytest -q --collect-only -o pythonpath= -p no:cacheprovider ${TESTS:-test_kv_cache.py}) \
        >"$all/collected" 2>&1
    grep '::' "$all/collected" | sed 's/ /@/g; s/^[^:]*\/\(test_[^:]*::\)/\1/' |
        xargs -r -n "${EACH:-2}" -P "${AT_ONCE:-14}" bash -c 'some_tests "$@"' _
    cat "$all"/*.log
}

some_tests() {
    local log
    log=$out/tests/$(tr -c 'a-zA-Z0-9' _ <<<"${1#*::}" | cut -c1-90)
    cd python/tests || return
    take() { timeout -k 5 "${MOST:-100}" "$python" -m pytest -v -o pythonpath= -p no:cacheprovider --tb=long -rfE "${@//@/ }"; }
    take "$@" >"$log.log" 2>&1
    local outcome=$?
    ((outcome > 1)) || return 0
    echo "DIED $* with $outcome" >>"$log.log"
    TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER=0 take "$@" >"$log.again.log" 2>&1
    echo "AGAIN $* without the static launcher: $?" >>"$log.again.log"
}

# The example of a server, with weights at random of SmolLM2's shape.
serve() {
    local each
    (cd bench && "$python" -c "
import sys, torch, transformers, time_model
torch.manual_seed(0)
transformers.LlamaForCausalLM(transformers.LlamaConfig(**time_model.SMALL, max_position_embeddings=16384, rope_theta=1e5,
                                                       eos_token_id=None)).save_pretrained(sys.argv[1])
" "$out/small") &&
        for each in 8:4 8:0 4:4; do
            echo "== ${each%:*} at a time, ${each#*:} drafts"
            "$python" bench/time_example.py --device cuda --model "$out/small" --requests 8 --tokens 64 --top-k 8 \
                --prompt 2000 --chunk 512 --pages 400 --running "${each%:*}" --drafts "${each#*:}" --dense
        done
    rm -rf "$out/small"
}

run() {
    case $stage in
        build) build ;;
        unpack) unpack ;;
        test) tests ;;
        bench)
            "$python" bench/time_serve.py "$out/times.json" --seconds $((seconds - 90)) --rows "${ROWS:-.}"
            ;;
        train)
            # shellcheck disable=SC2086
            "$python" bench/time_model.py "$out/train.json" --seconds $((seconds - 60)) --cases "${CASES:-8k,32k,128k}" \
                --arms "${ARMS:-msa-16,cudnn,flash}" ${WORDS-}
            ;;
        serve) serve ;;
        profile)
            "$python" bench/time_serve.py "$out/profiled.json" --seconds $((seconds - 60)) --profile "$out" \
                --rows "${ROWS:-8b-4/decode/(8|128)K/1/msa$|8b-4/decode/128K/1/(msa-compiled|flash)$|8b-4/prefill/128K/1/msa-compiled|8b-4/prefill/128K/1/cudnn$}"
            ;;
        profile-train)
            # shellcheck disable=SC2086
            "$python" bench/time_model.py "$out/none.json" --seconds $((seconds - 60)) --cases "${CASES:-8k}" \
                --arms "${ARMS:-msa-16,cudnn}" --profile "$out/train" ${WORDS-}
            ;;
        *) echo "gpu/model.sh: no stage $stage" >&2 && return 2 ;;
    esac
}

began=$SECONDS
export -f build unpack msalab_here tests some_tests serve run
export stage out seconds python
timeout -k 5 "$seconds" bash -c 'set -uo pipefail; run' >"$out/$stage.log" 2>&1
outcome=$?
echo "== $stage: exit $outcome after $((SECONDS - began)) s, $out/$stage.log"
case $stage in
    test)
        echo "collected $(grep -c '::' "$out/tests/collected"), passed $(cat "$out"/tests/*.log | grep -c ' PASSED')"
        grep -hE '^(FAILED|ERROR|DIED|AGAIN) |Fatal Python error|^[^ ]*Error: ' "$out"/tests/*.log | cut -c1-230 | head -n 60
        ;;
    bench) grep -E '^[0-9a-z]+-[0-9]+/' "$out/bench.log" ;;
    *) tail -n 30 "$out/$stage.log" | cut -c1-200 ;;
esac
exit "$outcome"
