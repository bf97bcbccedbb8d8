# SPDX-License-Identifier: MIT
"""msa-activations files from other formats, to another format, and rotated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes  # noqa: F401  names bfloat16 to safetensors
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from .capture import token_ids
from .layer import FIELDS, CaptureError, Layer, require
from .model_config import ModelConfig, fill
from .partial_file import PartialFile
from .reader import ActivationsReader, check_cu_seqlens, set_attributes
from .rope import apply_rope, frequencies, positions
from .sources import Source
from .writer import FORMAT, VERSION, ActivationsWriter

NAMES = "layers.{layer}.{field}"
LAYOUTS = ("bhsd", "bshd", "packed")
MOST_TOKENS = np.iinfo(np.int32).max


@dataclass
class ImportOptions:
    """What arrays do not say of themselves; None: from the metadata of a file that this program
    exported, or unknown."""

    names: str = NAMES
    layers: list[int] | None = None
    layout: str = "packed"
    lengths: list[int] | None = None  # tokens of each sequence; the rest of a row is padding
    state: str | None = None  # of q and k: post_rope, pre_rope, none
    softmax_scale: float | None = None  # default dh^-1/2
    rotary_dim: int | None = None
    rope_theta: float | None = None
    interleaved: bool = False  # RoPE turns channels 2c and 2c + 1
    model_id: str | None = None
    model_config: str | None = None


def import_arrays(paths, out, options: ImportOptions, overwrite: bool = False,
                  note: Callable[[str], None] = lambda text: None) -> None:
    """Holds one layer in memory. CaptureError names the array and the rule."""
    source = Source(paths)
    known = source.metadata if source.metadata.get("format") == FORMAT else {}
    found = _layers_of(source, options)
    lengths = options.lengths or _lengths(source, found, options.layout)
    require(min(lengths) >= 1, f"{source.paths[0]}: sequences of {lengths} tokens, must each have "
            "at least 1")
    require(sum(lengths) <= MOST_TOKENS, f"{source.paths[0]}: sequences of {sum(lengths)} tokens together, must be at "
            f"most {MOST_TOKENS}")
    config = ModelConfig(options.model_config)
    if config.has_windows_somewhere():
        note("note: the model's configuration has a sliding_window, and does not say which layers have it "
             "(layer_types): none is recorded")
    tokens = None
    if "tokens" in source.names():
        place = source.place("tokens")
        tokens = token_ids(pack(source.stored("tokens"), options.layout, lengths, place), place)
    with ActivationsWriter(
            out, model_id=options.model_id or known.get("model_id", source.paths[0].stem),
            model_config=options.model_config or known.get("model_config", "{}"),
            producer=known.get("producer", "msalab.capture convert"),
            cu_seqlens=np.cumsum([0, *lengths]), tokens=tokens, overwrite=overwrite) as writer:
        for number, names in found.items():
            arrays = {field: pack(source.read(name), options.layout, lengths, source.place(name))
                      for field, name in names.items()}
            writer.write(number, 0, _layer(number, arrays, source, options,
                                           _attributes(known, number, source), config, note),
                         source.paths[0])
        writer.finish()


def export_safetensors(path, out, layers: list[int] | None = None,
                       overwrite: bool = False) -> None:
    """Packed arrays under NAMES, attributes as metadata. Holds the layers in memory together."""
    with PartialFile(out, overwrite) as lock, ActivationsReader(path) as file:
        metadata = {"format": FORMAT, "format_version": str(VERSION), "model_id": file.model_id,
                    "model_config": file.model_config, "producer": file.producer}
        arrays = {"cu_seqlens": file.cu_seqlens}
        if file.tokens is not None:
            arrays["tokens"] = file.tokens
        for number in layers or file.layers:
            layer = file.layer(number)
            for name, values in (*layer.arrays().items(),
                                 *((f"weights.{n}", w) for n, w in layer.weights.items())):
                arrays[NAMES.format(layer=number, field=name)] = np.ascontiguousarray(values)
            metadata[f"layers.{number}"] = json.dumps(
                layer.attributes(), default=lambda array: array.tolist())
        temporary = Path(f"{lock.partial}.safetensors")
        try:
            save_file(arrays, temporary, metadata)
            temporary.replace(out)
        except SafetensorError as error:
            raise CaptureError(f"{out}: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)


def rotate(path, out, *, rotary_dim: int | None = None, rope_theta: float | None = None,
           interleaved: bool = False, layers: list[int] | None = None,
           overwrite: bool = False) -> None:
    """Applies RoPE to queries and keys stored before it; what is not given is the file's own."""
    with ActivationsReader(path) as file:
        with ActivationsWriter(out, model_id=file.model_id, model_config=file.model_config,
                               producer=file.producer, cu_seqlens=file.cu_seqlens,
                               tokens=file.tokens, text=file.text, token_ends=file.token_ends,
                               overwrite=overwrite) as writer:
            for number in layers or file.layers:
                layer = file.layer(number)
                place = f"{path}: layer {number}"
                states = {side: getattr(layer, f"{side}_state") for side in "qk"}
                require("pre_rope" in states.values(), f"{place}: q is {states['q']}, k is "
                        f"{states['k']}; there is nothing to rotate")
                layer = _with_rope(layer, file, rotary_dim, rope_theta, place)
                if interleaved:
                    layer = replace(layer, rope_layout="interleaved")
                inv_freq = layer.rope_inv_freq
                if inv_freq is None:
                    inv_freq = frequencies(layer.rotary_dim, layer.rope_theta)
                for side, state in states.items():
                    if state == "pre_rope":
                        rotated = apply_rope(getattr(layer, side), positions(file.cu_seqlens),
                                             inv_freq, layer.rope_attention_factor or 1,
                                             layer.rope_layout == "interleaved")
                        layer = replace(layer, **{side: rotated, f"{side}_state": "post_rope"})
                writer.write(number, 0, layer, path)
            writer.finish()


