# SPDX-License-Identifier: MIT
"""The selection attention of NSA in cuDNN's frontend, on a GPU in bfloat16: attention to given blocks."""

import inspect

from .common import need_gpu, numpy, one_prompt, real, refuse, whole

RULES = {}


def about():
    from importlib.metadata import version
    return f"cuDNN frontend {version('nvidia-cudnn-frontend')}, NSA selection attention"


def answer(given):
    torch = need_gpu()
    from cudnn import NSA
    refuse(given, "scores", "k8", "index_q8", "sinks", "index_q_plain", "kl", "d_out")
    tokens = one_prompt(given)
    if "ids" not in given:
        raise NotImplementedError("it is given the blocks")
    ids = whole(torch, given["ids"])
    counts, ends = (ids >= 0).sum(-1, dtype=torch.int32), whole(torch, [0, tokens])
    options = {"block_size": given["block_size"], "scale_softmax": given["softmax_scale"]}
    if "is_causal" in inspect.signature(NSA.selection_attention_wrapper).parameters:
        options["is_causal"] = True
    operands = (real(torch, given[name]) for name in "qkv")
    out = NSA.selection_attention_wrapper(*operands, ids, counts, ends, ends, **options)
    torch.cuda.synchronize()
    return {"precision": "bfloat16", "out": numpy(out[0])}
