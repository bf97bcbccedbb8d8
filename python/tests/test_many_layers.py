# SPDX-License-Identifier: MIT
"""Pictures of 30 layers and of eleven selectors: what a reader must see there."""

import csv
import json
import re
from pathlib import Path

import make_results as maker
import numpy as np
import pytest
from make_cost import advice, cache, comparison
from make_evaluation import answer, rows_of
from make_results import Case, make_results
from matplotlib.lines import Line2D

from msalab.plots import Results, entropy_per_layer, lorenz_curve, overlap_map, sink_bars, style
from msalab.plots.__main__ import main
from msalab.plots import gallery, report
from msalab.plots.advice import cost_front, read_advice
from msalab.plots.by_layer import mass_by_layer, sink_by_layer
from msalab.plots.cache import cache_curves, read_cache
from msalab.plots.comparison import mass_kept_versus_budget, mass_kept_versus_cost, read_comparison
from msalab.plots.evaluation import loss_by_budget
from msalab.plots.needle import depth_recall
from msalab.plots.sink import largest

ELEVEN = ("index", "mean-key", "window", "random", "quest", "sparq", "infllm-v2", "nsa", "keydiff",
          "oracle-logit", "oracle")


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """30 layers and eleven selectors."""
    path = tmp_path_factory.mktemp("many") / "results.h5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maker, "RULES", dict.fromkeys(ELEVEN, "a rule"))
        make_results(path, Case(lengths=(96,), layers=tuple(range(30)), selectors=ELEVEN, stride=9,
                                query_heads=4, kv_heads=2, top_k=2))
    with Results(path) as results:
        yield results


