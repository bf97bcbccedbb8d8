# SPDX-License-Identifier: MIT
import json

import make_cost
import numpy as np
import pytest

from msalab.plots import ResultsError, cost_front, read_advice, style
from msalab.plots.__main__ import main
from msalab.plots.gallery import advice_section


def write(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def test_the_picture_holds_every_setting_and_rings_the_recommended_one(tmp_path):
    advice = read_advice(write(tmp_path, make_cost.advice()))
    assert advice.where == "prefill of 131072 tokens on h100, EXTRAPOLATED"
    figure, table = cost_front(advice)
    np.testing.assert_array_equal(table["chosen"], [False, True, False, False, False, False])
    np.testing.assert_array_equal(table["on_front"], [True, True, False, False, False, False])
    np.testing.assert_array_equal(table["is_bound"], [False] * 4 + [True] * 2)
    np.testing.assert_allclose(table["mass_kept"][:2], [0.65, 0.7])
    axes, = figure.axes
    ring, = [line for line in axes.lines if line.get_label() == "recommended"]
    # Of the plan, one of whose layers stays dense: its time is more than its setting's.
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == advice.plan[:2] == (
        0.58, table["mass_kept"][1])
    target, = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert set(target.get_ydata()) == {0.7}


def test_layers_without_a_setting_stay_dense(tmp_path):
    layers = read_advice(write(tmp_path, make_cost.advice())).layers
    assert layers["stays_dense"].tolist() == [False, True]
    assert layers["selector"].tolist() == ["mean-key", ""]
    assert np.isnan(layers["mass_kept"]).tolist() == [False, True]


def test_the_section_explains_the_arrow_where_there_is_one(tmp_path):
    advice = read_advice(write(tmp_path, make_cost.advice()))
    assert len(advice.plan[2]) == 1
    assert len([text for text in cost_front(advice)[0].axes[0].texts if text.arrow_patch]) == 1
    assert "with 1 of 2 layers dense" in " ".join(advice_section(advice).reading)
    advice = read_advice(write(tmp_path, make_cost.advice(dense="")))
    assert not cost_front(advice)[0].axes[0].texts
    assert "arrow" not in " ".join(advice_section(advice).reading)


def test_the_nearest_setting_where_none_reaches_the_target(tmp_path):
    figure, _ = cost_front(read_advice(write(tmp_path, make_cost.advice(reached=False))))
    assert "nearest to the target" in " ".join(figure.axes[0].get_title(loc="left").split())


def test_plot_of_the_summary_alone(tmp_path, capsys):
    path = write(tmp_path, make_cost.advice())
    assert main([path, "--out", str(tmp_path / "out")]) == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "advice.csv", "advice.png", "advice.svg"]


def of_none(content):
    content["tables"]["settings"]["rows"] = []


def of_another(content):
    content["tables"]["advice"]["rows"][0]["selector"] = "none"


@pytest.mark.parametrize("change, message", [
    (lambda content: content.update(format="msa-advise-summary"), 'must be "msa-report'),
    (of_none, "has no settings"), (of_another, "is damaged")])
def test_other_files_are_refused(tmp_path, change, message, capsys):
    content = make_cost.advice()
    change(content)
    path = write(tmp_path, content)
    assert main([path, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ends", [(1, 1.6), (0.3, 0.5), (0.02, 40)])
def test_an_axis_of_any_span_has_numbers(ends):
    axes = style.new_figure(2.0).subplots()
    axes.set_xscale("log")
    axes.plot(ends, (0, 1))
    style.plain_log_ticks(axes.xaxis)
    low, high = axes.get_xlim()
    shown = [place for place in axes.xaxis.get_majorticklocs() if low <= place <= high]
    assert 3 <= len(shown) <= 12


def test_options_of_one_selector_have_points_of_other_sizes(tmp_path):
    content = make_cost.advice()
    names = ["hisa:candidates=128", "hisa:candidates=256", "quest"]
    for place, setting in enumerate(content["tables"]["settings"]["rows"]):
        setting["selector"] = names[place // 2]
    content["tables"]["advice"]["rows"][0]["selector"] = names[0]
    figure, _ = cost_front(read_advice(write(tmp_path, content)))
    sizes = {line.get_label(): line.get_markersize() for line in figure.axes[0].lines}
    assert sizes[names[0]] == sizes["quest"] < sizes[names[1]]
