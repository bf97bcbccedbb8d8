# SPDX-License-Identifier: MIT
"""What msa-advise recommends, layer by layer, as a running model takes it."""

from __future__ import annotations

from pathlib import Path

from . import results
from .operations import InputError
from .selectors import SCORES, Choice, Rule

PARTS = ("block_size", "top_k", "forced_first", "forced_local")


def read(path) -> dict[int, Choice | None]:
    """Layer -> the setting of its own that msa-advise recommends, None where it stays dense; of the
    summary.json of msa-advise, or of its folder. InputError naming what is wrong."""
    path = Path(path)
    try:
        answer = results.open(path, "msa-advise")
        layers, own = answer["layers"]["layer"].tolist(), answer["own_settings"]
        settings = own.select("layer", "selector", *PARTS).records()
    except results.ResultsError as error:
        raise InputError(str(error)) from error
    except KeyError as error:
        raise InputError(f"{path}: own_settings lacks {error}") from error
    choices: dict[int, Choice | None] = dict.fromkeys(layers)
    if len(choices) != len(layers) or any(layer < 0 for layer in layers):
        raise InputError(f"{path}: layers are {layers}, must be numbers from 0 on, each once")
    for setting in settings:
        if setting["layer"] not in choices:
            raise InputError(f"{path}: own_settings has layer {setting['layer']}, which layers does not")
        choices[setting["layer"]] = _choice(f"{path}: layer {setting['layer']}", setting)
    if not any(choices.values()):
        raise InputError(f"{path}: leaves every layer dense: there is nothing to run")
    return choices


def _choice(place: str, setting: dict) -> Choice:
    name = setting["selector"]
    if name != "index" and name not in SCORES:
        raise InputError(f"{place}: is advised {name}, which does not work in a running model; those "
                         f"that do are: index, {', '.join(SCORES)} (msa-advise --selectors)")
    try:
        return Choice(name, Rule(*(setting[part] for part in PARTS)))
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
