# SPDX-License-Identifier: MIT
import json

import make_cost
import numpy as np
import pytest

from msalab.plots import ResultsError, loss_by_bits, read_precision
from msalab.plots.__main__ import main


def write(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def points(axes):
    """What is named on hover: its place and whether it is hollow."""
    return {line.get_gid().removeprefix("hover:"):
            (line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor() == "none")
            for line in axes.lines if (line.get_gid() or "").startswith("hover:")}


def rings(axes):
    return [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines
            if line.get_label() == "recommended"]


def test_every_format_is_drawn_with_its_worse_loss(tmp_path):
    figure, table = loss_by_bits(read_precision(write(tmp_path, make_cost.precision())))
    above, below = figure.axes
    # Of the recall twice as much is lost as of the mass; nothing is drawn at the floor.
    assert points(above) == {"f32": (32, 1e-5, False),
                             "int8, scale per token": (8.5, pytest.approx(0.004), False),
                             "int4, scale per token, rotated": (4.5, pytest.approx(0.2), True)}
    assert points(below) == {"f32": (32, 1e-5, False),
                             "int8, scale per token": (8.5, 0.005, False),
                             "int4, scale per token, rotated": (4.5, 0.2, True)}
    np.testing.assert_allclose(table["loss"], [0, 0.004, 0.2, 0, 0.005, 0.2], atol=1e-15)
    np.testing.assert_allclose(table["loss_high"] - table["loss_low"], 0.002)
    assert list(table["part"]) == ["index operands"] * 3 + ["KV cache"] * 3
    for axes, height in ((above, 0.01), (below, 0.01)):
        dotted, = [line for line in axes.lines if line.get_linestyle() == ":"]
        assert dotted.get_ydata()[0] == pytest.approx(height)


def test_projections_are_drawn_between_and_hollow_where_their_product_is_rounded(tmp_path):
    figure, table = loss_by_bits(read_precision(write(tmp_path, make_cost.precision(projections=True))))
    _, middle, _ = figure.axes
    assert points(middle) == {"f32": (32, 1e-5, False), "bf16": (16, pytest.approx(0.001), False),
                              "bf16, rounded product": (16, pytest.approx(0.02), True)}
    assert rings(middle) == [(16, pytest.approx(0.001))]
    assert list(table.where(part="index projections")["product"]) == ["f32", "f32", "bf16"]


def test_the_ring_is_the_recommended_format(tmp_path):
    figure, table = loss_by_bits(read_precision(write(tmp_path, make_cost.precision())))
    above, below = figure.axes
    assert rings(above) == [(8.5, pytest.approx(0.004))]
    assert rings(below) == [(8.5, 0.005)]
    assert above.get_title(loc="left") == "index operands: int8, scale per token"
    assert list(table["recommended"]) == [False, True, False] * 2


def test_the_picture_says_what_its_marks_are(tmp_path):
    figure, _ = loss_by_bits(read_precision(write(tmp_path, make_cost.precision())))
    figure.draw_without_rendering()
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[-2:] == ["target", "recommended"]
    for axes in figure.axes:  # the floor alone is marked
        assert [place for place, label in zip(axes.get_yticks(), axes.get_yticklabels())
                if "≤" in label.get_text()] == [pytest.approx(1e-5)]
    assert "0 or less" in figure.axes[-1].get_xlabel()


def test_no_ring_where_no_format_reaches_the_target(tmp_path):
    figure, _ = loss_by_bits(read_precision(write(tmp_path, make_cost.precision(reached=False))))
    for axes, part in zip(figure.axes, ("index operands", "KV cache")):
        assert not rings(axes)
        assert axes.get_title(loc="left") == f"{part}: no format"


def test_without_an_index_branch_the_cache_alone_is_drawn(tmp_path):
    precisions = read_precision(write(tmp_path, make_cost.precision(index=False)))
    figure, table = loss_by_bits(precisions)
    axes, = figure.axes
    assert axes.get_title(loc="left") == "KV cache: int8, scale per token"
    assert set(table["part"]) == {"KV cache"}
    assert np.isnan(precisions.rows["precision_recall"]).all()


def test_plot_of_the_summary_alone(tmp_path, capsys):
    path = write(tmp_path, make_cost.precision())
    assert main([path, "--out", str(tmp_path / "out")]) == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        f"precision.{ending}" for ending in ("csv", "png", "svg")]


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ResultsError, match="program is msa-compare, must be msa-precision"):
        read_precision(write(tmp_path, make_cost.precision() | {"program": "msa-compare"}))
    empty = make_cost.precision()
    empty["tables"]["cache"]["rows"] = []
    with pytest.raises(ResultsError, match="has no formats of the KV cache"):
        read_precision(write(tmp_path, empty))


def test_a_damaged_summary_is_named(tmp_path, capsys):
    damaged = make_cost.precision()
    del damaged["tables"]["cache"]["rows"][0]["worst_layer"]
    path = write(tmp_path, damaged)
    assert main([path, "--out", str(tmp_path / "out")]) == 2
    assert f"{path}: is damaged" in capsys.readouterr().err
