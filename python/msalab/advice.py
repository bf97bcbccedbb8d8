# SPDX-License-Identifier: MIT
"""What msa-advise recommends, layer by layer, as a running model takes it."""

from __future__ import annotations

import json
from pathlib import Path

from .operations import InputError
from .selectors import SCORES, Choice, Rule

FORMAT, VERSION = "msa-advise-summary", 1  # the first version is not written
PARTS = ("block_size", "top_k", "forced_first", "forced_local")


def read(path) -> dict[int, Choice | None]:
    """Layer -> the setting of its own that msa-advise recommends, None where it stays dense; of the
    summary.json of msa-advise, or of its folder. InputError naming what is wrong."""
    path = Path(path)
    path = path / "summary.json" if path.is_dir() else path
    try:
        summary = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error})") from error
    found = summary.get("format") if isinstance(summary, dict) else None
    if found != FORMAT:
        raise InputError(f'{path}: format is "{found}", must be "{FORMAT}": the summary.json of '
                         "msa-advise")
    version = summary.get("format_version", VERSION)
    if version != VERSION:
        raise InputError(f"{path}: format_version is {version}, must be {VERSION}")
    try:
        layers = [(layer["layer"], layer["recommended"]) for layer in summary["layers"]]
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: layers lack {error}") from error
    choices: dict[int, Choice | None] = {}
    for number, setting in layers:
        if type(number) is not int or number < 0 or number in choices:
            raise InputError(f"{path}: layers name layer {number!r}, must be numbers from 0 on, each once")
        choices[number] = _choice(f"{path}: layer {number}", setting)
    if not any(choices.values()):
        raise InputError(f"{path}: leaves every layer dense: there is nothing to run")
    return choices


def _choice(place: str, setting) -> Choice | None:
    if setting is None:
        return None
    if not isinstance(setting, dict) or not setting.keys() >= {*PARTS, "selector"}:
        raise InputError(f"{place}: recommended is {setting!r}, must be an object with selector, {', '.join(PARTS)}")
    name = setting["selector"]
    if name != "index" and name not in SCORES:
        raise InputError(f"{place}: is advised {name}, which does not work in a running model; those "
                         f"that do are: index, {', '.join(SCORES)} (msa-advise --selectors)")
    try:
        return Choice(name, Rule(*(setting[part] for part in PARTS)))
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
