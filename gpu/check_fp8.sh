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
LIMIT=${LIMIT:-290}
# shellcheck source=SCRIPTDIR/steps.sh
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# What is exact first, one test and shape after the other: equal logits show where values lie, single
# keys where keys do. Then roundings, scales far apart and NaN.
cases=(decode decode_narrow paper mixed blocks_of_64 narrow narrow_wide_blocks packed g3 g64)
for test in EqualLogitsGiveTheMean OneKeyOfEachRowIsFound MatchesTheReference \
    BlocksWhoseScalesAreFarApart UnseenAndForeignNanChangeNothing NanQueriesGiveNan; do
    for name in "${cases[@]}"; do echo "$test-$name All/E4m3Tuned.$test/cuda_$name"; done
done | cat >"$out/cases"
abreast 3 tests <"$out/cases"
tests plain '*E4m3Attention*cuda*:*E4m3Operands*cuda*'
# bf16 goes through the same sources.
tests bf16 '*Tuned.SparseAttention*:*Tuned.UnseenNan*:*Tuned.ForeignBlocks*'
for tool in ${SANITIZE:+memcheck initcheck}; do
    tests "$tool" 'All/E4m3Tuned.MatchesTheReference/cuda_packed:All/E4m3Tuned.MatchesTheReference/cuda_decode' \
        compute-sanitizer --tool "$tool" --error-exitcode 9
done

# The index operands of both are e4m3, so that both attend to the same blocks.
for element in e4m3 bf16; do
    both=(--backend cuda --preset paper --stages "sparse_attention,layer" --element "$element"
        --index-element e4m3)
    bench "$element-128k" 60 "${both[@]}" --cases square --tokens 128K \
        --order automatic,union,kv_outer
    bench "$element-8k-32k" 60 "${both[@]}" --cases square --tokens 8K,32K --order automatic,union
    bench "$element-decode-1m" 60 "${both[@]}" --cases decode --tokens 1M --batch 1 \
        --selection structured --order automatic
done
exit "$failed"
