# SPDX-License-Identifier: MIT
import json

import make_cost
import numpy as np
import pytest
from matplotlib.lines import Line2D

from msalab.plots import ResultsError, cache_curves, read_cache
from msalab.plots.__main__ import main
from msalab.plots.gallery import cache_section


def write(tmp_path, content):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return str(path)


def lines_of(axes, **known):
    return [line for line in axes.lines
            if all(getattr(line, f"get_{name}")() == value for name, value in known.items())]


def test_the_picture_holds_every_size_and_rings_the_recommended_one(tmp_path):
    report = read_cache(write(tmp_path, make_cost.cache()))
    figure, table = cache_curves(report)
    assert table["selector"].tolist() == ["oracle"] * 3 + ["quest"] * 4
    assert table["blocks"].tolist() == [4, 8, 16, 4, 6, 8, 16]
    assert table["recommended"].tolist() == [False] * 4 + [True] + [False] * 2
    hits, link, _ = figure.axes
    line, = lines_of(hits, label="quest")
    np.testing.assert_allclose(line.get_ydata(), [90, 94, 96, 100])
    shade = hits.collections[1].get_paths()[0].vertices  # of quest: from LRU to Belady's
    np.testing.assert_allclose(sorted(set(shade[:, 1])), [90, 95, 96, 98, 100])
    ring, = [line for line in lines_of(link, markersize=12) if len(line.get_xdata())]
    np.testing.assert_allclose(ring.get_xydata(), [[6, 32768 * 0.06 / 1e6]])
    limit, = [line for line in lines_of(link, linestyle=":")]
    assert set(limit.get_ydata()) == {0.002}


def test_layers_say_what_they_reuse_and_what_is_foreseen(tmp_path):
    report = read_cache(write(tmp_path, make_cost.cache()))
    layers = report.layers
    assert layers["layer"].tolist() == [3, 3, 4, 4]
    np.testing.assert_allclose(layers["cold_share"], 32 / 512)
    assert layers["median_distance"].tolist() == [1] * 4  # 250 of 476 reuses are not further away
    np.testing.assert_allclose(layers["previous_step_share"], [0.6, 0.8] * 2)
    np.testing.assert_allclose(layers["previous_layer_share"], [np.nan, np.nan, 0.3, 0.4])
    guesses = cache_curves(report)[0].axes[2]
    assert [line.get_ydata().tolist() for line in guesses.lines[1::2]] == [[60, 60], [80, 80]]


def test_every_guess_has_a_mark_that_can_be_hollow(tmp_path):
    figure, _ = cache_curves(read_cache(write(tmp_path, make_cost.cache())))
    guesses = figure.axes[2]
    assert {line.get_marker() for line in guesses.lines} <= set(Line2D.filled_markers)
    # The legend, which is of the first panel, has the same marks.
    assert [line.get_marker() for line in lines_of(figure.axes[0], label="oracle")] == [
        line.get_marker() for line in guesses.lines[:1]]


def test_rings_are_whole(tmp_path):
    content = make_cost.cache(rates={"oracle": (0.7, 0.8, 0.9), "quest": (0.9, 0.9, 0.9)})
    for row in content["tables"]["caches"]["rows"]:
        if row["selector"] == "quest":
            row["bytes_per_token"] = 100.0
    figure, _ = cache_curves(read_cache(write(tmp_path, content)))
    figure.draw_without_rendering()
    link = figure.axes[1]
    ring, = [line for line in lines_of(link, markersize=12) if len(line.get_xdata())]
    radius = 0.5 * (12 + 1.6) * figure.dpi / 72
    (x, y), box = link.transData.transform(ring.get_xydata()[0]), link.get_window_extent()
    assert box.x0 < x - radius and x + radius < box.x1
    assert box.y0 < y - radius and y + radius < box.y1


def test_one_layer_has_none_before_it_and_so_no_picture_of_guesses(tmp_path):
    report = read_cache(write(tmp_path, make_cost.cache(layers=1)))
    assert len(cache_curves(report)[0].axes) == 2
    assert "fetched ahead" not in " ".join(cache_section(report).reading)
    several = read_cache(write(tmp_path, make_cost.cache()))
    assert "fetched ahead" in " ".join(cache_section(several).reading)


def test_no_ring_where_no_cache_is_enough(tmp_path):
    report = read_cache(write(tmp_path, make_cost.cache(reached=False)))
    figure, table = cache_curves(report)
    assert not table["recommended"].any()
    assert not any(len(line.get_xdata()) for line in lines_of(figure.axes[1], markersize=12))


def test_nothing_over_the_link_is_left_out_of_its_logarithmic_axis(tmp_path):
    figure, _ = cache_curves(read_cache(write(tmp_path, make_cost.cache())))
    quest = figure.axes[1].lines[2]
    assert np.isnan(quest.get_ydata()).tolist() == [False, False, False, True]


def test_random_does_not_stretch_the_axis(tmp_path):
    content = make_cost.cache(rates={"oracle": (0.7, 0.8, 0.9), "random": (0.1, 0.1, 0.1)})
    hits = cache_curves(read_cache(write(tmp_path, content)))[0].axes[0]
    assert 60 < hits.get_ylim()[0] < 65  # the oracle's LFU has 65 %


def test_the_section_says_what_is_counted(tmp_path):
    content = make_cost.cache()
    reading = " ".join(cache_section(read_cache(write(tmp_path, content))).reading)
    assert "2 GB/s, 1 µs per token" in reading and "in vain" not in reading
    report = read_cache(write(tmp_path, make_cost.cache(prefetch="previous-layer")))
    assert "in vain is counted" in " ".join(cache_section(report).reading)
    assert "with prefetch" in " ".join(cache_curves(report)[0].axes[1].get_title(loc="left").split())


def test_plot_of_the_summary_alone(tmp_path):
    path = write(tmp_path, make_cost.cache())
    assert main([path, "--out", str(tmp_path / "out")]) == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "cache.csv", "cache.png", "cache.svg"]


def test_other_files_are_refused(tmp_path, capsys):
    with pytest.raises(ResultsError, match="program is msa-compare, must be msa-cache"):
        read_cache(write(tmp_path, make_cost.cache() | {"program": "msa-compare"}))
    none, damaged = make_cost.cache(), make_cost.cache()
    none["tables"]["selectors"]["rows"] = []
    with pytest.raises(ResultsError, match="has no selectors"):
        read_cache(write(tmp_path, none))
    del damaged["tables"]["measured"]["rows"][0]["context_blocks"]
    path = write(tmp_path, damaged)
    assert main([path, "--out", str(tmp_path / "out")]) == 2
    assert f"{path}: is damaged" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
