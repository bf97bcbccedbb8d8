# SPDX-License-Identifier: MIT
"""flash-msa, kernels for training, on a GPU in bfloat16. It selects itself: ids that a case gives are those of its
index_q and index_k."""

import numpy as np

from .common import DEVICE, need_gpu, of_keys, one_prompt, only_default_rule, real, refuse

RULES = {"bfloat16 scores": "scores of blocks are kept in the type of the operands (msa_select_cutedsl)",
         "ties": "nothing names an order of equal scores"}
BLOCK = DIM = 128


def about():
    from importlib.metadata import version
    return f"flash-msa {version('flash-msa')}"


def answer(given):
    torch = need_gpu()
    from flash_msa.msa_select_cutedsl import select_blocks
    try:
        from flash_msa import flash_msa_func as layer
    except ImportError:
        from flash_msa.flash_msa import sparse_attention as layer
    refuse(given, "page_table", "scores", "k8", "index_q8", "sinks", "index_q_plain")
    only_default_rule(given)
    if given["block_size"] != BLOCK or "index_q" not in given or given["index_q"].shape[2] != DIM:
        raise NotImplementedError("it takes blocks of 128 keys, heads of 128 channels, and index_q and index_k")
    found, wants = {"precision": "bfloat16"}, given["wants"]
    if "ids" in wants:
        found["ids"] = selected(torch, select_blocks, given)
    if set(wants) == {"ids"}:
        return found
    if given["top_k"] > one_prompt(given, BLOCK) // BLOCK:
        raise NotImplementedError("k is at most the number of blocks")

    def heads_first(name):
        values = torch.tensor(np.array(given[name]), device=DEVICE).to(torch.bfloat16)
        return (values if values.ndim == 3 else values[:, None]).transpose(0, 1)[None].contiguous()

    index_q, index_k = heads_first("index_q").requires_grad_(), heads_first("index_k").requires_grad_()
    leaves = [heads_first(name).requires_grad_() for name in "qkv"]
    out, kl = layer(index_q, index_k, *leaves, given["top_k"] * BLOCK, given["softmax_scale"])
    heads = given["q"].shape[1]
    found["out"] = out.detach()[0].unflatten(-1, (heads, DIM)).float().cpu().numpy()
    if "d_q" in wants:
        d_out = torch.tensor(np.array(given["d_out"]), device=DEVICE).to(torch.bfloat16).flatten(1)[None]
        found.update(zip(("d_q", "d_k", "d_v"), map(rows, torch.autograd.grad(out, leaves, d_out))))
    if "kl" in wants:
        q, k, _, d_index_q, d_index_k = (
            None if one is None else rows(one)
            for one in torch.autograd.grad(kl, (*leaves, index_q, index_k), allow_unused=True))
        found.update(d_index_q=d_index_q, d_index_k=d_index_k[:, 0],
                     kl_d_q=np.zeros_like(given["q"]) if q is None else q,
                     kl_d_k=np.zeros_like(given["k"]) if k is None else k)
    torch.cuda.synchronize()
    return found


def selected(torch, select_blocks, given):
    """Each sequence in a call, with keys of 0 behind its end up to whole blocks, k of them at least: nobody sees them."""
    rows, index_q = of_keys(given, "index_q")
    ids = np.full((len(index_q), index_q.shape[1], given["top_k"]), -1)
    for begin, end in zip(given["cu_seqlens_k"], given["cu_seqlens_k"][1:]):
        blocks = max(-(-(end - begin) // BLOCK), given["top_k"])
        q, k = (torch.zeros(1, heads, blocks * BLOCK, DIM, dtype=torch.bfloat16, device=DEVICE) for heads in (index_q.shape[1], 1))
        q[0, :, :end - begin] = real(torch, index_q[begin:end]).transpose(0, 1)
        k[0, 0, :end - begin] = real(torch, given["index_k"][begin:end])
        one = select_blocks(q, k, scale=given["index_scale"], num_blocks=int(blocks), top_k_blocks=given["top_k"])[0]
        one = one.transpose(0, 1)[:end - begin].cpu().numpy()
        ids[begin:end] = np.where(one < blocks, one, -1)  # the number of blocks stands for none
    return ids[rows]


def rows(values):
    return values[0].transpose(0, 1).float().cpu().numpy()
