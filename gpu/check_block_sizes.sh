#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Blocks of 32 keys beside those of 64 and 128, on a machine with a GPU: right, and how fast. About
# three minutes.
#   gpu/check_block_sizes.sh BIN_DIR [OUT]
# BIN_DIR has test_backends, test_train, msa-bench and msa-pretrain, built with MSA_CUDA=ON. OUT
# (default: results/block-sizes) gets the logs, a record of each size and the runs. LIMIT in the
# environment: seconds of all steps together, 300 by default. SANITIZE, where it is set: few tests
# under compute-sanitizer too, last. A step that fails does not stop the others; the script fails
# last.
set -uo pipefail
bin=$(cd "${1:?BIN_DIR is missing}" && pwd) || exit
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${2:-results/block-sizes} LIMIT=${LIMIT:-300}
# shellcheck source=SCRIPTDIR/steps.sh
. gpu/steps.sh
find_libraries
export MSA_DATA_DIR=$PWD/data

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
step tests 100 "$bin/test_backends" --gtest_brief=1 \
    --gtest_filter='*/small_blocks*:*blocks_of_32*:CudaGrad.ManyChunks*:CudaPlan.*'
step training 60 "$bin/test_train" --gtest_brief=1 --gtest_filter='Arms/OnGpu.*/tuned_blocks_of_32'
step others 100 "$bin/test_backends" --gtest_brief=1 \
    --gtest_filter='All/Tuned.*:All/CudaGradCases.Tuned*:Tuned/GroupSizes.Match*cuda_bf16*-*/small_blocks*'
grep -hE 'PASSED|SKIPPED|FAILED TEST' "$out"/{tests,training,others}.log

text_of 64
for size in 64:4 32:8 128:2; do  # 256 keys of each query
    block=${size%:*} top_k=${size#*:}
    # One of the arms of data/pilot, without the steps before the selection.
    step "train-$block" 60 "$bin/msa-pretrain" "$out/text.bin" --held-out 0.2 --preset pilot \
        --context 2048 --sequences 16 --block-size "$block" --top-k "$top_k" --backend cuda \
        --steps 41 --lr-warmup 5 --warmup-steps 1 --log 10 --probe 20 --evaluate 0 --checkpoint 0 \
        --eval-sequences 2 --eval-exercises 0 --out "$out/train-$block" --overwrite
    grep -h ',tokens_per_second,' "$out/train-$block/curves.csv" 2>/dev/null | tail -n 3 |
        cut -d, -f 5 | xargs echo "tokens per second, blocks of $block:"
done
for size in 64:4 32:8; do
    block=${size%:*} top_k=${size#*:}
    bench "bench-$block" 40 --backend cuda --cases square --selection structured \
        --stages index_select,sparse_attention,sparse_attention_grad,index_kl_grad,block_mass \
        --support selected --order automatic --index-element bf16 --tokens 8K,32K --preset pilot \
        --block-size "$block" --top-k "$top_k"
done
few='All/Tuned.SparseAttentionMatchesReferenceInEveryOrder/small_blocks*'
few+=':All/Tuned.IndexSelectFollowsTheScores/small_blocks_packed'
few+=':All/Tuned.BlockMassMatchesReference/small_blocks_packed'
few+=':All/CudaGradCases.TunedIsPlainButForRoundings/blocks_of_32_packed'
for tool in ${SANITIZE:+memcheck initcheck}; do
    step "$tool" 150 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/test_backends" \
        --gtest_brief=1 --gtest_filter="$few"
    grep -h 'SUMMARY' "$out/$tool.log"
done
exit "$failed"
