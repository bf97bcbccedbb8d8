#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# index_kl on a machine with a GPU, in at most five minutes: its tests case by case, so that a kernel
# that hangs or is wrong at one shape names the shape, then its times.
#   gpu/check_kl.sh BIN_DIR OUT_DIR
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
    timeout -k 5 90 "$@" "$bin/test_backends" --gtest_brief=1 --gtest_filter="$filter" \
        >"$out/$name.log" 2>&1 || outcome="FAILED ($?)" # 124: it hung
    printf '%-28s %-12s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    [[ $outcome == ok ]] || grep -E -m 3 -A 8 'Failure|=========|what\(\)' "$out/$name.log"
    [[ $outcome == ok ]]
}

# Both dims 128 and 128 keys first, the shape that is measured; then one more size at a time.
cases=(paper paper_packed pilot pilot_packed narrow_index many_uses g1_wide_blocks g3_packed
    g5_narrow_index g12_packed g2_small_blocks g8_blocks_of_32)
for ((i = 0; i < ${#cases[@]}; i += 4)); do
    running=()
    for name in "${cases[@]:i:4}"; do
        case_of "$name" "*CudaKlCases.*/$name" &
        running+=($!)
    done
    for process in "${running[@]}"; do wait "$process" || failed=1; done
done
case_of pieces 'All/CudaKlTypes.RoundsAndPiecesAreTheirSum/bf16' || failed=1
case_of plain '*IndexKl*cuda*:*IndexLse*cuda*' || failed=1
# The gradient of attention shares what lies between copies and products.
case_of attention_grad '*CudaGradCases.TunedIsPlainButForRoundings*' || failed=1
for tool in ${SANITIZE:+memcheck initcheck}; do
    case_of "$tool" 'All/CudaKlCases.TensorCoresGiveWhatThePlainKernelGives/g*_packed' \
        compute-sanitizer --tool "$tool" --error-exitcode 9 || failed=1
done

# bench NAME OPTIONS...
bench() {
    local name=$1 outcome=ok began=$SECONDS
    shift
    timeout -k 5 60 "$bin/msa-bench" --backend cuda --cases square --order automatic --samples 5 \
        --index-element bf16 --stages index_kl_grad --out "$out/$name.json" --overwrite "$@" \
        >"$out/$name.log" 2>&1 || outcome="FAILED ($?)"
    [[ $outcome == ok ]] || failed=1
    printf '%-28s %-12s %4d s\n' "$name" "$outcome" $((SECONDS - began))
    grep -E '^square .*: ' "$out/$name.log"
    [[ $outcome == ok ]] || tail -n 3 "$out/$name.log"
}
bench selected-128k --preset paper --tokens 128K --support selected
bench full-32k --preset paper --tokens 32K --selection structured --support full
bench selected-8k-32k --preset paper --tokens 8K,32K --support selected
bench pilot --preset pilot --tokens 8K,32K --support selected
exit "$failed"
