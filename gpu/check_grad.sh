#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The gradients alone on a machine with a GPU: their tests, compute-sanitizer on few cases, and their
# times beside PyTorch's backward pass where python3 has it.
#   gpu/check_grad.sh [OUT]
# OUT (default: results/grad) gets the logs and the records of msa-bench. SANITIZE=1 in the environment
# adds memcheck and initcheck, which take minutes (racecheck calls tables races that are handed over
# through mbarriers, and does not end within four minutes). A step that fails does not
# stop the others; the script fails last. LIMIT and STEPS (steps.sh) leave the tests themselves alone.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
out=${1:-results/grad}
bin=build/release/bin
# shellcheck source=SCRIPTDIR/steps.sh
. gpu/steps.sh

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d .)
[[ $capability == 90 ]] && capability=90a
step configure 120 cmake --preset release -DMSA_CUDA=ON \
    -DCMAKE_CUDA_ARCHITECTURES="$capability-real"
step build 1800 cmake --build --preset release --parallel "$(nproc)" \
    --target test_backends --target msa-bench
[[ -x $bin/test_backends ]] || exit 1

filter='*Grad*cuda*:*CudaGrad*:CudaPlan.*Gradient*:*UnsupportedSaysWhy/cuda*'
filter+=':*IndexKl*cuda*:*CudaKl*:*IndexLse*cuda*'
# In eight processes: much of a test is the reference, on the host.
in_shards() {
    local shard pids=() outcome=0
    for shard in {0..7}; do
        GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=$shard OMP_NUM_THREADS=2 "$@" &
        pids+=($!)
    done
    for shard in "${pids[@]}"; do wait "$shard" || outcome=1; done
    return "$outcome"
}
few='All/CudaGradCases.TunedIsPlainButForRoundings/tail_block'
few+=':All/CudaGradCases.WhatIsNotSeenHasNoInfluence/packed'
few+=':All/CudaGradCases.TunedIsPlainButForRoundings/pilot_packed'
few+=':All/CudaGradCases.TunedIsPlainButForRoundings/blocks_of_32_packed'
few+=':All/AttentionGradTest.MatchesReference/cuda_bf16_tail_block'
began=$SECONDS
in_shards "$bin/test_backends" --gtest_brief=1 --gtest_filter="$filter" >"$out/tests.log" 2>&1 ||
    failed=1
printf '%-22s %s, %d s\n' tests "$(grep -cE '^\[  FAILED  \].*ms\)' "$out/tests.log") failed" \
    $((SECONDS - began))
grep -E -A 6 'Failure' "$out/tests.log" | head -n 60
for tool in ${SANITIZE:+memcheck initcheck}; do
    step "$tool" 240 compute-sanitizer --tool "$tool" --error-exitcode 9 "$bin/test_backends" \
        --gtest_brief=1 --gtest_filter="$few"
    grep -h 'SUMMARY' "$out/$tool.log"
done

# The paper's sizes, then the pilot's; both directions in one process.
sizes=(--query-heads 64 --kv-heads 4 --head-dim 128 --index-dim 128 --block-size 128 --top-k 16)
pilot=(--query-heads 16 --kv-heads 4 --head-dim 64 --index-dim 64 --block-size 64 --top-k 16)
stages=sparse_attention,sparse_attention_grad,dense_attention,dense_attention_grad,index_kl
bench bench 600 --cases square --stages "$stages" --order automatic \
    --index-element bf16 --tokens 8K,32K,128K "${sizes[@]}"
bench bench-pilot 300 --cases square --stages "$stages" --order automatic \
    --index-element bf16 --tokens 8K,32K "${pilot[@]}"

# Backward passes of PyTorch's dense attention: median of 5, from caches full of zeros.
cat >"$out/torch_backward.py" <<'PYTHON'
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

zeros = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
print(torch.__version__, torch.cuda.get_device_name())
for n in (8192, 32768, 131072):
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
        q, k, v, d_out = (torch.randn(1, h, n, 128, device="cuda", dtype=torch.bfloat16,
                                      requires_grad=True) for h in (64, 4, 4, 64))
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                out = torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=True)
                times = []
                for _ in range(6):
                    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    zeros.zero_()
                    begin.record()
                    torch.autograd.grad(out, (q, k, v), d_out, retain_graph=True)
                    end.record()
                    torch.cuda.synchronize()
                    times.append(begin.elapsed_time(end))
            ms = sorted(times[1:])[2]
            print(f"{n:7} {name:16} {ms:9.3f} ms {2.5 * 2 * 64 * 128 * n * n / ms / 1e9:6.1f} TFLOP/s")
        except RuntimeError as error:
            print(n, name, str(error).splitlines()[0])
PYTHON
if python3 -c 'import torch' 2>/dev/null; then
    step torch-backward 300 python3 "$out/torch_backward.py"
    cat "$out/torch-backward.log"
fi
exit "$failed"
