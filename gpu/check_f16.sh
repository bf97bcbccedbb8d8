#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# f16 in the tuned kernels on a machine with a GPU, in at most three minutes: tests by name, so that a
# kernel that hangs or is wrong at one shape names the shape, then times of f16 beside bf16.
#   gpu/check_f16.sh BIN_DIR OUT_DIR
# BIN_DIR holds test_backends and msa-bench. OUT_DIR gets a log of each case and the records. A step
# that fails does not stop the others; the script fails last.
set -uo pipefail
bin=${1:?which folder holds test_backends and msa-bench} out=${2:?which folder gets the records}
mkdir -p "$out"
export MSA_REQUIRE=cuda
failed=0

# case_of NAME FILTER: tests in a process of their own.
case_of() {
    local name=$1 filter=$2 outcome=ok began=$SECONDS
    OMP_NUM_THREADS=2 timeout -k 5 45 "$bin/test_backends" --gtest_brief=1 \
        --gtest_filter="$filter" >"$out/$name.log" 2>&1 || outcome="FAILED ($?)" # 124: it hung
    if ! grep -qE '^\[  PASSED  \] [1-9]' "$out/$name.log" && [[ $outcome == ok ]]; then
        outcome="FAILED: no test"
    fi
    printf '%-28s %-16s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    [[ $outcome == ok ]] || grep -E -m 3 -A 8 'Failure|what\(\)' "$out/$name.log"
    [[ $outcome == ok ]]
}

# Forward kernels first, a shape of each kind; gradients and index_kl then.
cases=(
    "square All/Tuned.*/f16_square"
    "square_narrow All/Tuned.*/f16_square_narrow"
    "decode All/Tuned.*/f16_decode:All/Tuned.*/f16_few_*"
    "packed All/Tuned.*/f16_ragged:All/Tuned.*/f16_prefix*:All/Tuned.*/f16_middle"
    "groups All/Tuned.*/f16_*_groups:All/Tuned.*/f16_forced:All/Tuned.*/f16_k_above_blocks"
    "small_blocks All/Tuned.*/f16_small_blocks*"
    "values All/Tuned.*/f16_all_equal:All/Tuned.*/f16_extreme_scores:All/Tuned.*/f16_sampled"
    "empty All/Tuned.*/f16_empty_keys:All/Tuned.*/f16_more_queries_than_keys"
    "group_sizes Tuned/GroupSizes.MatchReferenceInEveryOrder/cuda_f16_*"
    "plain *Matches*/cuda_f16_tail_block:*Matches*/cuda_f16_mqa:*Follows*/cuda_f16_tail_block"
    "elements Cuda.*Half*:Cuda.OtherElements*:CudaPlan.*"
    "grad_square All/CudaGradCases.*/f16_square:All/CudaGradCases.*/f16_tail_block"
    "grad_packed All/CudaGradCases.*/f16_packed:All/CudaGradCases.*/f16_pilot*"
    "grad_groups All/CudaGradCases.Tuned*/f16_g*:All/CudaGradCases.Tuned*/f16_blocks_of_32*"
    "grad_range CudaGrad.LossesOfAnySize*:CudaGrad.ManyChunks*"
    "kl_paper All/CudaKlCases.*/f16_paper*"
    "kl_pilot All/CudaKlCases.*/f16_pilot*:All/CudaKlCases.*/f16_narrow_index"
    "kl_groups All/CudaKlCases.Tensor*/f16_g*:All/CudaKlCases.Tensor*/f16_many_uses"
    "kl_pieces All/CudaKlTypes.RoundsAndPiecesAreTheirSum/f16"
)
for ((i = 0; i < ${#cases[@]}; i += 5)); do
    running=()
    for each in "${cases[@]:i:5}"; do
        case_of "${each%% *}" "${each#* }" &
        running+=($!)
    done
    for process in "${running[@]}"; do wait "$process" || failed=1; done
done

# bench NAME ELEMENT STAGES OPTIONS...
bench() {
    local name=$1-$2 outcome=ok began=$SECONDS element=$2 stages=$3
    shift 3
    timeout -k 5 30 "$bin/msa-bench" --backend cuda --cases square --order automatic --samples 5 \
        --element "$element" --index-element "$element" --stages "$stages" --support selected \
        --out "$out/$name.json" --overwrite "$@" >"$out/$name.log" 2>&1 || outcome="FAILED ($?)"
    [[ $outcome == ok ]] || failed=1
    printf '%-28s %-16s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    grep -E '^square .*: ' "$out/$name.log"
    [[ $outcome == ok ]] || tail -n 3 "$out/$name.log"
}
stages=index_select,sparse_attention,sparse_attention_grad,index_kl_grad
for element in bf16 f16; do
    bench paper-32k "$element" "$stages" --preset paper --tokens 32K
    bench pilot-32k "$element" "$stages" --preset pilot --tokens 32K
done
exit "$failed"
