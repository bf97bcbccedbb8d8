#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# sparse_attention of e4m3 operands on a machine with a GPU, in at most five minutes: its tests case by
# case, so that a kernel that hangs or is wrong at one shape names the shape, then its times beside bf16.
#   gpu/check_fp8.sh BIN_DIR OUT_DIR
# BIN_DIR holds test_backends and msa-bench. OUT_DIR gets a log of each case and the records.
# SANITIZE=1 adds memcheck and initcheck of two cases. A step that fails does not stop the others; the
# script fails last.
set -uo pipefail
bin=${1:?which folder holds test_backends and msa-bench} out=${2:?which folder gets the records}
mkdir -p "$out"
export MSA_REQUIRE=cuda
failed=0

# case_of NAME FILTER [TOOL...]: tests in a process of their own, which may be run by a tool.
case_of() {
    local name=$1 filter=$2 outcome=ok began=$SECONDS
    shift 2
    timeout -k 5 60 "$@" "$bin/test_backends" --gtest_brief=1 --gtest_filter="$filter" \
        >"$out/$name.log" 2>&1 || outcome="FAILED ($?)" # 124: it hung
    printf '%-28s %-12s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    [[ $outcome == ok ]] || grep -E -m 4 -A 8 'Failure|=========|what\(\)' "$out/$name.log"
    [[ $outcome == ok ]]
}

# What is exact first, one test and shape after the other: equal logits show where values lie, single
# keys where keys do. Then roundings, scales far apart and NaN.
cases=(decode decode_narrow paper blocks_of_64 narrow narrow_wide_blocks packed g3 g64)
for test in EqualLogitsGiveTheMean OneKeyOfEachRowIsFound MatchesTheReference \
    BlocksWhoseScalesAreFarApart UnseenAndForeignNanChangeNothing NanQueriesGiveNan; do
    for ((i = 0; i < ${#cases[@]}; i += 3)); do
        running=()
        for name in "${cases[@]:i:3}"; do
            case_of "$test-$name" "All/E4m3Tuned.$test/cuda_$name" &
            running+=($!)
        done
        for process in "${running[@]}"; do wait "$process" || failed=1; done
    done
done
case_of plain '*E4m3Attention*cuda*:*E4m3Operands*cuda*' || failed=1
# bf16 goes through the same sources.
case_of bf16 '*Tuned.SparseAttention*:*Tuned.UnseenNan*:*Tuned.ForeignBlocks*' || failed=1
for tool in ${SANITIZE:+memcheck initcheck}; do
    case_of "$tool" 'All/E4m3Tuned.MatchesTheReference/cuda_packed:All/E4m3Tuned.MatchesTheReference/cuda_decode' \
        compute-sanitizer --tool "$tool" --error-exitcode 9 || failed=1
done

# bench NAME OPTIONS...
bench() {
    local name=$1 outcome=ok began=$SECONDS
    shift
    timeout -k 5 60 "$bin/msa-bench" --backend cuda --samples 5 --stages sparse_attention,layer \
        --out "$out/$name.json" --overwrite "$@" >"$out/$name.log" 2>&1 || outcome="FAILED ($?)"
    [[ $outcome == ok ]] || failed=1
    printf '%-28s %-12s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    grep -E '^(square|decode) .*: ' "$out/$name.log"
    [[ $outcome == ok ]] || tail -n 3 "$out/$name.log"
}
# The index operands of both are e4m3, so that both attend to the same blocks.
for element in e4m3 bf16; do
    bench "$element-128k" --preset paper --cases square --tokens 128K --element "$element" \
        --index-element e4m3 --order automatic,union,kv_outer
    bench "$element-8k-32k" --preset paper --cases square --tokens 8K,32K --element "$element" \
        --index-element e4m3 --order automatic,union
    bench "$element-decode-1m" --preset paper --cases decode --tokens 1M --batch 1 \
        --element "$element" --index-element e4m3 --selection structured --order automatic
done
exit "$failed"
