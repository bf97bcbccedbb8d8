# SPDX-License-Identifier: MIT
"""What a run leaves: OUT/state-N, from which it goes on (data/FORMAT.md, "The state of a training run"), and OUT/model,
an ordinary folder of transformers with the Index Branches in indexer.safetensors."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.tensor import DTensor

from ..capture import fitted
from ..capture.layer import CaptureError, require
from ..capture.partial_file import PartialFile
from ..evaluation.files import read_json, remove_folder, replace_folder, require_folder, sha256, write_json
from . import unread
from .learner import is_of_index

STATE = "state-"
SUMS = "SHA256SUMS"  # of a state: as sha256sum writes and checks it
PROGRESS = "progress.json"
OF_MODEL = "msalab_train.json"  # in OUT/model: behind which step its weights are


def _tensors(learner, optimizer) -> dict:
    found = {}
    for name, one in learner.named_parameters():
        found[f"weight.{name}"] = one.detach()
        found |= {f"{part}.{name}": value for part, value in optimizer.state[one].items()}
    return found


def states(out: Path) -> list[Path]:
    """Those that are whole, the newest last."""
    found = {int(name[1]): path for path in out.glob(STATE + "*")
             if (name := re.fullmatch(rf"{STATE}([1-9][0-9]*)", path.name))}
    for path in found.values():
        require_folder(path)
    return [found[step] for step in sorted(found)]


def clear(out: Path, but: Path | None = None):
    """Removes every state but one, and what a run that was killed had begun to write or to remove."""
    for path in states(out):
        if path != but:
            remove_folder(path)
    for name in (STATE + "*", "model"):
        for suffix in (".partial", ".old"):
            for path in out.glob(name + suffix):
                shutil.rmtree(path)


def save(out: Path, group, learner, optimizer, progress: dict):
    """progress: where the run is, `step` among it. An older state goes when the new one is whole."""
    path = out / f"{STATE}{progress['step']}"
    partial = path.with_suffix(".partial")
    with group.together():
        if group.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
    group.wait()
    sums = {}
    with group.together():
        sums[_part(group.rank)] = _write_part(partial / _part(group.rank), _tensors(learner, optimizer))
    sums = {name: digest for of_one in group.gathered(sums) for name, digest in of_one.items()}
    with group.together():
        if group.rank == 0:
            write_json(partial / PROGRESS, progress)
            sums[PROGRESS] = sha256(partial / PROGRESS)
            with PartialFile(partial / SUMS) as file:
                file.write("".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode())
                file.finish()
            replace_folder(partial, path)
            clear(out, path)
    group.wait()


def _part(rank: int) -> str:
    return f"part-{rank}.safetensors"


def _local(one: torch.Tensor) -> torch.Tensor:
    """What this process has of it: rows one behind the other, or all of a number."""
    return one.to_local() if isinstance(one, DTensor) else one


def _write_part(path: Path, tensors: dict) -> str:
    """A file of safetensors; its sha256. One tensor is copied at a time."""
    header, end = {}, 0
    for name, one in tensors.items():
        own = _local(one)
        require(own.dtype == torch.float32, f"{path}: {name} is {own.dtype}, must be float32")
        header[name] = {"dtype": "F32", "shape": list(own.shape), "data_offsets": [end, end + 4 * own.numel()]}
        end += 4 * own.numel()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()
    with PartialFile(path) as file:
        def put(some):
            digest.update(some)
            file.write(some)

        put(len(text).to_bytes(8, "little") + text)
        for one in tensors.values():
            if (own := _local(one)).numel():
                put(own.contiguous().cpu().reshape(-1).numpy().data.cast("B"))
        file.finish()
    return digest.hexdigest()


def load(out: Path, group, learner, optimizer) -> tuple[Path, dict] | None:
    """The newest state into the learner; its folder and its progress, or None where there is none."""
    found = states(out)
    if not found:
        return None
    path = found[-1]
    with group.together():
        names = _named_in(path)
        for name in names[group.rank::group.size]:
            require(sha256(path / name[0]) == name[1], f"{path / name[0]}: is damaged: its bytes are not those that "
                    f"{SUMS} was written of")
    with group.together():
        progress = _progress_of(path)
        _read_parts(path, len(names) - 1, group, _tensors(learner, optimizer))
    return path, progress


def _named_in(state: Path) -> list[tuple[str, str]]:
    """Each file of a state and its sha256: the parts in their order, then the progress."""
    path = state / SUMS
    require(path.is_file(), f"{state}: is damaged, or was written by another version: it has no file {SUMS}")
    lines = [line.split("  ", 1) for line in path.read_bytes().decode("ascii", "replace").splitlines()]
    names = {line[-1]: line[0] for line in lines}
    expected = [*map(_part, range(len(lines) - 1)), PROGRESS]
    require(len(lines) > 1 and list(names) == expected, f"{path}: is damaged: it must name {_part(0)} and so on, and "
            f"{PROGRESS}")
    there = {one.name for one in state.iterdir()}
    absent = [name for name in expected if name not in there]
    require(not absent, f"{state}: is damaged: it has no file {absent and absent[0]}")
    return list(names.items())


def _progress_of(state: Path) -> dict:
    path = state / PROGRESS
    found = read_json(path)
    step = int(state.name.removeprefix(STATE))
    require(isinstance(found, dict) and found.keys() == {"step", "smooth", "least"} and found["step"] == step,
            f"{path}: must have smooth, least and step {step}")
    for name in ("smooth", "least"):
        value = found[name]
        require(isinstance(value, float) and math.isfinite(value), f"{path}: {name} is {value}, must be a number")
    return found


def _read_parts(state: Path, parts: int, group, tensors: dict):
    """Parts have rows of each tensor one behind the other; how many processes wrote them is not how many read."""
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(state / _part(part), "pt")) for part in range(parts)]
            for name, one in tensors.items():
                if one.ndim:
                    _fill(one, [file.get_slice(name) for file in files], group)
                else:
                    one.copy_(files[0].get_tensor(name))
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise CaptureError(f"{state}: does not hold the weights of this model: {error}") from error


def _fill(one: torch.Tensor, slices, group):
    """The rows of this process, as FSDP2 cuts them; all of one process."""
    sizes = [part.get_shape()[0] for part in slices]
    if sum(sizes) != one.shape[0]:
        raise ValueError(f"{sum(sizes)} rows, must be {one.shape[0]}")
    each = math.ceil(one.shape[0] / group.size)
    begin, at, own = min(group.rank * each, one.shape[0]), 0, _local(one)
    end = begin + len(own)
    for part, size in zip(slices, sizes):
        first, last = max(begin, at), min(end, at + size)
        if first < last:
            own[first - begin:last - begin].copy_(part[first - at:last - at])
        at += size


def is_model_of(out: Path, state: Path) -> bool:
    """Does OUT/model have the weights of that state?"""
    try:
        return read_json(out / "model" / OF_MODEL)["state"] == sha256(state / SUMS)
    except (CaptureError, OSError, KeyError, TypeError):
        return False


def save_model(out: Path, group, learner, branches, forms, rule, vocabulary, types: dict, others: dict,
               step: int):
    """OUT/model: every tensor that the checkpoint has of the model, in the type that it came in: of its name in
    `types`, and of the model itself under "". others: of unread.candidates(). branches, forms: of layers, what is
    trained and what is not. Behind save() of the same step."""
    model = learner.model
    tied = model.all_tied_weights_keys if model.config.get_text_config().tie_word_embeddings else ()
    weights = {name: _whole(one).to(types[name]) for name, one in model.state_dict().items()
               if not is_of_index(name) and name not in tied}
    trained = {number: {name: _whole(one).float().numpy() for name, one in branch.named_parameters()}
               for number, branch in branches.items()}
    with group.together():
        if group.rank == 0:
            with _written(out / "model"):
                partial = out / "model.partial"
                shutil.rmtree(partial, ignore_errors=True)
                model.save_pretrained(partial, state_dict=weights)
                unread.add(partial, others)
                model.config.dtype = types[""]  # save_pretrained() takes that of the training
                model.config.save_pretrained(partial)
                vocabulary.save(partial)
                if trained:
                    made = {number: replace(forms[number], w_q=of["q_proj.weight"], w_k=of["k_proj.weight"],
                                            norm_q=of.get("q_norm.weight"), norm_k=of.get("k_norm.weight"))
                            for number, of in trained.items()}
                    (partial / fitted.TRAINED).write_bytes(fitted.packed(made, vars(rule), str(partial)))
                write_json(partial / OF_MODEL, {"step": step, "state": sha256(out / f"{STATE}{step}" / SUMS)})
                replace_folder(partial, out / "model")
    group.wait()


@contextmanager
def _written(path: Path):
    """CaptureError naming what cannot be written; the libraries have errors of many types."""
    try:
        yield
    except CaptureError:
        raise
    except Exception as error:
        why = getattr(error, "strerror", None) or error
        raise CaptureError(f"{path}: cannot be written: {why}") from error


def _whole(one) -> torch.Tensor:
    """Of what processes share; all of them call this."""
    one = one.detach()
    return (one.full_tensor() if isinstance(one, DTensor) else one).cpu()
