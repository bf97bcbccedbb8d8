# SPDX-License-Identifier: MIT
"""The Triton kernels of prefill of SGLang's MiniMax-M3 layer, in bfloat16. Every token has a slot."""

import inspect
from importlib import import_module

import numpy as np

from .common import DEVICE, HOW, PRECISION, bare, given_ids, need_triton, numpy, pools, real, refuse, whole

RULES = {"ties": "a bitonic sort; nothing names an order of equal scores",
         "fills": "NaN becomes -1e30 and stays a candidate (flash_with_topk_idx.py)"}
FOLDERS = ("sglang.kernels.ops.attention.minimax_sparse", "sglang.srt.layers.attention.minimax_sparse_ops")


def about():
    from importlib.metadata import version
    return f"SGLang {version('sglang')}, Triton kernels of MiniMax-M3{HOW}"


def kernel(module, name):
    bare(("sglang", "sglang.kernels", "sglang.kernels.ops", "sglang.kernels.ops.attention", "sglang.srt"),
         sglang__srt__utils={"is_gfx95_supported": lambda: False})
    for folder in FOLDERS:
        try:
            return getattr(import_module(f"{folder}.prefill.{module}"), name)
        except ModuleNotFoundError as error:
            missing = error
    raise missing


def call(function, **given):
    """With those of the arguments that this version of the function has."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in given.items() if name in names})


def answer(given):
    torch = need_triton()
    select = kernel("flash_with_topk_idx", "flash_prefill_with_topk_index")
    attend = kernel("topk_sparse", "flash_prefill_with_gqa_share_sparse")
    refuse(given, "scores", "k8", "index_q8", "sinks", "kl", "d_out", "index_q_plain")
    if given["block_size"] not in (16, 32, 64, 128):
        raise NotImplementedError("its blocks have 16, 32, 64 or 128 keys")
    size = given.get("page_size", given["block_size"])
    pool, table, lengths = pools(given, size)
    new = np.diff(given["cu_seqlens_q"])
    if (lengths < new).any():
        raise NotImplementedError("more queries than keys")
    slots = np.zeros((len(lengths), int(lengths.max())), np.int32)
    for s, length in enumerate(lengths):
        slots[s, :length] = table[s, np.arange(length) // size] * size + np.arange(length) % size
    slots = whole(torch, slots)
    common = {"req_to_token": slots, "page_table": slots, "page_size": 1, "sink": None, "use_tma": False,
              "cu_seqlens": whole(torch, given["cu_seqlens_q"]), "seq_lens": whole(torch, lengths),
              "prefix_lens": whole(torch, lengths - new), "max_seqlen_q": int(new.max()),
              "max_seqlen_k": int(lengths.max()), "block_size_q": 1, "block_size_k": given["block_size"],
              "slot_ids": torch.arange(len(lengths), device=DEVICE)}
    found = {"precision": PRECISION}

    def flat(name):
        values = real(torch, pool[name]).flatten(0, 1)
        return values if values.ndim == 3 else values[:, None].contiguous()

    if "ids" in given:
        ids = given_ids(torch, given)
    else:
        ids = call(select, q=real(torch, given["index_q"]), k_cache=flat("index_k"), v_cache=None, topk=given["top_k"],
                   init_blocks=given["forced_first"], local_blocks=given["forced_local"], disable_index_value=True,
                   sm_scale=given["index_scale"], **common)[1]
        found["ids"] = numpy(ids.transpose(0, 1))
    if "out" in given["wants"]:
        group = given["q"].shape[1] // pool["k"].shape[2]
        if group < 16 or group & (group - 1):
            raise NotImplementedError("its kernel takes groups of 16 heads, or a greater power of two")
        found["out"] = numpy(call(attend, q=real(torch, given["q"]), k_cache=flat("k"), v_cache=flat("v"), topk_idx=ids,
                                  sm_scale=given["softmax_scale"], **common))
    return found
