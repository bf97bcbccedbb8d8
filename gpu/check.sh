#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that the cuda backend must pass on a machine with a GPU, and a short table of it last.
#   gpu/check.sh [--each] [--sanitizers] [BIN_DIR [OUT]]
# BIN_DIR has the programs and tests; without it, they are built for the GPU that is present. OUT
# (default: results/gpu-check) gets the logs. STAGES, LIMIT and TEXT in the environment: gpu/steps.sh.
#   --each        tests of the tuned kernels case by case, each in a process of its own, so that a
#                 kernel that hangs or is wrong at one shape names the shape: e4m3-*, f16-*, kl-*
#   --sanitizers  compute-sanitizer's memcheck, racecheck and initcheck over every operation, which
#                 takes several minutes more; and over gpu/sanitizer_findings.cu, of which racecheck
#                 and initcheck report what they report of the kernels. SANITIZER_SECONDS: of a
#                 tool's process, at most
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
each=0 sanitizers=0
while [[ ${1-} == --* ]]; do
    case $1 in
        --each) each=1 ;;
        --sanitizers) sanitizers=1 ;;
        *) echo "gpu/check.sh: unknown option $1" >&2 && exit 2 ;;
    esac
    shift
done
if (($#)); then
    bin=$1
else
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [[ $capability == 90 ]] && capability=90a
    offline=()
    # shellcheck disable=SC1091
    [[ ! -f build/offline/use.sh ]] || . build/offline/use.sh
    cmake --preset release -DMSA_CUDA=ON "${offline[@]}" -DCMAKE_CUDA_ARCHITECTURES="$capability-real" &&
        cmake --build --preset release --parallel "$(nproc)" --target test_backends test_goldens \
            test_experiments test_train test_parallel msa-pretrain || exit
    bin=build/release/bin
fi
out=${2:-results/gpu-check}
# shellcheck source=SCRIPTDIR/steps.sh
. gpu/steps.sh
cores=$(nproc)
processes=$((cores < 16 ? cores : 16)) # that share the GPU
export NCCL_NVLS_ENABLE=0 NCCL_DEBUG=${NCCL_DEBUG:-WARN}

# sharded COMMAND...: a test program in several processes side by side; much of a test is the
# reference, on the host.
# shellcheck disable=SC2317  # the following are called by step
sharded() {
    local shard pid pids=() outcome=0
    for ((shard = 0; shard < processes; ++shard)); do
        GTEST_TOTAL_SHARDS=$processes GTEST_SHARD_INDEX=$shard \
            OMP_NUM_THREADS=$(((cores + processes - 1) / processes)) \
            timeout -k 5 "${allowed:?}" "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || outcome=1; done
    return "$outcome"
}

counted='[0-9]+ tests?\.|[0-9]+ FAILED TEST'
# tests NAME PROGRAM FILTER
tests() { step "$1" 900 "$counted|off by at most.*" sharded "$bin/$2" --gtest_brief=1 --gtest_filter="$3"; }

# A libcudnn without the functions that are called.
# shellcheck disable=SC2317
stub_cudnn() {
    LD_LIBRARY_PATH=$bin/stub_cudnn MSA_STUB_CUDNN=1 "$bin/test_backends" --gtest_brief=1 \
        --gtest_filter='Cuda.DenseAttentionSaysWhyCudnnDoesNotAnswer'
}

# Without a device the tests must skip, and fail where the device is required.
# shellcheck disable=SC2317
no_device() {
    CUDA_VISIBLE_DEVICES='' MSA_REQUIRE='' "$bin/test_backends" --gtest_filter='*CanStart*/cuda:Cuda.*' &&
        ! CUDA_VISIBLE_DEVICES='' MSA_REQUIRE=cuda "$bin/test_backends" --gtest_brief=1 \
            --gtest_filter='*CanStart*/cuda'
}

tests backends test_backends '*cuda*:*Cuda*:*Tuned*-*CudaLong*'
step past-2-31-elements 300 "$counted" "$bin/test_backends" --gtest_brief=1 --gtest_filter='*CudaLong*'
tests goldens test_goldens '*cuda*'
tests programs test_experiments '*FitBackend*:*Cuda*:*cuda*:*EveryBackend*'
[[ -d $bin/stub_cudnn ]] && step stub-cudnn 60 "$counted" stub_cudnn
step no-device 60 'there is no NVIDIA .*' no_device
step training 240 "$counted|off by at most.*" "$bin/test_train" --gtest_brief=1

# Runs of the pilot's sizes: the same weights in a rerun, bit by bit?
for arm in full msa; do
    for run in "$arm" "${arm}-again"; do
        pretrain "rerun-$run" 60 pilot 31 --attention "$arm" --backend cuda --warmup-steps 5 --log-every 10
    done
    step "rerun-$arm-same" 10 '.*' python3 bench/curves.py same "$out/rerun-$arm" \
        "$out/rerun-$arm-again"
done

# Two GPUs: sums, one layer over both, and curves beside those of one.
if (($(gpus) > 1)); then
    nvidia-smi topo -m 2>/dev/null | head -n 5
    # The way between the GPUs: as the program asks for it, else without memory handles, else through
    # the host's memory, which is slow, but shows whether the rest is right.
    for way in '' NCCL_CUMEM_ENABLE=0 NCCL_P2P_DISABLE=1; do
        [[ -z $way ]] || { echo "once more with $way" && export "${way?}"; }
        step "two-gpus${way:+-$way}" 60 "$counted|added up.*|SKIPPED" "$bin/test_train" \
            --gtest_brief=1 --gtest_filter='TwoGpus.*' && ! grep -qs SKIPPED "$out/two-gpus${way:+-$way}.log" && break
        failed=1
    done
    step two-gpus-layer 60 "$counted" "$bin/test_parallel" --gtest_brief=1 --gtest_filter='TwoGpus.*'
    for preset in nano:40 pilot:22; do
        IFS=: read -r name count <<<"$preset"
        for run in 1:0 2:0,1 2-again:0,1; do
            pretrain "two-gpus-$name-${run%%:*}" 50 "$name" "$count" --backend cuda --sequences 8 \
                --devices "${run#*:}" --warmup-steps 5 --log-every 1
        done
        step "two-gpus-$name-curves" 10 '.*' python3 bench/curves.py compare \
            "$out/two-gpus-$name-1" "$out/two-gpus-$name-2"
        step "two-gpus-$name-same" 10 '.*' python3 bench/curves.py same \
            "$out/two-gpus-$name-2" "$out/two-gpus-$name-2-again"
    done
fi

# case_of NAME FILTER: tests of test_backends, of which there must be one.
case_of() {
    step "$1" 90 '^\[  PASSED  \] [1-9].*' "$bin/test_backends" --gtest_brief=1 --gtest_filter="$2" || return
    wanted "$1" && ! grep -qE '^\[  PASSED  \] [1-9]' "$out/$1.log" && echo "$1: no test passed" && failed=1
}
if ((each)); then
    # What is exact first: equal logits show where values lie, single keys where keys do. Then
    # roundings, scales far apart and NaN.
    for test in EqualLogitsGiveTheMean OneKeyOfEachRowIsFound MatchesTheReference \
        BlocksWhoseScalesAreFarApart UnseenAndForeignNanChangeNothing NanQueriesGiveNan; do
        for name in decode decode_narrow paper mixed blocks_of_64 narrow narrow_wide_blocks packed g3 g64; do
            case_of "e4m3-$test-$name" "All/E4m3Tuned.$test/cuda_$name"
        done
    done
    case_of e4m3-plain '*E4m3Attention*cuda*:*E4m3Operands*cuda*'
    # Forward kernels first, a shape of each kind; gradients and index_kl then.
    while read -r name filter; do case_of "f16-$name" "$filter"; done <<'CASES'
square All/Tuned.*/f16_square
square_narrow All/Tuned.*/f16_square_narrow
decode All/Tuned.*/f16_decode:All/Tuned.*/f16_few_*
packed All/Tuned.*/f16_ragged:All/Tuned.*/f16_prefix*:All/Tuned.*/f16_middle
groups All/Tuned.*/f16_*_groups:All/Tuned.*/f16_forced:All/Tuned.*/f16_k_above_blocks
small_blocks All/Tuned.*/f16_small_blocks*
values All/Tuned.*/f16_all_equal:All/Tuned.*/f16_extreme_scores:All/Tuned.*/f16_sampled
empty All/Tuned.*/f16_empty_keys:All/Tuned.*/f16_more_queries_than_keys
group_sizes Tuned/GroupSizes.MatchReferenceInEveryOrder/cuda_f16_*
plain *Matches*/cuda_f16_tail_block:*Matches*/cuda_f16_mqa:*Follows*/cuda_f16_tail_block
elements Cuda.*Half*:Cuda.OtherElements*:CudaPlan.*
grad_square All/CudaGradCases.*/f16_square:All/CudaGradCases.*/f16_tail_block
grad_packed All/CudaGradCases.*/f16_packed:All/CudaGradCases.*/f16_pilot*
grad_groups All/CudaGradCases.Tuned*/f16_g*:All/CudaGradCases.Tuned*/f16_blocks_of_32*
grad_range CudaGrad.LossesOfAnySize*:CudaGrad.ManyChunks*
kl_paper All/CudaKlCases.*/f16_paper*
kl_pilot All/CudaKlCases.*/f16_pilot*:All/CudaKlCases.*/f16_narrow_index
kl_groups All/CudaKlCases.Tensor*/f16_g*:All/CudaKlCases.Tensor*/f16_many_uses
kl_pieces All/CudaKlTypes.RoundsAndPiecesAreTheirSum/f16
lse All/CudaLse.*/f16_*:CudaLsePlan.*
CASES
    # Both dims 128 and 128 keys first, the shape that is measured; then one more size at a time.
    for name in paper paper_packed pilot pilot_packed narrow_index many_uses g1_wide_blocks g3_packed \
        g5_narrow_index g12_packed g2_small_blocks g8_blocks_of_32; do
        case_of "kl-$name" "*CudaKlCases.*/$name"
    done
    case_of kl-pieces 'All/CudaKlTypes.RoundsAndPiecesAreTheirSum/bf16'
    case_of kl-plain '*IndexKl*cuda*:*IndexLse*cuda*'
fi

# sanitizer NAME TOOL PROGRAM FILTER [OPTIONS]
sanitizer() {
    step "$1" "${SANITIZER_SECONDS:-900}" '[0-9]+ tests?\.|SUMMARY.*' sharded timeout -k 5 \
        "${SANITIZER_SECONDS:-900}" compute-sanitizer --tool "$2" --error-exitcode 9 "${@:5}" \
        "$bin/$3" --gtest_brief=1 --gtest_filter="$4"
}
# findings TOOL: what it reports of a few lines that stand by themselves; passes if their results
# are right.
# shellcheck disable=SC2317
findings() {
    nvcc -arch=sm_90 -lineinfo gpu/sanitizer_findings.cu -o "$out/findings" &&
        compute-sanitizer --tool "$1" "$out/findings"
}
if ((sanitizers)); then
    every="" small=""
    for test in DenseAttention.MatchesReference IndexScores.MatchesReference \
        SelectBlocks.IsExactlyTheRule IndexSelect.FollowsTheReferenceScores \
        SparseAttention.EveryOrderMatchesReference BlockMassTest.MatchesReference \
        IndexKlTest.MatchesReferenceOnBothSupports AttentionGradTest.MatchesReference; do
        every+="All/$test/cuda_*:"
        for case in f32_packed_ragged bf16_tail_block bf16_mqa f32_empty_keys f32_forty_heads; do
            small+="All/$test/cuda_$case:"
        done
    done
    for case in square prefix decode many_groups few_wide parts_packed small_blocks_packed \
        small_decode f16_square f16_decode h256_packed h256_slots h256_parts \
        h256_decode; do # what the tuned kernels answer
        every+="All/Tuned.*/$case:"
        small+="All/Tuned.*/$case:"
    done
    every+="Tuned/GroupSizes.MatchReferenceInEveryOrder/cuda_bf16_*:"
    for case in g1_ragged g4_square g5_packed g40_packed g4_blocks_of_32; do
        small+="Tuned/GroupSizes.MatchReferenceInEveryOrder/cuda_bf16_$case:"
    done
    every+="All/CudaGradCases.*:CudaGrad.*:" # the tuned gradient
    every+="All/CudaLse.MatchesReference*:"
    small+="All/CudaLse.MatchesReference*/few_blocks:All/CudaLse.MatchesReference*/g?:"
    every+="All/LengthsNow.*:LengthsNowOfUnlikeSequences.*:*TunedPages.*:" # the host knows no length
    small+="All/LengthsNow.GiveWhat*:*TunedPages.SelectWhat*:"
    every+="All/CudaKlCases.TensorCores*:All/CudaKlCases.WhatIsNotSeen*:All/E4m3Tuned.*/cuda_*:"
    for case in pilot paper_packed g5_narrow_index f16_pilot_blocks_of_32; do
        small+="All/CudaKlCases.TensorCores*/$case:"
    done
    for case in decode mixed packed g3; do small+="All/E4m3Tuned.MatchesTheReference/cuda_$case:"; done
    for case in tail_block packed pilot_packed g5 pilot_blocks_of_32; do
        small+="All/CudaGradCases.TunedIsPlainButForRoundings/$case:"
        small+="All/CudaGradCases.WhatIsNotSeenHasNoInfluence/$case:"
    done
    sanitizer memcheck memcheck test_backends "$every" --leak-check full
    sanitizer racecheck racecheck test_backends "$small-*Dense*" # cuDNN's
    sanitizer initcheck initcheck test_backends "$every"
    for tool in memcheck racecheck; do
        sanitizer "training-$tool" "$tool" test_train \
            'All/Operations.*cuda*:Arms/OnGpu.RerunsChangeNoBit/value_head'
    done
    if command -v nvcc >/dev/null; then
        for tool in racecheck initcheck; do
            step "findings-$tool" 120 'the result.*|SUMMARY.*' findings "$tool"
        done
    fi
fi
summary
