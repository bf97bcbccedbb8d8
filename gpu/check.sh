#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that the cuda backend must pass on a machine with a GPU, and a short table of it:
# the backend tests, and compute-sanitizer's memcheck, racecheck and initcheck over every operation.
#   gpu/check.sh [DIR]    DIR holds test_backends and test_experiments made before; without it,
#                         they are built for the GPU that is present
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if (($#)); then
    bin=$1
else
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
    [[ $capability == 90 ]] && capability=90a
    cmake --preset release -DMSA_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="$capability-real"
    cmake --build --preset release --parallel "$(nproc)" --target test_backends test_experiments
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

# shellcheck disable=SC2317  # the following are called by stage
tests() { MSA_REQUIRE=cuda "$bin/test_backends" --gtest_brief=1 --gtest_filter="$1"; }

# shellcheck disable=SC2317
fit() { MSA_REQUIRE=cuda "$bin/test_experiments" --gtest_brief=1 --gtest_filter='*FitBackend*:*EveryBackend*'; }

# sanitizer TOOL FILTER [OPTIONS]: in shards, side by side.
# shellcheck disable=SC2317
sanitizer() {
    local shard pid pids=() outcome=0
    for ((shard = 0; shard < shards; ++shard)); do
        MSA_REQUIRE=cuda OMP_NUM_THREADS=1 GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$shard \
            compute-sanitizer --tool "$1" --error-exitcode 9 "${@:3}" \
            "$bin/test_backends" --gtest_brief=1 --gtest_filter="$2" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || outcome=1; done
    return "$outcome"
}

# Without a device the tests must skip, and fail where the device is required.
# shellcheck disable=SC2317
no_device() {
    CUDA_VISIBLE_DEVICES='' "$bin/test_backends" --gtest_filter='*CanStart*/cuda:Cuda.*' &&
        ! CUDA_VISIBLE_DEVICES='' tests '*CanStart*/cuda'
}

shards=$(($(nproc) < 8 ? $(nproc) : 8))
every=""
small=""
for test in DenseAttention.MatchesReference IndexScores.MatchesReference \
    SelectBlocks.IsExactlyTheRule IndexSelect.FollowsTheReferenceScores \
    SparseAttention.EveryOrderMatchesReference BlockMassTest.MatchesReference \
    IndexKlTest.MatchesReferenceOnBothSupports; do
    every+="All/$test/cuda_*:"
    for case in f32_packed_ragged bf16_tail_block bf16_mqa f32_empty_keys f32_forty_heads; do
        small+="All/$test/cuda_$case:"
    done
done
for case in square prefix decode many_groups few_wide; do  # what the tuned kernels answer
    every+="All/Tuned.*/$case:"
    small+="All/Tuned.*/$case:"
done
every+="Tuned/GroupSizes.MatchReferenceInEveryOrder/cuda_bf16_*:"
for case in g1_ragged g4_square g5_packed g40_packed; do
    small+="Tuned/GroupSizes.MatchReferenceInEveryOrder/cuda_bf16_$case:"
done

stage "tests" '[0-9]+ tests?\.|[0-9]+ FAILED TEST' tests '*cuda*:Cuda.*:*Tuned.*'
stage "fit" '[0-9]+ tests?\.|[0-9]+ FAILED TEST' fit
stage "no device" 'there is no NVIDIA .*' no_device
stage "memcheck" '[0-9]+ tests?\.|SUMMARY.*' sanitizer memcheck "$every" --leak-check full
stage "racecheck" '[0-9]+ tests?\.|SUMMARY.*' sanitizer racecheck "$small"
stage "initcheck" '[0-9]+ tests?\.|SUMMARY.*' sanitizer initcheck "$every"
echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || true
printf '%s\n' "${rows[@]}"
exit "$failed"
