#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Times of training on a machine with a GPU, in at most five minutes, what matters most first.
#   gpu/bench_grad.sh BIN_DIR OUT_DIR
# BIN_DIR holds msa-bench. OUT_DIR gets a record and a log of each step. A record is written after
# every measurement, so a step that is cut off leaves what it had. LIMIT in the environment: seconds
# of all steps together, 290 by default. STEPS: names of those to run; default: all.
set -uo pipefail
bin=${1:?which folder holds msa-bench} out=${2:?which folder gets the records}
mkdir -p "$out"
limit=${LIMIT:-290} steps=${STEPS:-layer-128k million layer-32k pilot ordered warm-up} failed=0

# step NAME SECONDS OPTIONS...: one run of msa-bench on square cases.
step() {
    local name=$1 most=$2 began=$SECONDS outcome=ok
    shift 2
    [[ " $steps " == *" $name "* ]] || return 0
    local left=$((limit - SECONDS))
    if ((left < 10)); then
        printf '%-12s no time left\n' "$name"
        failed=1
        return
    fi
    timeout $((most < left ? most : left)) "$bin/msa-bench" --cases square --order automatic \
        --samples 5 --out "$out/$name.json" --overwrite "$@" >"$out/$name.log" 2>&1 ||
        outcome="FAILED ($?)"
    [[ $outcome == ok ]] || failed=1
    printf '%-12s %-12s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    grep -E '^square .*: ' "$out/$name.log"
    [[ $outcome == ok ]] || tail -n 3 "$out/$name.log"
}

paper=(--preset paper --index-element bf16)
passes=dense_attention,dense_attention_grad,sparse_attention,sparse_attention_grad
# Dense attention and its gradient in the same run as the layers that are compared with it.
step layer-128k 140 --backend cuda-unordered "${paper[@]}" --tokens 128K --support selected \
    --stages "layer_grad,index_kl_grad,$passes"
# Half of the groups: all of them take 73 GB with their gradients. Nothing of a layer but the sizes
# of its rows depends on their number.
step million 100 --backend cuda "${paper[@]}" --query-heads 32 --kv-heads 2 --tokens 1M \
    --selection structured --stages layer_grad,sparse_attention_grad
step layer-32k 60 --backend cuda-unordered "${paper[@]}" --tokens 32K --support selected \
    --stages "layer_grad,index_kl_grad,$passes"
step pilot 40 --backend cuda-unordered --preset pilot --index-element bf16 --tokens 8K,32K \
    --support selected --stages "layer_grad,index_kl_grad,$passes"
# cuDNN's deterministic gradient: one call at 8K tokens, pieces at 32K and 128K.
step ordered 60 --backend cuda "${paper[@]}" --tokens 8K,32K,128K --selection structured \
    --stages dense_attention_grad
# The loss on the full support, as in the indexer's warm-up.
step warm-up 40 --backend cuda "${paper[@]}" --tokens 32K --selection structured --support full \
    --stages index_kl_grad
exit "$failed"
