# SPDX-License-Identifier: MIT
"""Models that msa-pretrain has trained, as folders of transformers."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import h5py
import numpy as np
from safetensors.numpy import save

from .. import hdf5
from .layer import CaptureError, require
from .partial_file import PartialFile

EPSILON = 1e-6  # of all RMS norms (core/train)
INDEXER = ".self_attn.indexer."
BYTES = 256  # the vocabulary


def is_checkpoint(path) -> bool:
    """A checkpoint.h5 of msa-pretrain?"""
    try:
        with h5py.File(path, "r") as file:
            return file["run"].attrs.get("program") in ("msa-pretrain", b"msa-pretrain")
    except (OSError, KeyError, RuntimeError, ValueError):
        return False  # what else it is, its reader says


def export_model(path, out, overwrite: bool = False) -> None:
    """Writes the folder `out`: config.json and model.safetensors, a model of bytes whose attention is
    dense, and, where layers have an Index Branch, their results.h5 as of msa-fit-indexer. Its kind
    is Glm4Moe without experts, which is what msa-pretrain trains: RMS norms on heads, RoPE on some
    channels, SwiGLU. CaptureError where the model has what that lacks: learnable sinks, layers with
    a window, an output of the Index Branch (--signals lm or both)."""
    try:
        files = _files(path)
    except CaptureError:
        raise
    except Exception as error:  # the library raises errors of many types on damaged files
        raise CaptureError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        with PartialFile(out / name, overwrite) as file:
            file.write(content)
            file.finish()


def _files(path) -> dict[str, bytes]:
    with h5py.File(path, "r") as file:
        require("weights" in file, f"{path}: has no weights; those of msa-pretrain are in its "
                "checkpoint.h5")
        options = json.loads(file["run"].attrs["options"])
        require(not options["sink"], f"{path}: was trained with --sink, must have no learnable sinks")
        require("window" not in options["attention"].split(","), f"{path}: --attention is "
                f"{options['attention']}, must be of full and msa")
        require("msa" not in options["attention"] or options["signals"] == "kl", f"{path}: --signals "
                f"is {options['signals']}, must be kl: the Index Branch has an output of its own")
        weights = {}
        for name, shape in _shapes(options).items():
            found = file["weights"].get(name)
            if found is None and INDEXER in name:
                continue  # of a layer with full attention
            what = f"{path}: /weights/{name}"
            require(isinstance(found, h5py.Dataset), f"{what} is no dataset")
            hdf5.checked(found, file, what, CaptureError)
            require(found.shape == shape, f"{what} has shape {found.shape}, must have {shape}")
            weights[name] = np.asarray(found[()], np.float32)
    own = {name if name.startswith("lm_head") else f"model.{name}": values
           for name, values in weights.items() if INDEXER not in name}
    branches = {"results.h5": _branches(options, weights)} if len(own) < len(weights) else {}
    return {**branches, "model.safetensors": save(own, {"format": "pt"}),
            "config.json": json.dumps(_config(options), indent=1).encode()}


def _shapes(options) -> dict[str, tuple]:
    """Name -> shape of every parameter that a model of these options may have."""
    dim, hidden, head, index = (options[f"{name}_dim"] for name in ("model", "hidden", "head", "index"))
    queries, keys = (options[f"{name}_heads"] * head for name in ("query", "kv"))
    groups = options["kv_heads"]
    layer = {"self_attn.q_proj": (queries, dim), "self_attn.k_proj": (keys, dim),
             "self_attn.v_proj": (keys, dim), "self_attn.o_proj": (dim, queries),
             "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
             "self_attn.indexer.q_proj": (groups * index, dim),
             "self_attn.indexer.k_proj": (index, dim), "self_attn.indexer.q_norm": (index,),
             "self_attn.indexer.k_norm": (index,), "mlp.gate_proj": (hidden, dim),
             "mlp.up_proj": (hidden, dim), "mlp.down_proj": (dim, hidden),
             "input_layernorm": (dim,), "post_attention_layernorm": (dim,)}
    shapes = {"embed_tokens": (BYTES, dim), "norm": (dim,), "lm_head": (BYTES, dim),
              **{f"layers.{number}.{name}": shape for number in range(options["layers"])
                 for name, shape in layer.items()}}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def _config(options) -> dict:
    share = options["rotary_dim"] / options["head_dim"]
    if int(options["head_dim"] * share) < options["rotary_dim"]:  # as transformers counts channels
        share = math.nextafter(share, 1)
    return {"architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "dtype": "float32",
            "vocab_size": BYTES, "hidden_size": options["model_dim"],
            "intermediate_size": options["hidden_dim"], "num_hidden_layers": options["layers"],
            "first_k_dense_replace": options["layers"], "num_nextn_predict_layers": 0,
            "num_attention_heads": options["query_heads"],
            "num_key_value_heads": options["kv_heads"], "head_dim": options["head_dim"],
            "use_qk_norm": True, "attention_bias": False, "tie_word_embeddings": False,
            "rms_norm_eps": EPSILON, "max_position_embeddings": options["context"],
            "rope_parameters": {"rope_type": "default", "rope_theta": options["rope_theta"],
                                "partial_rotary_factor": share}}


def _branches(options, weights) -> bytes:
    """A file of the Index Branches as msalab.indexer.read takes it."""
    names = {"q_proj": "w_index_q", "k_proj": "w_index_k", "q_norm": "index_q_norm",
             "k_norm": "index_k_norm"}
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        file.attrs["format"], file.attrs["format_version"] = "msa-results", 3
        file.create_group("run").attrs["options"] = json.dumps(
            {name: options[name] for name in ("block_size", "top_k", "forced_first", "forced_local")})
        for name, values in weights.items():
            if INDEXER not in name:
                continue
            layer, part = name.removeprefix("layers.").removesuffix(".weight").split(INDEXER)
            group = file.require_group(f"fit/{layer}/weights")
            group[names[part]] = values
            group.attrs.update(groups=options["kv_heads"], index_dim=options["index_dim"],
                               model_dim=options["model_dim"],
                               rms_norm=int(options["index_norm"] == "rms"),
                               rotary_dim=options["index_rotary"],
                               rope_theta=options["rope_theta"])
    return memory.getvalue()
