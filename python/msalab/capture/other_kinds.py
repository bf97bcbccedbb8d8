# SPDX-License-Identifier: MIT
"""Attention that is not softmax over the keys and values of GQA groups, told by a module's parts."""

from __future__ import annotations

# What attention modules with latent keys and values (MLA) have.
LATENT = ("kv_lora_rank", "kv_b_proj", "kv_a_proj_with_mqa")


def has_latent(module) -> list[str]:
    return [name for name in LATENT if getattr(module, name, None) is not None]


def other_kind(module) -> str | None:
    """What the module does instead; None for attention over the keys of groups."""
    signs, compressor = has_latent(module), getattr(module, "compressor", None)
    if signs:
        return (f"{type(module).__name__} has {' and '.join(signs)}, which is latent attention (MLA): keys "
                "and values of all heads come of one vector per token, and are not the groups of GQA that "
                "msa-activations holds")
    if compressor is not None:
        return (f"{type(module).__name__} has {type(compressor).__name__}, which adds entries that stand for "
                "many tokens to the keys (DeepSeek-V4): they belong to no block of tokens, and "
                "msa-activations has no place for them")
    return None
