# SPDX-License-Identifier: MIT
"""A summary.json of msa-advise, as far as a running model reads it."""

import json

NAMES = ("selector", "block_size", "top_k", "forced_first", "forced_local")


def make_advice(path, layers):
    """layers: number -> the values of NAMES, or None where it stays dense."""
    path.write_text(json.dumps({"format": "msa-advise-summary", "layers": [
        {"layer": layer, "recommended": one and dict(zip(NAMES, one))}
        for layer, one in layers.items()]}))
    return path
