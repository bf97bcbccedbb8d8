#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Times of training on a machine with a GPU, in at most five minutes, what matters most first.
#   gpu/bench_grad.sh BIN_DIR OUT_DIR
# BIN_DIR holds msa-bench. OUT_DIR gets a record and a log of each step. LIMIT in the environment:
# seconds of all steps together, 290 by default. STEPS: names of those to run; default: all.
set -uo pipefail
bin=${1:?which folder holds msa-bench} out=${2:?which folder gets the records}
LIMIT=${LIMIT:-290}
# shellcheck source=SCRIPTDIR/steps.sh
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

square=(--cases square --order automatic)
paper=(--preset paper --index-element bf16)
passes=dense_attention,dense_attention_grad,sparse_attention,sparse_attention_grad
# Dense attention and its gradient in the same run as the layers that are compared with it.
bench layer-128k 140 "${square[@]}" --backend cuda-unordered "${paper[@]}" --tokens 128K --support selected \
    --stages "layer_grad,index_kl_grad,$passes"
# Half of the groups: all of them take 73 GB with their gradients. Nothing of a layer but the sizes
# of its rows depends on their number.
bench million 100 "${square[@]}" --backend cuda "${paper[@]}" --query-heads 32 --kv-heads 2 --tokens 1M \
    --selection structured --stages layer_grad,sparse_attention_grad
bench layer-32k 60 "${square[@]}" --backend cuda-unordered "${paper[@]}" --tokens 32K --support selected \
    --stages "layer_grad,index_kl_grad,$passes"
bench pilot 40 "${square[@]}" --backend cuda-unordered --preset pilot --index-element bf16 --tokens 8K,32K \
    --support selected --stages "layer_grad,index_kl_grad,$passes"
# cuDNN's deterministic gradient: one call at 8K tokens, pieces at 32K and 128K.
bench ordered 60 "${square[@]}" --backend cuda "${paper[@]}" --tokens 8K,32K,128K --selection structured \
    --stages dense_attention_grad
# The loss on the full support, as in the indexer's warm-up.
bench warm-up 40 "${square[@]}" --backend cuda "${paper[@]}" --tokens 32K --selection structured --support full \
    --stages index_kl_grad
exit "$failed"
