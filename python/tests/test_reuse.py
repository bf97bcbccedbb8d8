# SPDX-License-Identifier: MIT
import json

import make_cost
import numpy as np
import pytest

from msalab.plots import ResultsError, loss_by_distance, read_sharing, sharing_patterns
from msalab.plots.__main__ import main


def write(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_every_pair_and_the_means_are_drawn_and_written(tmp_path):
    figure, table = loss_by_distance(read_sharing(write(tmp_path, make_cost.sharing())))
    above, below = figure.axes
    points = {line.get_gid().removeprefix("hover:"): (line.get_xdata()[0], line.get_ydata()[0])
              for line in above.lines if (line.get_gid() or "").startswith("hover:")}
    assert points == {"layer 1 with ids of layer 0": (1, 0.02),
                      "layer 2 with ids of layer 0": (2, 0.4),
                      "layer 2 with ids of layer 1": (1, 0.3)}
    assert set(points.values()) < set(zip(table["distance"], table["mass_lost"]))
    means = table.where(of="mean")
    np.testing.assert_allclose(means["mass_lost"], [0, 0.16, 0.4])
    mean, = [line for line in above.lines if list(line.get_ydata()) == [0, 0.16, 0.4]]
    assert list(mean.get_xdata()) == [0, 1, 2]
    random, = table.where(of="random")["mass_lost"]
    assert random == pytest.approx(0.9 - 0.25)
    flat = {line.get_ydata()[0]: line.get_linestyle() for line in above.lines
            if len(line.get_xdata()) == 2}
    assert flat == {random: "--", 0.05: ":"}
    drawn = [list(bars.lines[0].get_ydata()) for bars in below.containers]
    assert drawn == [list(means[name]) for name in ("own_recall", "block_recall", "output_error")]


def test_the_rings_are_the_patterns_within_the_target(tmp_path):
    sharing = read_sharing(write(tmp_path, make_cost.sharing()))
    assert sharing.where == "prefill of 131072 tokens on h100"
    figure, table = sharing_patterns(sharing)
    axes, = figure.axes
    rings = [(line.get_label(), line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines
             if line.get_markerfacecolor() == "none"]
    assert rings == [("target in every layer", 0.75, 0.01), ("target in the mean", 0.75, 0.01)]
    marks = [line.get_label() for line in axes.lines if line.get_label() == "every 2"]
    assert marks == ["every 2"]
    front, = axes.containers
    assert list(front.lines[0].get_ydata()) == [0.14, 0.01, 0]
    assert list(table["pattern"]) == ["own ids", "every 2", "best of 1", "best of 2", "best of 3",
                                      "target in every layer", "target in the mean"]
    assert list(table["computing_layers"])[3] == "0 2"
    np.testing.assert_allclose(table["saved_seconds"], 1 - table["share_of_own"])


def test_both_panels_have_names_of_their_axes(tmp_path):
    figure, _ = loss_by_distance(read_sharing(write(tmp_path, make_cost.sharing())))
    assert all(axes.get_ylabel() for axes in figure.axes)


def test_no_ring_where_no_pattern_reaches_the_target(tmp_path):
    figure, _ = sharing_patterns(read_sharing(write(tmp_path, make_cost.sharing(reached=False))))
    axes, = figure.axes
    assert axes.get_title(loc="left") == "lose 0.05: no pattern"
    assert not [line for line in axes.lines if line.get_markerfacecolor() == "none"]


def test_plot_of_the_summary_alone(tmp_path, capsys):
    path = write(tmp_path, make_cost.sharing())
    assert main([path, "--out", str(tmp_path / "out")]) == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        f"reuse_{name}.{ending}" for name in ("distance", "patterns")
        for ending in ("csv", "png", "svg")]


def test_other_files_are_refused(tmp_path):
    path = write(tmp_path, make_cost.sharing() | {"program": "msa-advise"})
    with pytest.raises(ResultsError, match="program is msa-advise, must be msa-reuse"):
        read_sharing(path)
    empty = make_cost.sharing()
    empty["tables"]["pairs"]["rows"] = []
    with pytest.raises(ResultsError, match="has no pairs of layers"):
        read_sharing(write(tmp_path, empty))


def test_a_damaged_summary_is_named(tmp_path, capsys):
    damaged = make_cost.sharing()
    del damaged["tables"]["patterns"]["rows"][0]["seconds"]
    path = write(tmp_path, damaged)
    assert main([path, "--out", str(tmp_path / "out")]) == 2
    assert f"{path}: is damaged" in capsys.readouterr().err
