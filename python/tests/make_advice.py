# SPDX-License-Identifier: MIT
"""A summary.json of msa-advise, as far as a running model reads it."""

import json

from make_report import report

NAMES = ("selector", "block_size", "top_k", "forced_first", "forced_local")


def advice(layers) -> dict:
    """layers: number -> the values of NAMES, or None where it stays dense."""
    own = [{"layer": layer, **dict(zip(NAMES, one))} for layer, one in layers.items() if one]
    made = report("msa-advise", {"layers": (1, [{"layer": layer} for layer in layers]), "own_settings": (1, own)})
    if not own:  # an empty table has its columns, too
        columns = report("msa-advise", {"own_settings": (1, [{"layer": 0, **dict(zip(NAMES, ("", 1, 1, 1, 1)))}])})
        made["columns"] |= columns["columns"]
        made["tables"]["own_settings"]["columns"] = ["layer", *NAMES]
    return made


def make_advice(path, layers):
    path.write_text(json.dumps(advice(layers)))
    return path
