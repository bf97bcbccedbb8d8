#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that the cuda backend must pass on a machine with a GPU, and a short table of it last.
#   gpu/check.sh [--sanitizers] [DIR]
# DIR holds test_backends, test_goldens and test_experiments made before; without it, they are built
# for the GPU that is present. --sanitizers: compute-sanitizer's memcheck, racecheck and initcheck
# over every operation as well, which takes several minutes more; and over gpu/sanitizer_findings.cu,
# of which racecheck and initcheck report what they report of the kernels. STAGES in the environment: a
# regular expression of the stages to run; SANITIZER_SECONDS: of a tool's process, at most.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

sanitizers=0
if [[ ${1-} == --sanitizers ]]; then
    sanitizers=1
    shift
fi
if (($#)); then
    bin=$1
else
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [[ $capability == 90 ]] && capability=90a
    cmake --preset release -DMSA_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$capability-real"
    cmake --build --preset release --parallel "$(nproc)" \
        --target test_backends test_goldens test_experiments
    bin=build/release/bin
fi
logs=$(mktemp -d)
PATH=$PATH:/usr/local/cuda/bin
rows=()
failed=0

# stage NAME PATTERN COMMAND...: passes when the command does; the table shows what in its output
# matches the pattern.
stage() {
    local name=$1 pattern=$2 began=$SECONDS outcome=ok log
    [[ $name =~ ${STAGES:-.} ]] || return 0
    log=$logs/${name// /-}
    shift 2
    "$@" >"$log" 2>&1 || outcome=FAILED
    if [[ $outcome != ok ]]; then
        failed=1
        grep -E -B 8 'FAILED|Failure|=========' "$log" | head -n 60 || tail -n 20 "$log"
    fi
    rows+=("$(printf '%-22s %-7s %4d s  %s' "$name" "$outcome" $((SECONDS - began)) \
        "$(grep -oE "$pattern" "$log" | sort -u | paste -sd ';')")")
    echo "${rows[-1]}"
}

# shards COUNT COMMAND...: a test program in COUNT processes side by side.
# shellcheck disable=SC2317  # the following are called by stage
shards() {
    local shard pid pids=() outcome=0 count=$1
    shift
    for ((shard = 0; shard < count; ++shard)); do
        MSA_REQUIRE=cuda GTEST_TOTAL_SHARDS=$count GTEST_SHARD_INDEX=$shard \
            OMP_NUM_THREADS=$(((cores + count - 1) / count)) "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || outcome=1; done
    return "$outcome"
}

# tests PROGRAM FILTER
# shellcheck disable=SC2317
tests() {
    shards "$processes" "$bin/$1" --gtest_brief=1 --gtest_filter="$2"
}

# sanitizer TOOL FILTER [OPTIONS]
# shellcheck disable=SC2317
sanitizer() {
    shards "$processes" timeout -k 5 "${SANITIZER_SECONDS:-900}" compute-sanitizer \
        --tool "$1" --error-exitcode 9 "${@:3}" "$bin/test_backends" --gtest_brief=1 \
        --gtest_filter="$2"
}

# A libcudnn without the functions that are called.
# shellcheck disable=SC2317
stub_cudnn() {
    LD_LIBRARY_PATH=$bin/stub_cudnn MSA_STUB_CUDNN=1 MSA_REQUIRE=cuda "$bin/test_backends" \
        --gtest_brief=1 --gtest_filter='Cuda.DenseAttentionSaysWhyCudnnDoesNotAnswer'
}

# findings TOOL: what it reports of a few lines that stand by themselves; passes if their results
# are right.
# shellcheck disable=SC2317
findings() {
    nvcc -arch=sm_90 -lineinfo gpu/sanitizer_findings.cu -o "$logs/findings" &&
        compute-sanitizer --tool "$1" "$logs/findings"
}

# Without a device the tests must skip, and fail where the device is required.
# shellcheck disable=SC2317
no_device() {
    CUDA_VISIBLE_DEVICES='' MSA_REQUIRE='' "$bin/test_backends" --gtest_filter='*CanStart*/cuda:Cuda.*' &&
        ! CUDA_VISIBLE_DEVICES='' MSA_REQUIRE=cuda "$bin/test_backends" --gtest_brief=1 \
            --gtest_filter='*CanStart*/cuda'
}

cores=$(nproc)
processes=$((cores < 16 ? cores : 16)) # that share the GPU
every=""
small=""
for test in DenseAttention.MatchesReference IndexScores.MatchesReference \
    SelectBlocks.IsExactlyTheRule IndexSelect.FollowsTheReferenceScores \
    SparseAttention.EveryOrderMatchesReference BlockMassTest.MatchesReference \
    IndexKlTest.MatchesReferenceOnBothSupports AttentionGradTest.MatchesReference; do
    every+="All/$test/cuda_*:"
    for case in f32_packed_ragged bf16_tail_block bf16_mqa f32_empty_keys f32_forty_heads; do
        small+="All/$test/cuda_$case:"
    done
done
for case in square prefix decode many_groups few_wide small_blocks_packed small_blocks_decode \
    f16_square f16_decode; do  # what the tuned kernels answer
    every+="All/Tuned.*/$case:"
    small+="All/Tuned.*/$case:"
done
every+="Tuned/GroupSizes.MatchReferenceInEveryOrder/cuda_bf16_*:"
for case in g1_ragged g4_square g5_packed g40_packed g4_blocks_of_32; do
    small+="Tuned/GroupSizes.MatchReferenceInEveryOrder/cuda_bf16_$case:"
done

every+="All/CudaGradCases.*:CudaGrad.*:"  # the tuned gradient
every+="All/CudaKlCases.TensorCores*:All/CudaKlCases.WhatIsNotSeen*:All/E4m3Tuned.*/cuda_*:"
for case in pilot paper_packed g5_narrow_index f16_pilot_blocks_of_32; do
    small+="All/CudaKlCases.TensorCores*/$case:"
done
for case in decode mixed packed g3; do small+="All/E4m3Tuned.MatchesTheReference/cuda_$case:"; done
for case in tail_block packed pilot_packed g5 blocks_of_32_packed; do
    small+="All/CudaGradCases.TunedIsPlainButForRoundings/$case:"
    small+="All/CudaGradCases.WhatIsNotSeenHasNoInfluence/$case:"
done

counted='[0-9]+ tests?\.|[0-9]+ FAILED TEST'
stage "backends" "$counted" tests test_backends '*cuda*:*Cuda*:*Tuned*'
stage "goldens" "$counted" tests test_goldens '*cuda*'
stage "programs" "$counted" tests test_experiments '*FitBackend*:*Cuda*:*cuda*:*EveryBackend*'
[[ -d $bin/stub_cudnn ]] && stage "stub of cuDNN" "$counted" stub_cudnn
stage "no device" 'there is no NVIDIA .*' no_device
if ((sanitizers)); then
    stage "memcheck" '[0-9]+ tests?\.|SUMMARY.*' sanitizer memcheck "$every" --leak-check full
    stage "racecheck" '[0-9]+ tests?\.|SUMMARY.*' sanitizer racecheck "$small-*Dense*" # cuDNN's
    stage "initcheck" '[0-9]+ tests?\.|SUMMARY.*' sanitizer initcheck "$every"
    if command -v nvcc >/dev/null; then
        for tool in racecheck initcheck; do
            stage "$tool, alone" 'the result.*|SUMMARY.*' findings "$tool"
        done
    fi
fi
echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
printf '%s\n' "${rows[@]}"
exit "$failed"
