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
LIMIT=${LIMIT:-290}
# shellcheck source=SCRIPTDIR/steps.sh
. "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

# Both dims 128 and 128 keys first, the shape that is measured; then one more size at a time.
cases=(paper paper_packed pilot pilot_packed narrow_index many_uses g1_wide_blocks g3_packed
    g5_narrow_index g12_packed g2_small_blocks g8_blocks_of_32)
abreast 4 tests < <(printf '%s\n' "${cases[@]}" | sed 's!.*!& *CudaKlCases.*/&!')
tests pieces 'All/CudaKlTypes.RoundsAndPiecesAreTheirSum/bf16'
tests plain '*IndexKl*cuda*:*IndexLse*cuda*'
# The gradient of attention shares what lies between copies and products.
tests attention_grad '*CudaGradCases.TunedIsPlainButForRoundings*'
for tool in ${SANITIZE:+memcheck initcheck}; do
    tests "$tool" 'All/CudaKlCases.TensorCoresGiveWhatThePlainKernelGives/g*_packed' \
        compute-sanitizer --tool "$tool" --error-exitcode 9
done

index_kl=(--backend cuda --cases square --order automatic --index-element bf16
    --stages index_kl_grad)
bench selected-128k 60 "${index_kl[@]}" --preset paper --tokens 128K --support selected
bench full-32k 60 "${index_kl[@]}" --preset paper --tokens 32K --selection structured --support full
bench selected-8k-32k 60 "${index_kl[@]}" --preset paper --tokens 8K,32K --support selected
bench selected-pilot 60 "${index_kl[@]}" --preset pilot --tokens 8K,32K --support selected
exit "$failed"
