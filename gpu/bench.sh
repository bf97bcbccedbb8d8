#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Times on a machine with a GPU, what matters most first.
#   gpu/bench.sh BIN_DIR [OUT]
# BIN_DIR has msa-bench and msa-pretrain, built with MSA_CUDA=ON. OUT (default: results/gpu-bench) gets
# a log of each step, the records and the runs. STAGES, LIMIT and TEXT: gpu/steps.sh. Names of steps
# begin with what they time:
#   grad    gradients, the KL loss and a layer's step of training, and PyTorch's backward pass
#   blocks  blocks of 32, 64 and 128 keys at equal selected keys
#   e4m3, int8, f16  operands of these types beside bf16
#   ranks   one layer over two GPUs beside one of them
#   train   steps of MSA beside dense ones, and the same dense model in PyTorch
#   two     training on two GPUs beside one
# The whole of ./msalab bench gpu is another thing: every stage, the tables of docs/kernels.md.
# A record is written after every measurement, so that a step that is cut off leaves what it had.
set -uo pipefail
bin=$(cd "${1:?BIN_DIR is missing}" && pwd) || exit
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${2:-results/gpu-bench}
# shellcheck source=SCRIPTDIR/steps.sh
. gpu/steps.sh

# bench NAME SECONDS OPTIONS...: a record of msa-bench.
bench() {
    local name=$1 most=$2
    shift 2
    step "$name" "$most" '' "$bin/msa-bench" --samples 5 --out "$out/$name.json" --overwrite "$@"
    grep -shE '^(square|prefix|decode) .*: ' "$out/$name.log"
}

square=(--cases square --order automatic --index-element bf16)
passes=dense_attention,dense_attention_grad,sparse_attention,sparse_attention_grad
# Dense attention and its gradient in the same run as the layers that are compared with it.
bench grad-128k 180 "${square[@]}" --backend cuda-unordered --preset paper --tokens 128K \
    --support selected --stages "layer_grad,index_kl_grad,$passes"
# Half of the groups: all of them take 73 GB with their gradients. Nothing of a layer but the sizes
# of its rows depends on their number.
bench grad-1m 100 "${square[@]}" --backend cuda --preset paper --query-heads 32 --kv-heads 2 \
    --tokens 1M --selection structured --stages layer_grad,sparse_attention_grad
bench grad-32k 80 "${square[@]}" --backend cuda-unordered --preset paper --tokens 8K,32K \
    --support selected --stages "layer_grad,index_kl_grad,$passes"
bench grad-pilot 55 "${square[@]}" --backend cuda-unordered --preset pilot --tokens 8K,32K \
    --support selected --stages "layer_grad,index_kl_grad,$passes"
# cuDNN's deterministic gradient: one call at 8K tokens, pieces at 32K and 128K.
bench grad-ordered 60 "${square[@]}" --backend cuda --preset paper --tokens 8K,32K,128K \
    --selection structured --stages dense_attention_grad
# The loss on the full support, as in the indexer's warm-up.
bench grad-warm-up 40 "${square[@]}" --backend cuda --preset paper --tokens 32K \
    --selection structured --support full --stages index_kl_grad
has_torch && step grad-torch 300 '.*ms.*' python3 bench/attention_backward.py

for size in 64:4 32:8 128:2; do # 256 keys of each query
    block=${size%:*} sizes=(--block-size "${size%:*}" --top-k "${size#*:}")
    # One of the arms of studies/pilot, without the steps before the selection.
    pretrain "blocks-train-$block" 60 pilot 41 --context 2048 --sequences 16 "${sizes[@]}" \
        --backend cuda --warmup-steps 1 --log-every 10 --probe-every 20
    ((block == 128)) ||
        bench "blocks-$block" 40 "${square[@]}" --backend cuda --selection structured \
            --stages index_select,sparse_attention,sparse_attention_grad,index_kl_grad,block_mass \
            --support selected --tokens 8K,32K --preset pilot "${sizes[@]}"
done

# The index operands of both are e4m3, so that both attend to the same blocks.
for element in e4m3 bf16; do
    both=(--backend cuda --preset paper --stages "sparse_attention,layer" --element "$element"
        --index-element e4m3)
    bench "e4m3-128k-$element" 80 "${both[@]}" --cases square --tokens 128K \
        --order automatic,union,kv_outer
    bench "e4m3-32k-$element" 80 "${both[@]}" --cases square --tokens 8K,32K --order automatic,union
    bench "e4m3-decode-1m-$element" 60 "${both[@]}" --cases decode --tokens 1M --batch 1 \
        --selection structured --order automatic
done
index=(--backend cuda --preset paper --index-element "bf16,e4m3,int8" --stages "index_select,layer")
bench int8-128k 80 "${index[@]}" --cases square --tokens 128K --order automatic
bench int8-decode-1m 60 "${index[@]}" --cases decode --tokens 1M --batch 1,8 --selection structured
for preset in paper pilot; do
    for element in bf16 f16; do
        bench "f16-$preset-32k-$element" 40 --backend cuda --cases square --order automatic \
            --preset "$preset" --tokens 32K --support selected --element "$element" \
            --index-element "$element" \
            --stages index_select,sparse_attention,sparse_attention_grad,index_kl_grad
    done
done

if (($(gpus) > 1)); then
    both=(--backend cuda --devices "0,1" --preset paper --index-element bf16)
    bench ranks-decode 60 "${both[@]}" --cases decode --tokens 128K,1M --samples 9
    bench ranks-prefill 110 "${both[@]}" --cases square --tokens 512K,1M --samples 3
    bench ranks-prefill-128k 40 "${both[@]}" --cases square --tokens 128K
fi

# No warm-up of the Index Branch, rates every two steps. The dense gradient at these lengths is faster
# in any order; MSA's is the same in both backends.
rates=(--warmup-steps 0 --log-every 2 --exercises 0)
for length in 32k:32768:20 128k:131072:8; do
    IFS=: read -r name context count <<<"$length"
    for kind in full msa; do
        pretrain "train-${kind}_$name" 75 pilot "$count" --attention "$kind" --context "$context" \
            --sequences 1 --backend cuda-unordered "${rates[@]}"
    done
done
for preset in large pilot; do
    for kind in full msa window; do
        [[ $preset$kind == largewindow ]] || pretrain "train-${kind}_$preset" 40 "$preset" 30 \
            --attention "$kind" --backend cuda "${rates[@]}"
    done
    has_torch && step "train-torch_$preset" 120 '^[0-9]+$' \
        python3 bench/pretrain_torch.py --preset "$preset"
done
# Two GPUs with the steps of one, and with steps twice as large.
if (($(gpus) > 1)); then
    for arm in msa full; do
        for run in 1:0:8 2:0,1:8 2_wide:0,1:16 1_again:0:8; do
            IFS=: read -r name devices sequences <<<"$run"
            pretrain "two-${arm}_$name" 50 pilot 101 --attention "$arm" --backend cuda \
                --devices "$devices" --sequences "$sequences" --warmup-steps 5 --log-every 20
        done
    done
fi
python3 bench/curves.py rates "$out" || failed=1
summary
