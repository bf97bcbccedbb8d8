# SPDX-License-Identifier: MIT
"""The tables in results.h5 are those of summary.json, cell by cell, for every program that writes both."""

import os
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest

from msalab import results

BIN = Path(os.environ.get("MSALAB_BIN", Path(__file__).parents[2] / "build/release/bin"))


def call(program, *words, codes=(0,)):
    if not (BIN / program).exists():
        pytest.skip(f"no {program} in {BIN}: ./msalab build")
    done = subprocess.run([BIN / program, *map(str, words)], capture_output=True, text=True)
    assert done.returncode in codes, done.stderr


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    out = tmp_path_factory.mktemp("tables")
    call("msa-synth", "--tokens", 2048, "--model-layers", 2, "--out", out / "synth.h5")
    return out / "synth.h5"


@pytest.fixture(scope="module")
def analysed(captured):
    out = captured.parent / "analyze"
    call("msa-analyze", captured, "--out", out, "--block-size", 32, "--top-k", 8, "--selectors", "index,mean-key")
    return out


def same(folder):
    """The answers by the two files."""
    by_json, by_hdf5 = results.open(folder / "summary.json"), results.open(folder / "results.h5")
    for name in ("program", "title", "verdict", "notes", "run", "columns"):
        assert getattr(by_hdf5, name) == getattr(by_json, name), name
    assert list(by_hdf5.tables) == list(by_json.tables) and by_json.tables
    for name, table in by_json.tables.items():
        other = by_hdf5[name]
        assert (other.about, other.key, list(other.columns), other.described) == (
            table.about, table.key, list(table.columns), table.described), name
        for column, values in table.columns.items():
            assert other[column].dtype.kind == values.dtype.kind, (name, column)
            np.testing.assert_array_equal(other[column], values, f"{name} {column}")
    return by_hdf5


def test_analyze_and_cache(analysed):
    assert len(same(analysed)["selectors"]) == 4
    call("msa-cache", analysed / "results.h5", "--out", analysed.parent / "cache")
    same(analysed.parent / "cache")


SIZES = ("--block-size", 32, "--top-k", 8, "--sample-queries", 128)


@pytest.mark.parametrize("program, words", [
    ("msa-compare", ("--selectors", "index,window", "--budgets", "128,256", "--sample-queries", 128)),
    ("msa-reuse", SIZES),
    ("msa-precision", SIZES),
    ("msa-advise", ("--sample-queries", 128, "--keep", 0.5))])
def test_programs(captured, program, words):
    out = captured.parent / program
    call(program, captured, "--out", out, *words, codes=(0, 2))  # 2: nothing reaches the target
    same(out)


def test_fit(captured):
    if not (sample := Path(__file__).parents[2] / "data/sample.h5").is_file():
        pytest.skip("no data/sample.h5")
    out = captured.parent / "fit"
    call("msa-fit-indexer", sample, "--out", out, "--layers", 20, "--block-size", 32, "--top-k", 8,
         "--steps", 4)
    same(out)


def test_results_without_tables_have_those_of_the_summary_beside_them(analysed, tmp_path):
    for name in ("results.h5", "summary.json"):
        shutil.copy(analysed / name, tmp_path / name)
    with h5py.File(tmp_path / "results.h5", "a") as file:
        del file["tables"]
    assert results.open(tmp_path / "results.h5").path == tmp_path / "summary.json"


@pytest.mark.parametrize("damage, words", [
    (lambda file: file["tables"].__delitem__("selectors"), "selectors"),
    (lambda file: file["tables"].attrs.__setitem__("format", "msa-other"), 'format is "msa-other", must be'),
    (lambda file: file["tables/selectors"].__delitem__("layer"), "layer"),
    (lambda file: file["tables/selectors/mass_kept"].attrs.__delitem__("type"), "type")])
def test_damaged_tables_are_refused(analysed, tmp_path, damage, words):
    path = tmp_path / "results.h5"
    shutil.copy(analysed / "results.h5", path)
    with h5py.File(path, "a") as file:
        damage(file)
    with pytest.raises(results.ResultsError, match=words) as error:
        results.open(path)
    assert str(path) in str(error.value)
