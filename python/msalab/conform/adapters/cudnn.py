# SPDX-License-Identifier: MIT
"""The selection attention of NSA in cuDNN's frontend, on a GPU in bfloat16: attention to given blocks."""

import inspect

from ..archive import STRIDED
from .common import need_gpu, numpy, of_keys, real, refuse, whole

RULES = {}


def about():
    from importlib.metadata import version
    return f"cuDNN frontend {version('nvidia-cudnn-frontend')}, NSA selection attention"


def answer(given):
    torch = need_gpu()
    from cudnn import NSA
    refuse(given, "page_table", "scores", "k8", "index_q8", "sinks", "index_q_plain", "kl", "d_out")
    if "ids" not in given:
        raise NotImplementedError("it is given the blocks")
    rows, q, ids = of_keys(given, "q", "ids")
    counts, ends = whole(torch, (ids >= 0).sum(-1)), whole(torch, given["cu_seqlens_k"])
    ids = whole(torch, of_keys(given, "ids_buffer")[1])[:, :, STRIDED] if "ids_buffer" in given else whole(torch, ids)
    options = {"block_size": given["block_size"], "scale_softmax": given["softmax_scale"]}
    if "is_causal" in inspect.signature(NSA.selection_attention_wrapper).parameters:
        options["is_causal"] = True
    operands = (real(torch, values) for values in (q, given["k"], given["v"]))
    out = NSA.selection_attention_wrapper(*operands, ids, counts, ends, ends, **options)
    torch.cuda.synchronize()
    return {"precision": "bfloat16", "out": numpy(out[0])[rows]}
