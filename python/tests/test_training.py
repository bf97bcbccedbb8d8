# SPDX-License-Identifier: MIT
"""The pictures of msa-fit-indexer's results, and their place in the report."""

import json

import numpy as np
import pytest
from make_fit import SPLIT, STEPS, WARMUP, make_fit
from make_report import estimate, report

from msalab.plots import FitResults, ResultsError, training_curves
from msalab.plots.__main__ import main
from msalab.plots.fit import HELD_OUT
from msalab.plots.gallery import training_section


@pytest.fixture
def fit_path(tmp_path):
    return make_fit(tmp_path / "fit.h5")


def lines_of(figure):
    return {line.get_label(): line.get_xydata() for axes in figure.axes for line in axes.lines}


def test_curves_show_the_numbers_of_the_file(fit_path):
    names = ("kl", "kl_selected", "block_recall", "score_recall", "mass_kept")
    (fit_path.parent / "summary.json").write_text(json.dumps(report("msa-fit-indexer", {"evaluations": (2, [
        {"layer": 3, "step": step, "is_kept": step == 10, **{name: estimate(0.15, 0.05) for name in names}}
        for step in (0, 10, 20)])})))
    with FitResults(fit_path) as fit:
        curves = fit.curves(3)
        figure, table = training_curves(fit, 3)
    lines = lines_of(figure)
    warm, selected = lines["training, all keys"], lines["training, selected"]
    np.testing.assert_array_equal(np.concatenate([warm, selected])[:, 1], curves.train_kl)
    np.testing.assert_array_equal(np.concatenate([warm, selected])[:, 0], range(STEPS))
    assert len(warm) == WARMUP
    for label, name in (("held out, all keys", "kl"), ("held out, selected", "kl_selected"),
                        ("block recall", "block_recall"),
                        ("score recall", "score_recall"), ("mass kept", "mass_kept"),
                        ("oracle mass", "oracle_mass")):
        np.testing.assert_array_equal(lines[label][:, 0], curves.step)
        np.testing.assert_array_equal(lines[label][:, 1], curves.held_out[name])
    np.testing.assert_array_equal(table.where(curve="train_kl")["value"], curves.train_kl)
    bars = [bar for axes in figure.axes for bar in axes.collections]
    assert len(bars) == 5 and all(bar.get_segments()[0][0][0] == 10 for bar in bars)  # the best one's
    np.testing.assert_allclose([bar.get_segments()[0][:, 1] for bar in bars], [(0.1, 0.2)] * 5)
    for name in HELD_OUT:
        of_name = table.where(curve=f"held_out_{name}")
        np.testing.assert_array_equal(of_name["step"], curves.step)
        np.testing.assert_array_equal(of_name["value"], curves.held_out[name])


@pytest.mark.parametrize("warmup, marks, missing", [
    (WARMUP, 2, None), (0, 0, "training, all keys"), (STEPS, 0, "training, selected")])
def test_the_switch_is_marked_where_there_is_one(tmp_path, warmup, marks, missing):
    with FitResults(make_fit(tmp_path / "fit.h5", warmup=warmup)) as fit:
        figure, _ = training_curves(fit, 3)
    vertical = [line for axes in figure.axes for line in axes.lines
                if len(set(line.get_xdata())) == 1]
    assert len(vertical) == marks
    assert all(line.get_xdata()[0] == warmup for line in vertical)
    assert {label for label in lines_of(figure) if label.startswith("training")} == {
        "training, all keys", "training, selected"} - {missing}


def test_report_shows_the_training_of_the_layers_that_were_fitted(full_report):
    page = (full_report / "report.html").read_text(encoding="utf-8")
    assert page.index("larger budget") < page.index("How did the Index Branch learn?")  # the paper's first
    assert SPLIT in page
    assert {path.name for path in full_report.glob("training*")} == {
        "training_layer3.png", "training_layer3.svg", "training_layer3.csv"}


@pytest.mark.parametrize("start, said", [("normal", False), ("from-qk", True), ("pca", True)])
def test_only_a_closed_form_start_is_called_one(tmp_path, start, said):
    with FitResults(make_fit(tmp_path / "fit.h5", start=start)) as fit:
        assert ("closed-form start" in " ".join(training_section(fit).reading)) == said


def test_refuses_results_of_another_program(results_path, tmp_path, capsys):
    with pytest.raises(ResultsError, match="/fit is empty"):
        FitResults(results_path)
    assert main([str(results_path), "--fit", str(results_path), "--out", str(tmp_path)]) == 2
    assert "/fit is empty" in capsys.readouterr().err
