# SPDX-License-Identifier: MIT
"""Index Branches that msa-fit-indexer has fitted, from its results.h5 and as safetensors, which msalab
train writes, too; with numpy alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from .. import hdf5
from .layer import CaptureError, require

EPSILON = 1e-6  # of the RMS norms (core/indexer/index_branch.h)
METADATA = "msalab_index_branch"  # of a safetensors file: MiniMax-M3's configuration, as far as it counts
NAME = "model.layers.{layer}.self_attn.indexer.{part}.weight"
# A rule's parts, and what MiniMax-M3's configuration calls them.
OF_M3 = {"block_size": "index_block_size", "top_k": "index_topk_blocks",
         "forced_local": "index_local_blocks"}
PARTS = ("q_proj", "k_proj", "q_norm", "k_norm")
FIT, TRAINED = "results.h5", "indexer.safetensors"  # names in a folder


@dataclass
class Fitted:
    """Of one layer. Projections, rows are outputs: w_q [Hkv * didx, d_model], w_k [didx, d_model];
    norm_q, norm_k [didx] or None; RoPE's frequencies [rotary_dim / 2] float64, channel c with channel
    c + rotary_dim / 2: those of `theta`, or where it is None of another kind. shared_by: the layers
    that take its ids (msa-fit-indexer --every)."""

    groups: int
    w_q: np.ndarray
    w_k: np.ndarray
    norm_q: np.ndarray | None
    norm_k: np.ndarray | None
    frequencies: np.ndarray
    theta: float | None
    shared_by: tuple[int, ...] = ()


def plain_frequencies(rotary_dim: int, theta: float) -> np.ndarray:
    """theta^(-2c / rotary_dim), [rotary_dim / 2] float64"""
    return theta ** (-2.0 * np.arange(rotary_dim // 2) / max(rotary_dim, 1))


def read(path) -> dict[int, Fitted]:
    """Layer -> its Index Branch, of the results.h5 of msa-fit-indexer, of a .safetensors file that convert
    made of it or msalab train wrote, or of the folder of one of them. CaptureError naming the file and what
    is wrong."""
    path = file_of(path)
    try:
        if path.suffix == ".safetensors":
            return _read_safetensors(path)
        with h5py.File(path, "r") as file:
            require("fit" in file and len(file["fit"]), f"{path}: has no fitted weights (/fit); those "
                    "of msa-fit-indexer are in the results.h5 beside its indexer.h5")
            return {int(layer): _read_layer(f"{path}: /fit/{layer}", group, file)
                    for layer, group in sorted(file["fit"].items(), key=lambda one: int(one[0]))}
    except CaptureError:
        raise
    except Exception as error:  # the libraries raise errors of many types on damaged files
        raise CaptureError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


def file_of(path) -> Path:
    """The file that read() reads. CaptureError where there is none."""
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in (FIT, TRAINED) if (path / name).is_file()]
        require(found, f"{path}: has neither {FIT} nor {TRAINED}")
        path = found[0]
    require(path.is_file(), f"{path}: no such file")
    return path


def _checked(place: str, values, *shape, dtype=np.float32) -> np.ndarray:
    found = np.asarray(values, dtype)
    require(found.shape == shape and np.isfinite(found).all(), f"{place}: shape {list(found.shape)}, "
            f"must be {list(shape)} of finite numbers")
    return found


def _read_layer(place: str, fit, file: h5py.File) -> Fitted:
    group = hdf5.checked(fit["weights"], file, f"{place}/weights", CaptureError)
    shared_by = tuple(map(int, fit["layers"][1:])) if "layers" in fit else ()
    for name, what in (("w_index_w", "an indexer of --architecture dsa"),
                       ("w_gate_k", "a gate of --architecture seerattention"),
                       ("w_qsa_k", "an indexer of --architecture qsa")):
        require(name not in group, f"{place}/weights has {name}: {what}, must be of msa")
    form = {name: hdf5.attribute(group.attrs[name]) for name in ("groups", "index_dim", "model_dim", "rms_norm",
                                                 "rotary_dim", "rope_theta")}
    groups, dim, model_dim = (int(form[name]) for name in ("groups", "index_dim", "model_dim"))
    rotary, theta = int(form["rotary_dim"]), float(form["rope_theta"])
    require(rotary % 2 == 0 and 0 <= rotary <= dim,
            f"{place}: rotary_dim is {rotary}, must be even and from 0 to {dim}")

    def values(name, *shape, dtype=np.float32):
        what = f"{place}/weights/{name}"
        return _checked(what, hdf5.checked(group[name], file, what, CaptureError)[()], *shape, dtype=dtype)

    frequencies = plain_frequencies(rotary, theta)
    if "rope_frequencies" in group:
        theta, frequencies = None, values("rope_frequencies", rotary // 2, dtype=np.float64)
    norms = [values(f"index_{side}_norm", dim) if form["rms_norm"] else None for side in "qk"]
    return Fitted(groups, values("w_index_q", groups * dim, model_dim),
                  values("w_index_k", dim, model_dim), *norms, frequencies, theta, shared_by)


def _read_safetensors(path) -> dict[int, Fitted]:
    with safe_open(path, "numpy") as file:
        metadata, names = file.metadata() or {}, set(file.keys())
        require(METADATA in metadata, f"{path}: has no metadata {METADATA}: not of msalab convert")
        form = json.loads(metadata[METADATA])
        groups, dim, theta = form["index_n_heads"], form["index_head_dim"], form["rope_theta"]
        parts = PARTS if form["rms_norm_eps"] is not None else PARTS[:2]
        found = {}
        for layer in form["layers"]:
            own = form.get("rope_frequencies")
            own = own[str(layer)] if isinstance(own, dict) else own  # of all layers in files before
            frequencies = (plain_frequencies(form["rotary_dim"], theta) if own is None else
                           np.asarray(own, np.float64))
            name = {part: NAME.format(layer=layer, part=part) for part in parts}
            require(names.issuperset(name.values()), f"{path}: has no Index Branch of layer {layer}")
            width = file.get_slice(name["q_proj"]).get_shape()[1]
            q, k, *norms = (
                _checked(f"{path}: {name[part]}", file.get_tensor(name[part]), *shape)
                for part, shape in zip(parts, ((groups * dim, width), (dim, width), (dim,), (dim,))))
            norm_q, norm_k = (norm + 1 for norm in norms) if norms else (None, None)
            found[layer] = Fitted(groups, q, k, norm_q, norm_k, frequencies, theta)
        return found


def as_safetensors(path, layers: list[int] | None = None) -> bytes:
    """The Index Branches of a fit, of all layers or of these, under the names that transformers'
    MiniMax-M3 has for them. Its norms multiply by 1 + weight, so a norm's weight less 1 is stored. What
    else scoring needs is in the metadata, under the names of that model's configuration, which says it
    once for all layers: CaptureError for what it cannot say."""
    branches = read(path)
    wanted = layers or list(branches)
    unknown = sorted(set(wanted) - branches.keys())
    require(not unknown, f"{path}: has no Index Branch of layers {unknown}; there are: "
            f"{', '.join(map(str, branches))}")
    for layer in wanted:
        branch, place = branches[layer], f"{path}: layer {layer}"
        require(not branch.shared_by, f"{place}: layers {list(branch.shared_by)} take the ids of this one, and "
                "in MiniMax-M3's configuration every sparse layer has an Index Branch: msa-fit-indexer "
                "without --every and --groups fits them")
        require(branch.norm_q is not None, f"{place}: the Index Branch has no RMS norms, and "
                "MiniMax-M3's has: msa-fit-indexer --index-norm rms fits them")
        require(len(branch.frequencies), f"{place}: the Index Branch has no RoPE, and MiniMax-M3's has")
        require(branch.theta is not None, f"{place}: the Index Branch has RoPE of other frequencies than "
                "those of a theta, which MiniMax-M3's configuration cannot say one by one; where the model's "
                "are those of a theta, msa-fit-indexer --rope-pairs every-nth has such")
        require(branch.theta == branches[wanted[0]].theta, f"{place}: theta {branch.theta}, of layer "
                f"{wanted[0]} {branches[wanted[0]].theta}; MiniMax-M3's configuration has one for all layers")
    of = rule(path)
    require(of["forced_first"] == 0, f"{path}: was fitted with --forced-first {of['forced_first']}, and "
            "MiniMax-M3 keeps no first blocks")
    return packed({layer: branches[layer] for layer in wanted}, of, str(path))


def packed(branches: dict[int, Fitted], of: dict[str, int], place: str) -> bytes:
    """Index Branches and their rule as a file of safetensors, under the names of MiniMax-M3. What its
    configuration cannot say stands beside: no norm, the frequencies of each layer where not all are of one
    theta, forced first blocks. CaptureError where layers differ in what is said once."""
    wanted, tensors = list(branches), {}
    first = branches[wanted[0]]
    for layer, branch in branches.items():
        for what, value in (("rotary dim", _rotary),
                            ("index dim", lambda one: len(one.w_k)), ("groups", lambda one: one.groups)):
            require(value(branch) == value(first), f"{place}: layer {layer}: {what} {value(branch)}, of "
                    f"layer {wanted[0]} {value(first)}; MiniMax-M3's configuration has one for all layers")
        values = [branch.w_q, branch.w_k]
        if branch.norm_q is not None:
            values += [branch.norm_q - 1, branch.norm_k - 1]
        tensors |= {NAME.format(layer=layer, part=part): np.ascontiguousarray(value)
                    for part, value in zip(PARTS, values)}
    theta = first.theta if all(branch.theta == first.theta for branch in branches.values()) else None
    form = {"layers": wanted, "index_n_heads": first.groups, "index_head_dim": len(first.w_k),
            **{OF_M3.get(name, name): value for name, value in of.items() if value or name in OF_M3},
            "rope_type": "default", "rope_theta": theta, "rotary_dim": _rotary(first),
            "rope_layout": "halves", "rms_norm_eps": None if first.norm_q is None else EPSILON,
            "index_scale": len(first.w_k) ** -0.5}
    if theta is None:
        form["rope_frequencies"] = {str(layer): branch.frequencies.tolist()
                                    for layer, branch in branches.items()}
    return save(tensors, {METADATA: json.dumps(form)})  # one entry: several have no order, and bytes differ


def _rotary(branch: Fitted) -> int:
    return 2 * len(branch.frequencies)


def rule(path) -> dict[str, int]:
    """Which blocks the fit was for, of what read() takes: block_size, top_k, forced_first, forced_local."""
    path = file_of(path)
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "numpy") as file:
                form = json.loads(file.metadata()[METADATA])
            found = {name: int(form[of_m3]) for name, of_m3 in OF_M3.items()}
            return found | {"forced_first": int(form.get("forced_first", 0))}
        with h5py.File(path, "r") as file:
            run = hdf5.checked(file["run"], file, f"{path}: /run", CaptureError)
            options = json.loads(run.attrs["options"])
            return {name: int(options[name]) for name in (*OF_M3, "forced_first")}
    except CaptureError:
        raise
    except OSError as error:
        raise CaptureError(f"{path}: cannot be read: {error}") from error
    except Exception as error:  # the libraries raise errors of many types on damaged files
        raise CaptureError(f"{path}: /run does not say block size and k of the fit: {error}") from error