def _with_rope(layer: Layer, file: ActivationsReader, rotary_dim, rope_theta,
               place: str) -> Layer:
    """The layer with the RoPE that is to be applied: of the numbers given, of the file's own
    frequencies, or of its own rotary_dim and rope_theta."""
    if layer.rope_inv_freq is not None:
        require(rotary_dim is None and rope_theta is None, f"{place}: has rope_inv_freq, which "
                "--rotary-dim and --rope-theta contradict")
        return layer
    require(file.rope_type() == "default", f"{file.path}: model_config names RoPE of type "
            f"'{file.rope_type()}', and {place} has no rope_inv_freq; without it only plain RoPE "
            "can be applied")
    theta = rope_theta if rope_theta is not None else layer.rope_theta
    dim = next(dim for dim in (rotary_dim, layer.rotary_dim, layer.q.shape[2]) if dim is not None)
    require(theta is not None, f"{place}: has no rope_theta; --rope-theta gives it")
    require(np.isfinite(theta) and theta > 0 and dim % 2 == 0 and 0 < dim <= layer.q.shape[2],
            f"{place}: rope_theta {theta}, rotary_dim {dim}: theta must be positive, rotary_dim "
            f"even and from 2 to {layer.q.shape[2]}")
    return replace(layer, rotary_dim=dim, rope_theta=theta)


def pack(array: np.ndarray, layout: str, lengths, place: str) -> np.ndarray:
    """[B, H, S, D] or [B, S, H, D] (without heads: [B, S, D]; tokens: [B, S]) -> [N, ...]: the
    first lengths[b] tokens of every row, one after the other. `place` begins the messages."""
    require(array.ndim >= 1, f"{place}: is a single number")
    if layout == "packed":
        require(len(array) == sum(lengths), f"{place}: has {len(array)} tokens, the sequences have "
                f"{sum(lengths)}")
        return array
    if layout == "bhsd" and array.ndim == 4:
        array = array.swapaxes(1, 2)
    require(array.ndim >= 2 and len(array) == len(lengths) and max(lengths) <= array.shape[1],
            f"{place}: has {array.shape[:2]} rows and tokens, asked for are {len(lengths)} "
            f"sequences of up to {max(lengths)} tokens")
    return np.concatenate([row[:length] for row, length in zip(array, lengths)])


