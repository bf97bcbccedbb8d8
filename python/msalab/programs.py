# SPDX-License-Identifier: MIT
"""The compiled programs: where they are looked for, and what is there."""

from __future__ import annotations

import os
from pathlib import Path

from .ending import Refusal

BIN = Path(__file__).parent / "bin"


def folders() -> list[Path]:
    """Of the installed package, then the one that the environment names in MSALAB_BIN."""
    return [BIN, *map(Path, filter(None, [os.environ.get("MSALAB_BIN")]))]


def programs() -> dict[str, Path]:
    """Command -> its program, of the first folder that has it."""
    found = {path.name.removeprefix("msa-"): path for folder in reversed(folders()) for path in folder.glob("msa-*")}
    return dict(sorted(found.items()))


def find_program(name: str) -> Path:
    found = programs().get(name.removeprefix("msa-"))
    if found is None:
        raise Refusal(f"{folders()[-1] / name}: no such program; pip install '.[evaluate]' in a clone, or "
                      "MSALAB_BIN names its build/release/bin")
    return found
