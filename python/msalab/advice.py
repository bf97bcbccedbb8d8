# SPDX-License-Identifier: MIT
"""What msa-advise recommends, layer by layer, as a running model takes it."""

from __future__ import annotations

import json
from pathlib import Path

from .operations import InputError
from .selectors import SCORES, Choice, Rule

FORMAT = "msa-advise-summary"


def read(path) -> dict[int, Choice | None]:
    """Layer -> the setting of its own that msa-advise recommends, None where it stays dense; of the
    summary.json of msa-advise, or of its folder. InputError naming what is wrong."""
    path = Path(path)
    path = path / "summary.json" if path.is_dir() else path
    try:
        summary = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable JSON file ({error})") from error
    found = summary.get("format") if isinstance(summary, dict) else None
    if found != FORMAT:
        raise InputError(f'{path}: format is "{found}", must be "{FORMAT}": the summary.json of '
                         "msa-advise")
    try:
        choices = {int(layer["layer"]): _choice(f"{path}: layer {layer['layer']}",
                                                layer["recommended"])
                   for layer in summary["layers"]}
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: layers lack {error}") from error
    if not any(choices.values()):
        raise InputError(f"{path}: leaves every layer dense: there is nothing to run")
    return choices


def _choice(place: str, setting) -> Choice | None:
    if setting is None:
        return None
    name = setting["selector"]
    if name != "index" and name not in SCORES:
        raise InputError(f"{place}: is advised {name}, which does not work in a running model; those "
                         f"that do are: index, {', '.join(SCORES)} (msa-advise --selectors)")
    return Choice(name, Rule(setting["block_size"], setting["top_k"], setting["forced_first"],
                             setting["forced_local"]))