def _layers_of(source: Source, options: ImportOptions) -> dict[int, dict[str, str]]:
    """Layer -> field -> name of its array."""
    single = "{layer}" not in options.names
    require(options.names.count("{field}") == 1 and options.names.count("{layer}") <= 1,
            f"names '{options.names}' must hold {{field}} once, and {{layer}} at most once")
    require(not single or len(options.layers or [0]) == 1, f"names '{options.names}' hold no "
            "{layer}: one layer number says which it is")
    pattern = re.escape(options.names).replace(r"\{layer\}", r"(?P<layer>[0-9]{1,9})").replace(
        r"\{field\}", f"(?P<field>{'|'.join(FIELDS)})")
    found: dict[int, dict[str, str]] = {}
    for name in source.names():
        if match := re.fullmatch(pattern, name):
            number = (options.layers or [0])[0] if single else int(match["layer"])
            if options.layers is None or number in options.layers:
                other = found.setdefault(number, {}).setdefault(match["field"], name)
                require(other == name, f"{source.paths[0]}: {other} and {name} are both {match['field']} of layer "
                        f"{number}")
    missing = sorted(set(options.layers or []) - found.keys())
    require(found and not missing, f"{source.paths[0]}: no array is named {options.names}"
            f"{f' for layer {missing}' if missing else ''}; there are: "
            f"{', '.join(sorted(source.names())[:12])}")
    for number, names in found.items():
        absent = [field for field in "qkv" if field not in names]
        require(not absent, f"{source.paths[0]}: layer {number} has no {', '.join(absent)}")
    return dict(sorted(found.items()))


def _lengths(source: Source, found, layout: str) -> list[int]:
    if layout == "packed" and "cu_seqlens" in source.names():
        cu_seqlens = source.stored("cu_seqlens")
        check_cu_seqlens(cu_seqlens, source.place("cu_seqlens"))
        return np.diff(cu_seqlens.astype(np.int64)).tolist()
    name = next(iter(found.values()))["q"]
    shape = source.read(name).shape
    rank = 3 if layout == "packed" else 4
    require(len(shape) == rank, f"{source.place(name)}: has shape {shape}, must have {rank} axes "
            f"in layout {layout}")
    return [shape[0]] if layout == "packed" else [shape[{"bhsd": 2, "bshd": 1}[layout]]] * shape[0]


def _layer(number: int, arrays, source: Source, options: ImportOptions, attributes, config: ModelConfig,
           note) -> Layer:
    place = f"{source.paths[0]}: layer {number}"
    if arrays.get("index_k") is not None and arrays["index_k"].ndim == 3:
        require(arrays["index_k"].shape[1] == 1,
                f"{place}: index_k has {arrays['index_k'].shape[1]} heads, must have one")
        arrays["index_k"] = arrays["index_k"][:, 0]
    layer = Layer(**arrays, softmax_scale=arrays["q"].shape[-1] ** -0.5)
    given = {name: getattr(options, name) for name in ("softmax_scale", "rotary_dim", "rope_theta")
             if getattr(options, name) is not None}
    if options.interleaved:
        given["rope_layout"] = "interleaved"
    if options.state is not None:
        given |= {"q_state": options.state, "k_state": options.state}
    require("q_state" in attributes or "q_state" in given,
            f"{place}: --state must say whether q and k are stored after RoPE")
    set_attributes(layer, {**attributes, **given}, place)
    if not attributes:  # of a file that this program exported they say it all
        fill(layer, config, number, given, note)
    if layer.rotary_dim is None and "none" not in (layer.q_state, layer.k_state) and (
            options.rope_theta is not None or options.model_config):
        layer.rotary_dim = config.rotary_dim(arrays["q"].shape[-1])
    prefix = NAMES.format(layer=number, field="weights.")
    layer.weights = {name.removeprefix(prefix): source.read(name) for name in source.names()
                     if attributes and name.startswith(prefix)}
    return layer


def _attributes(metadata, number: int, source: Source) -> dict:
    """Of a layer, from the metadata of a file that this program exported."""
    text = metadata.get(f"layers.{number}", "{}")
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise CaptureError(f"{source.paths[0]}: metadata layers.{number} is {text[:80]!r}, must be "
                           "a JSON object") from error
