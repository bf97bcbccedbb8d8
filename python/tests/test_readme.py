# SPDX-License-Identifier: MIT
"""The table of docs/guide.md is what the demo prints: the rows of selectors that need no fit, by msa-analyze on the
sample; all rows, where MSALAB_RESULTS names the results of the demo (./msalab test). The main README quotes it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from msalab import results

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("MSALAB_BIN", ROOT / "build/release/bin"))
COLUMNS = ("block_recall", "score_recall", "mass_kept", "oracle_mass", "output_error",
           "sink_mass_dense", "sink_mass_sparse", "entropy_dense", "entropy_sparse")
NO_FIT = ("mean-key", "oracle", "random", "window")


def rows_of(text: str) -> dict:
    """(layer, selector) -> its numbers, of the first table in a text; without intervals."""
    head, found = "layer  selector", {}
    for line in text[text.index(head):].splitlines()[1:]:
        words = re.sub(r" \[.*?\]", "", line).split()
        if len(words) != 2 + len(COLUMNS) or not words[0].isdigit():
            break
        found[int(words[0]), words[1]] = [float(word) for word in words[2:]]
    return found


GUIDE = rows_of((ROOT / "docs/guide.md").read_text(encoding="utf-8"))


def test_the_table_is_found():
    assert list(GUIDE) == [(layer, name) for layer in (10, 20)
                            for name in ("index", *NO_FIT)]


def test_the_readme_quotes_it():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    quoted = re.search(r"best 8 blocks keep (0\.\d+) .* keeps (0\.\d+), .* mean key (0\.\d+)\..* keep only (0\.\d+)", text)
    kept = [*(GUIDE[10, name][COLUMNS.index("mass_kept")] for name in ("oracle", "index", "mean-key")),
            GUIDE[20, "oracle"][COLUMNS.index("mass_kept")]]
    assert quoted.groups() == tuple(f"{mass:.3f}" for mass in kept)


def test_rows_without_a_fit(tmp_path):
    if not (BIN / "msa-analyze").exists():
        pytest.skip(f"no msa-analyze in {BIN}: ./msalab build")
    printed = subprocess.run(
        [BIN / "msa-analyze", ROOT / "data/sample.h5", "--out", tmp_path / "out", "--block-size", "32",
         "--top-k", "8", "--selectors", ",".join(NO_FIT), "--queries", "1024:"],
        check=True, capture_output=True, text=True).stdout
    found = rows_of(printed)
    assert list(found) == [key for key in GUIDE if key[1] in NO_FIT]
    for key, numbers in found.items():
        assert numbers == pytest.approx(GUIDE[key], abs=3e-4), key  # of another processor


@pytest.mark.skipif("MSALAB_RESULTS" not in os.environ, reason="no demo: ./msalab test makes it")
def test_all_rows_are_those_of_the_demo():
    rows = results.open(ROOT / os.environ["MSALAB_RESULTS"], "msa-analyze")["selectors"].records()
    found = {(row["layer"], row["selector"]): [row[name] for name in COLUMNS] for row in rows}
    assert found.keys() == GUIDE.keys()
    for key, numbers in found.items():
        assert numbers == pytest.approx(GUIDE[key], abs=2e-3), key  # a fit on another processor
