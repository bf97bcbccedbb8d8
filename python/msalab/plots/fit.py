# SPDX-License-Identifier: MIT
"""Reads the group /fit of `msa-results` version 3: what msa-fit-indexer writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .results import ResultsError, ResultsFile

HELD_OUT = ("kl", "kl_selected", "block_recall", "score_recall", "mass_kept", "oracle_mass", "output_error",
            "entropy_index", "entropy_teacher")


@dataclass(frozen=True)
class Curves:
    """The training of one layer."""

    train_kl: np.ndarray  # float64 [steps]: over all visible keys, then over the selected blocks
    warmup_steps: int     # where that changes
    step: np.ndarray      # int64 [evaluations]: steps done before each
    held_out: dict[str, np.ndarray]  # float64 [evaluations] each
    best_step: int        # steps done before the evaluation whose weights are kept
    split: str            # which queries were trained on, which are held out


class FitResults(ResultsFile):
    """One results file of msa-fit-indexer, open for reading; use it in a `with` statement."""

    group = "fit"
    program = "msa-fit-indexer"
    otherwise = "--fit takes results of msa-fit-indexer"

    @property
    def start(self) -> str:
        """How the first weights were found: normal, from-qk or pca; empty where it is not said."""
        return self.run_json("options").get("init", "")

    def interval(self, layer: int, name: str) -> tuple[float, float]:
        """The 95 % interval of a measure at the weights that are kept, NaN where none is known."""
        return self._interval("evaluations", name, layer=layer, is_kept=True)

    def curves(self, layer: int) -> Curves:
        place = f"fit/{layer}"
        step = self._values(f"{place}/held_out/step", "i", None)
        if not len(step):
            raise ResultsError(f"{self.path}: /{place}/held_out/step is empty")
        held_out = {name: self._values(f"{place}/held_out/{name}", "f", len(step))
                    for name in HELD_OUT}
        return Curves(self._values(f"{place}/train/kl", "f", None),
                      self._attribute(place, "warmup_steps", int), step, held_out,
                      self._attribute(place, "best_step", int),
                      self._attribute(place, "split", str))
