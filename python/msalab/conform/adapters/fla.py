# SPDX-License-Identifier: MIT
"""parallel_nsa of flash-linear-attention (Triton), in bfloat16: attention to given blocks and its gradient."""

import numpy as np

from ..archive import STRIDED
from .common import DEVICE, HOW, PRECISION, need_triton, one_prompt, real, refuse, whole

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
    refuse(given, "page_table", "scores", "k8", "index_q8", "sinks", "index_q_plain", "kl")
    if "ids" not in given:
        raise NotImplementedError("it is given the blocks")
    group = given["q"].shape[1] // given["k"].shape[1]
    if group < 16 or group & (group - 1):
        raise NotImplementedError("it takes groups of 16 heads, or a greater power of two")
    if "d_q" in given["wants"]:
        one_prompt(given)
    slots = 1 << (given["top_k"] - 1).bit_length()  # its gradient takes a power of two of them, and -1 is none
    ids = np.pad(given["ids"], ((0, 0), (0, 0), (0, slots - given["top_k"])), constant_values=-1)
    ids = torch.tensor(ids, device=DEVICE).long()[None]
    if "ids_buffer" in given:
        slots, ids = given["top_k"], torch.tensor(np.array(given["ids_buffer"]), device=DEVICE)
        ids = ids.long()[None, :, :, STRIDED]
    leaves = [real(torch, given[name])[None].requires_grad_() for name in "qkv"]
    ends = [given[f"cu_seqlens_{side}"] for side in "qk"]
    packed = {"cu_seqlens": tuple(whole(torch, end).long() for end in ends)} if len(ends[0]) > 2 else {}
    out = parallel_nsa(*leaves, block_indices=ids, block_counts=slots, block_size=given["block_size"],
                       scale=given["softmax_scale"], **packed)
    found = {"precision": PRECISION, "out": out.detach()[0].float().cpu().numpy()}
    if "d_q" in given["wants"]:
        d_out = real(torch, given["d_out"])[None]
        found.update({name: one[0].float().cpu().numpy()
                      for name, one in zip(("d_q", "d_k", "d_v"), torch.autograd.grad(out, leaves, d_out))})
    return found
