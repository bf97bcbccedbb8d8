#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Records of the experiment of studies/conversion/README.md, small enough for the repository: of a run's evaluation the sums
of the loss over BIN tokens and the right answers, its curves, and what it was.

usage: records.py RUN ARM-seed-SEED.tar.xz   (RUN: a folder of studies/conversion/gpu.sh; PYTHONPATH=python)
"""

import io
import json
import sys
import tarfile
from pathlib import Path

import h5py
import numpy as np

from msalab import results

BIN = 512  # tokens of text, by position
EVALUATION = "evaluation.json"


def evaluation_of(path: Path) -> dict:
    """Of the results.h5 of msalab evaluate. nats, tokens: of each sequence by position; right: 0 and 1, and the
    exercise of each answer."""
    with h5py.File(path) as file:
        configs = [name.decode() for name in file["configs"][()]]
        text = {name: one[()] for name, one in file["evaluate/text"].items()}
        shape = len(text["document"]), 1 + int(text["position"].max()) // BIN
        place = text["sequence"] * shape[1] + text["position"] // BIN

        def binned(values):
            return np.bincount(place, values, shape[0] * shape[1]).reshape(shape)

        nats = [[[float(f"{value:.7g}") for value in row] for row in binned(values)] for values in text["nats"]]
        return {"configs": configs, "document": text["document"].tolist(), "nats": nats,
                "tokens": binned(np.ones(len(place))).astype(int).tolist(),
                "layer_error": np.round(np.nanmean(text["layer_error"], 0), 5).tolist(),
                "retrieval": {name: {"exercise": group["exercise"][()].tolist(),
                                     "right": ["".join(map(str, row)) for row in group["right"][()].astype(int)]}
                              for name, group in sorted(file.get("evaluate/retrieval", {}).items())}}


def pack(run: Path, path: Path):
    parts = {name: (run / name).read_bytes() for name in (results.SUMMARY, "curves.csv")}
    parts[EVALUATION] = json.dumps(evaluation_of(run / "evaluation/results.h5")).encode()
    with tarfile.open(path, "w:xz") as tar:
        for name, data in parts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


class Record:
    """answer: of the run's training; of a model with the attention that select() names: nats and tokens [document], also
    of the first positions alone, and right {task@length: [exercise], the share of its answers}."""

    def __init__(self, path: Path):
        with tarfile.open(path) as tar:
            summary, self._read = (json.load(tar.extractfile(name)) for name in (results.SUMMARY, EVALUATION))
        self.answer = results.of(path / results.SUMMARY, summary, "msalab train")
        _, self._document = np.unique(self._read["document"], return_inverse=True)
        self.configs = self._read["configs"]

    def select(self, config: str):
        row, read = self.configs.index(config), self._read
        self._bins = np.array(read["nats"][row]), np.array(read["tokens"])
        self.nats, self.tokens = self.first()
        self.right = {}
        for name, task in read["retrieval"].items():
            right = np.array(list(task["right"][row]), float)
            self.right[name] = np.bincount(task["exercise"], right) / np.bincount(task["exercise"])
        return self

    def first(self, positions: int | None = None):
        """nats and tokens of those that are foretold from so many first positions, default: of all."""
        return tuple(np.bincount(self._document, values[:, :positions and positions // BIN].sum(1)) for values in self._bins)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pack(*map(Path, sys.argv[1:]))
