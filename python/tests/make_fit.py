# SPDX-License-Identifier: MIT
"""A small results file of msa-fit-indexer, with numbers that tell the curves apart."""

import json

import h5py
import numpy as np

from msalab.plots.fit import HELD_OUT

STEPS, WARMUP = 20, 8
SPLIT = "trained on positions 0:288, held out 288:384, of 1 sequence"


def make_fit(path, layers=(3,), warmup=WARMUP, start="from-qk"):
    step = np.array([0, 10, 20])
    with h5py.File(path, "w") as file:
        file.attrs.update(format="msa-results", format_version=3)
        file.create_group("run").attrs["options"] = json.dumps({"init": start})
        for layer in layers:
            group = file.create_group(f"fit/{layer}")
            group.attrs.update(split=SPLIT, warmup_steps=warmup, best_step=10)
            group["train/kl"] = np.linspace(1, 0.5, STEPS) + layer
            group["held_out/step"] = step
            for place, name in enumerate(HELD_OUT):
                group[f"held_out/{name}"] = step / 100 + place / 10
    return path
