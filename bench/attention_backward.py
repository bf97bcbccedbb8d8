#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Backward passes of PyTorch's dense attention at the paper's sizes: median of 5 from caches full of
zeros.
"""

import torch
from timer import cold_ms
from torch.nn.attention import SDPBackend, sdpa_kernel


def main() -> None:
    filler = torch.empty(1 << 28, dtype=torch.int8, device="cuda")
    print(torch.__version__, torch.cuda.get_device_name())
    for n in (8192, 32768, 131072):
        for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
            q, k, v, d_out = (torch.randn(1, heads, n, 128, device="cuda", dtype=torch.bfloat16,
                                          requires_grad=True) for heads in (64, 4, 4, 64))
            try:
                with sdpa_kernel(getattr(SDPBackend, name)):
                    out = torch.nn.functional.scaled_dot_product_attention(
                        q, k, v, is_causal=True, enable_gqa=True)
                    times = [cold_ms(lambda: torch.autograd.grad(
                        out, (q, k, v), d_out, retain_graph=True), filler.zero_) for _ in range(6)]
                ms = sorted(times[1:])[2]
                flops = 2.5 * 2 * 64 * 128 * n * n
                print(f"{n:7} {name:16} {ms:9.3f} ms {flops / ms / 1e9:6.1f} TFLOP/s")
            except RuntimeError as error:
                print(n, name, str(error).splitlines()[0])


if __name__ == "__main__":
    main()
