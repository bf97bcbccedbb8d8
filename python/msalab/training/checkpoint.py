# SPDX-License-Identifier: MIT
"""What a run leaves: OUT/state-N, from which it goes on (PyTorch's distributed checkpoint: float32 weights
and moments, a part of each process), and OUT/model, an ordinary folder of transformers with the Index
Branches in indexer.safetensors."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import torch
from torch.distributed import checkpoint as dcp

from ..capture import fitted
from ..evaluation.files import read_json, write_json
from .learner import is_of_index

STATE = "state-"


def _tensors(learner, optimizer) -> dict:
    found = {}
    for name, one in learner.named_parameters():
        found[f"weight.{name}"] = one.detach()
        found |= {f"{part}.{name}": value for part, value in optimizer.state[one].items()}
    return found


def states(out: Path) -> list[Path]:
    """Those that are whole, the newest last."""
    return sorted((path for path in out.glob(STATE + "*") if path.suffix != ".partial"),
                  key=lambda path: int(path.name.removeprefix(STATE)))


def save(out: Path, group, learner, optimizer, progress: dict):
    """progress: where the run is, `step` among it. An older state goes when the new one is whole."""
    before = states(out)
    path = out / f"{STATE}{progress['step']}"
    partial = path.with_suffix(".partial")
    if group.rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
    group.wait()
    dcp.save(_tensors(learner, optimizer), checkpoint_id=partial)
    if group.rank == 0:
        write_json(partial / "progress.json", progress)
        partial.rename(path)
        for old in before:
            if old != path:
                shutil.rmtree(old)
    group.wait()


def load(out: Path, learner, optimizer) -> dict | None:
    """The newest state into the learner; its progress, or None where there is none."""
    found = states(out)
    if not found:
        return None
    dcp.load(_tensors(learner, optimizer), checkpoint_id=found[-1])
    return read_json(found[-1] / "progress.json")


def save_model(out: Path, group, model, branches, forms, rule, vocabulary, dtype):
    """OUT/model: weights in the type that they came in. branches, forms: of layers, what is trained and what
    is not."""
    tied = model.all_tied_weights_keys if model.config.get_text_config().tie_word_embeddings else ()
    weights = {name: _whole(one).to(dtype) for name, one in model.named_parameters()
               if not is_of_index(name) and name not in tied}
    trained = {number: {name: _whole(one).float().numpy() for name, one in branch.named_parameters()}
               for number, branch in branches.items()}
    if group.rank == 0:
        partial, path = out / "model.partial", out / "model"
        shutil.rmtree(partial, ignore_errors=True)
        model.config.dtype = dtype
        model.save_pretrained(partial, state_dict=weights)
        vocabulary.save(partial)
        if trained:
            made = {number: replace(forms[number], w_q=of["q_proj.weight"], w_k=of["k_proj.weight"],
                                    norm_q=of.get("q_norm.weight"), norm_k=of.get("k_norm.weight"))
                    for number, of in trained.items()}
            (partial / fitted.TRAINED).write_bytes(fitted.packed(made, vars(rule), str(partial)))
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
    group.wait()


def _whole(one) -> torch.Tensor:
    """Of what processes share; all of them call this."""
    return one.detach().full_tensor().cpu()
