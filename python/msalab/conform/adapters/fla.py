# SPDX-License-Identifier: MIT
"""parallel_nsa of flash-linear-attention (Triton), in bfloat16: attention to given blocks and its gradient."""

import numpy as np

from .common import DEVICE, HOW, PRECISION, need_triton, one_prompt, real, refuse

RULES = {}


def about():
    from importlib.metadata import PackageNotFoundError, version
    for name in ("flash-linear-attention", "fla-core"):
        try:
            return f"{name} {version(name)}, parallel_nsa{HOW}"
        except PackageNotFoundError:
            pass
    raise ImportError("no flash-linear-attention")


def answer(given):
    torch = need_triton()
    from fla.ops.nsa.parallel import parallel_nsa
    refuse(given, "scores", "k8", "index_q8", "sinks", "index_q_plain", "kl")
    one_prompt(given)
    if "ids" not in given:
        raise NotImplementedError("it is given the blocks")
    if given["q"].shape[1] // given["k"].shape[1] % 16:
        raise NotImplementedError("it takes groups of a multiple of 16 heads")
    leaves = [real(torch, given[name])[None].requires_grad_() for name in "qkv"]
    ids = torch.tensor(np.array(given["ids"]), device=DEVICE).long()[None]
    out = parallel_nsa(*leaves, block_indices=ids, block_counts=given["top_k"], block_size=given["block_size"],
                       scale=given["softmax_scale"])
    found = {"precision": PRECISION, "out": out.detach()[0].float().cpu().numpy()}
    if "d_q" in given["wants"]:
        d_out = real(torch, given["d_out"])[None]
        found.update({name: one[0].float().cpu().numpy()
                      for name, one in zip(("d_q", "d_k", "d_v"), torch.autograd.grad(out, leaves, d_out))})
    return found