def write(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def lines_of(axes):
    return {line.get_label(): line for line in axes.lines}


def test_an_axis_names_as_many_layers_as_have_room(many):
    for figure, _ in (mass_by_layer(many), entropy_per_layer(many), overlap_map(many, "window"),
                      sink_by_layer(many, "window")):
        labels = [tick for axes in figure.axes for tick in axes.get_xticklabels()
                  if axes.get_xlabel().startswith("layer")]
        assert 6 <= len(labels) <= style.MOST_LAYERS


def test_markers_of_a_layer_stay_about_it(many):
    figure, _ = entropy_per_layer(many)
    shifts = [lines_of(figure.axes[0])[name].get_xdata() - np.arange(30) for name in ELEVEN]
    assert np.abs(shifts).max() <= 0.2
    np.testing.assert_allclose(np.sum(shifts, axis=0), 0, atol=1e-9)
    assert len({lines_of(figure.axes[0])[name].get_xdata()[0] for name in ELEVEN}) == len(ELEVEN)


def test_one_layer_has_its_intervals(many, monkeypatch):
    monkeypatch.setattr(Results, "interval", lambda *_: (0.25, 0.75))
    figure, _ = mass_by_layer(many, [17])
    bars = [bar.get_segments()[0][:, 1].tolist() for bar in figure.axes[0].collections]
    assert bars == [[0.25, 0.75]] * len(ELEVEN)


def test_mass_and_sink_by_layer_are_those_of_the_file(many):
    figure, table = mass_by_layer(many)
    assert set(lines_of(figure.axes[0])) == set(ELEVEN)
    row = table.where(layer=17, selector="quest")
    assert row["mass_kept"].tolist() == [many.average("quest", 17, "mass_kept")]
    figure, table = sink_by_layer(many, "quest")
    dense, sparse = (axes.images[0] for axes in figure.axes[:2])
    assert dense.get_clim() == sparse.get_clim() == (0, largest(many))
    for image, of, name in ((dense, "dense", "sink_mass"), (sparse, "quest", "sink_mass_sparse")):
        np.testing.assert_array_equal(image.get_array()[:, 17], many.metric(of, 17, name))
    assert len(table) == 30 * 4


def test_sink_bars_have_one_scale(many):
    limits = {sink_bars(many, selector, [layer])[0].axes[0].get_ylim()
              for selector in ("window", "oracle") for layer in (0, 29)}
    assert len(limits) == 1 and limits.pop()[1] >= 0.05


def test_lines_that_lie_on_each_other_have_markers(many):
    figure, _ = lorenz_curve(many, 0)
    looks = {(line.get_color(), line.get_marker()) for name, line in lines_of(figure.axes[0]).items()
             if name.partition(",")[0] in ELEVEN}
    assert len(looks) == len(ELEVEN) and figure.axes[0].get_legend() is None  # it lies outside
    # Of one budget, a line is a point.
    rows = rows_of()
    rows["configs"] = [config for config in rows["configs"] if config.get("token_budget") != 128]
    assert lines_of(loss_by_budget(answer(rows))[0].axes[0])["oracle"].get_marker() == "x"


def test_a_report_of_many_layers_shows_six_by_themselves(many, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(report, "SECTIONS", [section for section in gallery.SECTIONS
                                             if section.key in ("layers", "mass-kept")])
    assert main([str(many.path), "--out", str(tmp_path)]) == 0
    assert "pictures of layers 0, " in capsys.readouterr().err
    found = {int(path.stem.rpartition("layer")[2]) for path in tmp_path.glob("mass_kept_layer*.svg")}
    assert len(found) == 6 and {0, 29} < found
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "By themselves this page shows layers 0, " in page
    with open(tmp_path / "mass_by_layer.csv", encoding="utf-8") as file:
        assert {int(row["layer"]) for row in csv.DictReader(file)} == set(range(30))


def test_far_blocks_are_neither_the_first_nor_the_newest_two(tmp_path):
    path = tmp_path / "r.h5"
    make_results(path, Case(lengths=(160,), layers=(0,), kv_heads=1, query_heads=1, top_k=4))
    with Results(path) as results:
        _, wanted = depth_recall(results, "window", 0)
        ids, own = results.ids("oracle", 0)[:], results.queries(0).position // 16
        far = (ids > 0) & (ids < own[:, None, None] - 1) & (own[:, None, None] >= 4)
        assert wanted.sum() == far.sum() > 0


def test_the_best_selector_and_the_front_are_in_colour(tmp_path):
    made = comparison()
    rows = made["tables"]["selectors"]["rows"]
    for row in list(rows):
        if row["selector"] == "quest":
            rows.append(row | {"selector": "zeta", "mass_kept": row["mass_kept"] + 0.05})
            rows.append(row | {"selector": "alpha", "mass_kept": 0.5, "index_flops": 1.0})
            rows.append(row | {"selector": "eta", "mass_kept": 0.45, "index_flops": 9e9})
    table = read_comparison(write(tmp_path / "c.json", made))
    for (figure, _), named in ((mass_kept_versus_budget(table, 3), {"zeta"}),
                               (mass_kept_versus_cost(table, 3), {"zeta", "alpha"})):
        labels = {text.get_text() for text in figure.axes[0].texts}
        assert labels & {"zeta", "alpha", "eta"} == named


def test_a_forced_first_block_is_a_line_of_its_own(tmp_path):
    made = comparison()
    rows = made["tables"]["selectors"]["rows"]
    rows += [row | {"setting": f"{row['setting']},first=1", "mass_kept": 0.95}
                     for row in rows if row["selector"] == "quest"]
    figure, _ = mass_kept_versus_budget(read_comparison(write(tmp_path / "c.json", made)), 3)
    lines = lines_of(figure.axes[0])
    assert lines["quest:first=1"].get_color() == lines["quest"].get_color()
    assert lines["quest:first=1"].get_linestyle() != lines["quest"].get_linestyle()
    for name in ("quest", "quest:first=1"):
        assert len(lines[name].get_xdata()) == 2


def test_what_is_named_has_a_colour_of_its_own(tmp_path):
    made = comparison()
    rows = made["tables"]["selectors"]["rows"]
    row = rows[-1]
    for place, name in enumerate(("mean-key", "window", "h2o", "infllm-v2", "keydiff", "nsa",
                                  "quest-pages", "oracle-logit")):
        for budget in (128, 256):
            rows.append(row | {"selector": name, "token_budget": budget,
                                       "mass_kept": 0.8 if name == "quest-pages" else 0.4 + place / 99})
    figure, _ = mass_kept_versus_budget(read_comparison(write(tmp_path / "c.json", made)), 3)
    colours = {text.get_text(): text.get_color() for text in figure.axes[0].texts
               if text.get_text() in ("oracle", "mean-key", "window", "random", "quest", "quest-pages")}
    assert "quest-pages" in colours and len(set(colours.values())) == len(colours)


def test_the_ring_is_the_plan(tmp_path):
    made = read_advice(write(tmp_path / "a.json", advice()))
    figure, _ = cost_front(made)
    ring = lines_of(figure.axes[0])["recommended"]
    assert (ring.get_xdata().tolist(), ring.get_ydata().tolist()) == ([0.58], [made.plan[1]])
    assert "1 of 2 layers dense" in " ".join(figure.axes[0].get_title(loc="left").split())


def test_every_selector_of_the_programs_has_a_look_of_its_own():
    page = (Path(__file__).parents[2] / "experiments/CLI.md").read_text(encoding="utf-8")
    row = max(re.findall(r"^\| `--selectors NAME,.*", page, re.MULTILINE), key=len)
    names = re.search(r"some of: ([\w, -]+);", row)[1].split(", ")
    assert {"oracle", "index", "quest", "streaming-llm", "qsa-tokens"} <= set(names)
    looks = [tuple(str(style.selector_style(name)[part]) for part in ("color", "marker", "linestyle"))
             for name in [*names, "own"]]
    assert len(set(looks)) == len(looks)


def test_options_change_fill_and_line_alone():
    bases = ["oracle", *style._KNOWN, *style._LESS_KNOWN]
    options = [f"compress={2**power}" for power in range(1, 13)] + ["page=8", "piece=16", "rank=32"]
    looks = {}
    for base in bases:
        plain = style.selector_style(base)
        looks[base] = str(sorted(plain.items()))
        for option in options:
            look = style.selector_style(f"{base}:{option}")
            assert (look["color"], look["marker"]) == (plain["color"], plain["marker"])
            Line2D([], [], **look)  # takes it
            if option.startswith("compress"):
                looks[f"{base}:{option}"] = str(sorted(look.items()))
    assert len(set(looks.values())) == len(looks)
    for name, other in (("hisa:candidates=4096", "h2o"), ("hisa:candidates=4096", "sparq:rank=32"),
                        ("h2o", "sparq:rank=32"), ("qsa:compress=16", "hisa"),
                        ("dsa:compress=16", "quest-pages:page=8"), ("nsa:piece=16", "minference-bs")):
        one, two = style.selector_style(name), style.selector_style(other)
        assert (one["color"], one["marker"]) != (two["color"], two["marker"]), (name, other)


def test_a_selector_looks_the_same_whatever_stands_beside_it(tmp_path):
    """The fronts of FLOPs and of bytes name other selectors."""
    made = comparison()
    rows = made["tables"]["selectors"]["rows"]
    row = rows[-1]
    for name, kept, flops, moved in (("hisa", 0.7, 0.01, 9), ("sparq", 0.7, 9, 0.01),
                                     ("nsa", 0.72, 0.02, 0.02)):
        for budget in (128, 256):
            rows.append(row | {"selector": name, "token_budget": budget, "mass_kept": kept,
                                       "attention_flops": flops * row["attention_flops"],
                                       "attention_bytes": moved * row["attention_bytes"],
                                       "index_flops": 0, "index_bytes": 0})
    table = read_comparison(write(tmp_path / "c.json", made))
    looks = []
    for cost in ("flops", "bytes"):
        axes = mass_kept_versus_cost(table, 3, cost)[0].axes[0]
        looks.append({name: (line.get_color(), line.get_marker(), line.get_linestyle())
                      for name, line in lines_of(axes).items() if not name.startswith(("_", "others"))})
    shared = set(looks[0]) & set(looks[1])
    assert "nsa" in shared and set(looks[0]) - shared == {"hisa"} and set(looks[1]) - shared == {"sparq"}
    assert all(looks[0][name] == looks[1][name] for name in shared)


def test_rings_have_the_colour_of_their_selector(tmp_path):
    report = read_cache(write(tmp_path / "c.json", cache()))
    figure, _ = cache_curves(report)
    rings = [line for line in figure.axes[1].lines if line.get_markersize() == 12 and len(line.get_xdata())]
    assert [line.get_markeredgecolor() for line in rings] == [
        style.selector_style("quest")["color"]]
