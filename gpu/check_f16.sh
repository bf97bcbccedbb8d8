#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# f16 in the tuned kernels on a machine with a GPU, in at most three minutes: tests by name, so that a
# kernel that hangs or is wrong at one shape names the shape, then times of f16 beside bf16.
#   gpu/check_f16.sh BIN_DIR OUT_DIR
# BIN_DIR holds test_backends and msa-bench. OUT_DIR gets a log of each case and the records. A step
# that fails does not stop the others; the script fails last.
set -uo pipefail
bin=${1:?which folder holds test_backends and msa-bench} out=${2:?which folder gets the records}
LIMIT=${LIMIT:-175}
# shellcheck source=SCRIPTDIR/steps.sh
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

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
export OMP_NUM_THREADS=2 TEST_SECONDS=45
abreast 5 tests < <(printf '%s\n' "${cases[@]}")

stages=index_select,sparse_attention,sparse_attention_grad,index_kl_grad
for preset in paper pilot; do
    for element in bf16 f16; do
        bench "$preset-32k-$element" 30 --backend cuda --cases square --order automatic \
            --preset "$preset" --tokens 32K --stages "$stages" --support selected \
            --element "$element" --index-element "$element"
    done
done
exit "$failed"
