# SPDX-License-Identifier: MIT
"""Two runs beside each other: what may be compared, and the differences and their intervals."""

import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from make_explore import make_explore
from make_results import Case, make_results

from msalab.__main__ import main
from msalab.explore import Activations, make_microscope
from msalab.plots import Results, ResultsError
from msalab.plots.difference import differences
from msalab.explore.two_runs import require_comparable

CASE = Case(layers=(3,))


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Two runs on the same activations, of which the second selects the local block and what lies before it."""
    folder = tmp_path_factory.mktemp("two")
    a, activations = make_explore(folder, CASE)
    b = folder / "b/results.h5"
    b.parent.mkdir()
    shutil.copy(a, b)
    with h5py.File(b, "r+") as file:
        position, ids = file["queries/3/position"][:], file["select/random/3/ids"]
        newest = position[:, None] // CASE.block_size + np.arange(-CASE.top_k + 1, 1)
        ids[:] = np.where(newest >= 0, newest, -1)[:, None]
        shifted = np.sort(np.where(newest >= 0, newest, np.iinfo(np.int32).max), 1)
        ids[:] = np.where(shifted < np.iinfo(np.int32).max, shifted, -1)[:, None]
    return a, b, activations


def by_hand(path, activations, metric):
    """[counted queries] of the selector random."""
    with Results(path) as results, Activations([activations], results) as of:
        from msalab.explore.activations import attention

        position = results.queries(3).position
        mass = attention(*of.layer(3, 0), position, CASE.block_size).mass
        ids, best = results.ids("random", 3)[:], results.ids("oracle", 3)[:]
    found = []
    for query in np.flatnonzero(position // CASE.block_size >= CASE.top_k):
        groups = []
        for group in range(CASE.kv_heads):
            chosen, wanted = ({int(n) for n in of[query, group] if n >= 0} for of in (ids, best))
            groups.append(mass[query, group][sorted(chosen)].sum() if metric == "mass_kept" else
                          len(chosen & wanted) / len(wanted))
        found.append(np.mean(groups))
    return np.array(found)


def test_differences_are_paired(files):
    a_path, b_path, activations = files
    with Results(a_path) as a, Results(b_path) as b, Activations([activations], a) as of:
        table = differences(a, b, [3], of)
    for metric in ("mass_kept", "block_recall"):
        row = table.where(selector="random", metric=metric).records()[0]
        one, two = (by_hand(path, activations, metric) for path in (a_path, b_path))
        assert row["a"] == pytest.approx(one.mean()) and row["b"] == pytest.approx(two.mean())
        assert row["difference"] == pytest.approx(np.mean(two - one)) and row["interval"] == "paired"
        assert row["rows_counted"] == len(one)
        same = table.where(selector="window", metric=metric).records()[0]
        assert same["difference"] == 0
    assert "block_recall" not in table.where(selector="oracle")["metric"]


def test_intervals_are_of_blocks_of_queries(files, tmp_path):
    path = tmp_path / "long.h5"
    make_results(path, replace(CASE, lengths=(1200,), stride=3, layers=(0,)))
    other = shutil.copy(path, tmp_path / "other.h5")
    with h5py.File(other, "r+") as file:
        file["select/random/0/ids"][:] = file["select/window/0/ids"][:]
    with Results(path) as a, Results(other) as b:
        row = differences(a, b, [0]).where(selector="random", metric="block_recall").records()[0]
        kept = differences(a, b, [0]).where(selector="random", metric="mass_kept").records()[0]
    assert row["difference_low"] < row["difference"] < row["difference_high"] and row["interval"] == "paired"
    assert kept["interval"] == "apart" and np.isnan(kept["difference_low"]), "no summary.json lies beside"


@pytest.mark.parametrize("change, said", [
    ({"block_size": 32}, "layer 3 has block size 32"),
    ({"lengths": (320,)}, "layer 3 has tokens 320"),
    ({"stride": 2}, "layer 3 has other queries, 192 from token 0 to 382"),
    ({"layers": (6,)}, r"has layers \[6\]"),
    ({"seed": 5}, "layer 3 is of other activations")])
def test_runs_that_cannot_be_compared_are_refused_by_name(files, tmp_path, change, said):
    other = tmp_path / "other.h5"
    make_results(other, replace(CASE, **change))
    with h5py.File(other, "r+") as file:
        file["run"].attrs["inputs"] = '{"other.h5": "1"}'
    with Results(files[0]) as a, Results(other) as b:
        with pytest.raises(ResultsError, match=f"{other}: {said}.*{files[0]}.*only runs of one text"):
            require_comparable(a, b)


def test_the_command_refuses_another_text(files, tmp_path, capsys):
    other = shutil.copy(files[0], tmp_path / "other.h5")
    for path, model in ((files[0], "one"), (other, "two")):
        with h5py.File(path, "r+") as file:
            file["run"].attrs["captures"] = f'[{{"input": "x", "model": "{model}", "tokens": 384, "sequences": 1}}]'
    try:
        for command in (["explore", str(files[0]), str(other), "--out", str(tmp_path / "x.html")],
                        ["plot", str(files[0]), str(other), "--out", str(tmp_path / "x")]):
            assert main(command) == 2
            assert f"{other}: is of two with 384 tokens, {files[0]} one with 384 tokens" in capsys.readouterr().err
        assert not (tmp_path / "x.html").exists() and not (tmp_path / "x").exists()
    finally:
        with h5py.File(files[0], "r+") as file:
            del file["run"].attrs["captures"]


def test_the_page_has_the_selectors_of_both(files):
    with Results(files[0]) as a, Results(files[1]) as b:
        about = make_microscope(a, beside=b).about
    assert about["selectors"] == ["oracle", "random", "window", "random (B)", "window (B)"]  # the oracles are one
    assert about["beside"]["b"] == str(files[1])


def test_the_report_begins_with_the_differences(files, tmp_path, capsys):
    assert main(["plot", str(files[0]), str(files[1]), "--activations", str(files[2]), "--only", "differences", "--out",
                 str(tmp_path)]) == 0
    made = {path.name for path in tmp_path.glob("*.csv")}
    assert made == {"difference_mass_kept.csv", "difference_block_recall.csv",
                    *(f"difference_{name}_layer3.csv" for name in ("oracle", "random", "window"))}
