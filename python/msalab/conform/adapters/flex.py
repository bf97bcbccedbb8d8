# SPDX-License-Identifier: MIT
"""FlexAttention of PyTorch with the blocks as a mask: compiled in bfloat16 on a GPU, in float32 without a compiler
elsewhere. It attends; it does not select."""

import numpy as np

from .common import refuse

RULES = {"NaN spreads": "a mask; not compiled, it is added to all logits"}


def about():
    import torch
    how = "compiled" if torch.cuda.is_available() else "not compiled"
    return f"FlexAttention of PyTorch {torch.__version__}, {how}"


def answer(given):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    refuse(given, "page_table", "scores", "k8", "sinks", "kl", "index_q8", "index_q_plain")
    if "ids" not in given:
        raise NotImplementedError("it selects no blocks")
    if len(given["cu_seqlens_q"]) != 2:
        raise NotImplementedError("this adapter gives it one sequence")
    on_gpu = torch.cuda.is_available()
    device, kind = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    leaves = [torch.tensor(np.array(given[name]), device=device).to(kind).transpose(0, 1)[None].contiguous()
              for name in ("q", "k", "v")]
    queries, keys, group = len(given["q"]), len(given["k"]), given["q"].shape[1] // given["k"].shape[1]
    size, blocks = given["block_size"], -(-keys // given["block_size"])
    ids = torch.tensor(np.array(given["ids"]), device=device).long().transpose(0, 1)
    kept = torch.zeros(ids.shape[0], queries, blocks + 1, dtype=torch.bool, device=device)
    kept = kept.scatter(2, ids.where(ids >= 0, blocks), True)

    def mask(_, head, row, column):
        return kept[head // group, row, column // size] & (row + keys - queries >= column)

    chosen = create_block_mask(mask, 1, given["q"].shape[1], queries, keys, device=device)
    call = torch.compile(flex_attention) if on_gpu else flex_attention
    gradient = "d_q" in given["wants"]
    for leaf in leaves:
        leaf.requires_grad_(gradient)
    if on_gpu:  # at most one head dim and one type, but many lengths
        torch._dynamo.config.recompile_limit = 64
    out, lse = call(*leaves, block_mask=chosen, scale=given["softmax_scale"], enable_gqa=True, return_lse=True)
    found = {"precision": "bfloat16" if on_gpu else "float32", "out": rows(out), "lse": rows(lse)}
    if gradient:
        d_out = torch.tensor(np.array(given["d_out"]), device=device).to(kind).transpose(0, 1)[None]
        found.update(zip(("d_q", "d_k", "d_v"), map(rows, torch.autograd.grad(out, leaves, d_out))))
    return found


def rows(values):
    return values.detach()[0].transpose(0, 1).float().cpu().numpy()
