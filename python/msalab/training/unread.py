# SPDX-License-Identifier: MIT
"""Tensors of a checkpoint that its model in transformers has no place for, as those of heads that foretell several
tokens (MTP): they go into the trained model's folder as they are."""

from __future__ import annotations

import re
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file

from ..capture.gguf import place_of
from ..evaluation.files import read_json, write_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
OWN, OTHERS = "model-trained.safetensors", "model-not-trained.safetensors"


def candidates(name: str, revision, model, unexpected) -> dict[str, Path]:
    """Name -> file of the tensors that the model may have left out: those that it names as such, and those that the
    library found no place for. Of a checkpoint of other files than safetensors, none."""
    patterns = [re.compile(one) for one in model._keys_to_ignore_on_load_unexpected or ()]
    found = {}
    for path in _files(name, revision) if patterns or unexpected else ():
        with safe_open(path, "pt") as file:
            found |= {key: path for key in file.keys()
                      if key in unexpected or any(one.search(key) for one in patterns)}
    return found


def _files(name: str, revision) -> list[Path]:
    place, how = place_of(name)
    if how:
        return []  # a GGUF file
    folder = Path(place)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(place, revision=revision, allow_patterns=["*.safetensors", INDEX],
                                        local_files_only=True))  # it has just been loaded
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or not index.is_file():
        return [path for path in (folder / WEIGHTS,) if path.is_file()]
    names = read_json(index).get("weight_map", {}).values()
    return [folder / one for one in sorted(set(names)) if (folder / one).is_file()]


def add(folder: Path, tensors: dict[str, Path]):
    """Of the candidates those that save_pretrained() has not written there, and an index that names all."""
    index = folder / INDEX
    if index.is_file():
        told = read_json(index)
    else:
        with safe_open(folder / WEIGHTS, "pt") as file:
            told = {"metadata": {}, "weight_map": dict.fromkeys(file.keys(), OWN)}
    values = {}
    for name in tensors.keys() - told["weight_map"].keys():
        with safe_open(tensors[name], "pt") as file:
            values[name] = file.get_tensor(name)
    if values:
        if not index.is_file():
            (folder / WEIGHTS).rename(folder / OWN)
        save_file(values, folder / OTHERS, {"format": "pt"})
        told["weight_map"] |= dict.fromkeys(values, OTHERS)
        write_json(index, told)
