# SPDX-License-Identifier: MIT
"""The Triton kernels of vLLM's MiniMax-M3 layer, in bfloat16: those of decode where every request has the same
few new tokens, as its layer takes them, and those of prefill otherwise."""

from types import SimpleNamespace

import numpy as np

from ..reference import most_blocks
from .common import DEVICE, HOW, PRECISION, bare, given_ids, need_triton, numpy, pools, real, refuse, whole

RULES = {"ties": "a bitonic sort; nothing names an order of equal scores",
         "fills": "NaN becomes -1e30 and stays a candidate (index_topk.py)",
         "range": "-1e30, 1e29 and 1e30 are marks of padding, local and first blocks (index_topk.py)"}
BLOCK, DECODED = 128, 16


def about():
    from importlib.metadata import version
    return f"vLLM {version('vllm')}, Triton kernels of MiniMax-M3{HOW}"


def answer(given):
    torch = need_triton()
    platform = SimpleNamespace(is_cuda=torch.cuda.is_available,
                               is_device_capability=lambda one: torch.cuda.get_device_capability() == one,
                               is_arch_support_pdl=lambda: DEVICE == "cuda" and torch.cuda.get_device_capability() >= (9, 0))
    import triton
    from triton import language
    bare(("vllm", "vllm.models", "vllm.models.minimax_m3"), vllm__platforms={"current_platform": platform},
         vllm__triton_utils={"triton": triton, "tl": language})
    from vllm.models.minimax_m3.common import ops
    refuse(given, "k8", "index_q8", "sinks", "kl", "d_out", "index_q_plain")
    if given["block_size"] != BLOCK:
        raise NotImplementedError("its blocks have 128 keys")
    forced = given["forced_first"], given["forced_local"]
    new = np.diff(given["cu_seqlens_q"])
    decoded = len(set(new)) == 1 and new[0] <= DECODED
    pool, table, lengths = pools(given, BLOCK)
    if (lengths < new).any():
        raise NotImplementedError("more queries than keys")
    most_new, most, before = int(new.max()), int(lengths.max()), whole(torch, lengths - new)
    cu, table, lengths = whole(torch, given["cu_seqlens_q"]), whole(torch, table), whole(torch, lengths)
    found = {"precision": PRECISION}
    if "scores" in given:
        scores = real(torch, own_scores(given), torch.float32)
        padded = torch.full((*scores.shape[:2], -(-most_blocks(given) // 16) * 16), float("nan"), device=DEVICE)
        padded[..., :scores.shape[2]] = scores
        ids = ops.minimax_m3_index_topk(padded, cu, before, most_new, given["top_k"], *forced)
    elif "ids" in given:
        ids = given_ids(torch, given)
    else:
        rows, keys = real(torch, given["index_q"]), real(torch, pool["index_k"])
        if rows.shape[2] < 16 or rows.shape[2] & (rows.shape[2] - 1):
            raise NotImplementedError("its index heads have a power of two of channels")
        heads = rows.shape[1]
        if decoded:
            ids = ops.minimax_m3_index_decode(rows, keys, table, lengths, most, given["top_k"], *forced, heads,
                                              most_new, most_new)
        else:
            scores = ops.minimax_m3_index_score(rows, keys, table, cu, lengths, before, most_new, most, heads)
            ids = ops.minimax_m3_index_topk(scores, cu, before, most_new, given["top_k"], *forced)
    if "ids" in given["wants"]:
        found["ids"] = numpy(ids.transpose(0, 1))
    if "out" in given["wants"]:
        q, group = real(torch, given["q"]), given["q"].shape[1] // pool["k"].shape[2]
        if not decoded and (group < 16 or group & (group - 1)):
            raise NotImplementedError("its kernel of prefill takes groups of 16 heads, or a greater power of two")
        cache = torch.cat([real(torch, pool["k"]), real(torch, pool["v"])], -1).transpose(1, 2).contiguous()
        out, heads = torch.empty_like(q), cache.shape[1]
        if decoded:
            ops.minimax_m3_sparse_attn_decode(q, cache, ids, table, lengths, heads, given["softmax_scale"], out,
                                              most_new)
        else:
            ops.minimax_m3_sparse_attn(q, cache, ids, table, cu, lengths, before, most_new, heads,
                                       given["softmax_scale"], out)
        found["out"] = numpy(out)
    return found


def own_scores(given):
    """The scores [groups, queries, blocks] as its kernel of scores would have written them. That kernel's sums start at +0,
    so it writes no -0, and every visible block has a visible key, so it writes no -inf. Its sort takes neither: it adds what
    it exchanges to 0 times its neighbour, and exchanges bits."""
    scores = np.swapaxes(given["scores"], 0, 1)
    if np.isneginf(scores).any():
        raise NotImplementedError("it scores visible blocks itself, never as -inf, and its sort cannot take -inf")
    return scores + np.float32(0)  # -0 + 0 is +0
