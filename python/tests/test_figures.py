# SPDX-License-Identifier: MIT
import csv
import json
import math
import shutil
from itertools import combinations

import h5py
import matplotlib
import numpy as np
import pytest
from make_report import report
from make_results import Case, keep_everything, make_results

from msalab.plots import (Results, ResultsError, Table, entropy_per_layer, mass_by_layer, mass_kept_curve,
                      needle_depth_map, overlap_map, queries_per_block, recall_by_k, save, selection_heat_map, sink_bars,
                      sink_by_layer, summary_table)
from msalab.plots import style
from msalab.plots.heat_map import selection_share
from msalab.plots.popularity import power_of_two_bins


def write_ids(path, ids, position, block_size, sequence=None):
    """The least that a heat map needs."""
    ids, position = np.array(ids, np.int32), np.array(position)
    sequence = 0 * position if sequence is None else sequence
    with h5py.File(path, "w") as file:
        file.attrs.update(format="msa-results", format_version=3)
        file.create_group("layers/0").attrs.update(
            query_heads=2, kv_heads=1, head_dim=16, index_dim=0, block_size=block_size, blocks=3,
            tokens=3 * block_size, softmax_scale=0.25)
        file["queries/0/token"] = file["queries/0/position"] = position
        file["queries/0/sequence"] = sequence
        file["select/index/0/ids"] = ids
    return Results(path)


def test_heat_map_of_a_case_done_by_hand(tmp_path):
    # Bk = 2, k = 2, six queries in three blocks, one group.
    ids = [[[0, -1]], [[0, -1]], [[0, 1]], [[1, -1]], [[0, 2]], [[1, 2]]]
    with write_ids(tmp_path / "r.h5", ids, range(6), 2) as results:
        data = selection_share(results, "index", 0)
        np.testing.assert_array_equal(data.share, [[[1, 0, 0], [0.5, 1, 0], [0.5, 0.5, 1]]])
        np.testing.assert_array_equal(data.queries, [2, 2, 2])
        _, table = selection_heat_map(results, "index", 0)
        assert list(table.rows()) == [
            (0, 0, 0, 1, 2, 1.0), (0, 1, 0, 1, 2, 0.5), (0, 1, 1, 1, 2, 1.0),
            (0, 2, 0, 1, 2, 0.5), (0, 2, 1, 1, 2, 0.5), (0, 2, 2, 1, 2, 1.0)]


def test_heat_map_of_sampled_queries(tmp_path):
    # Blocks 0 and 2 have one analysed query each, block 1 has none.
    with write_ids(tmp_path / "r.h5", [[[0, -1]], [[0, 2]]], [1, 4], 2) as results:
        data = selection_share(results, "index", 0)
        nan = math.nan
        np.testing.assert_array_equal(data.share, [[[1, 0, 0], [nan] * 3, [1, 0, 1]]])
        np.testing.assert_array_equal(data.queries, [1, 0, 1])


def test_heat_map_downsamples_by_maximum(tmp_path):
    ids = [[[0, -1]], [[0, -1]], [[0, 1]], [[1, -1]], [[0, 2]], [[1, 2]]]
    with write_ids(tmp_path / "r.h5", ids, range(6), 2) as results:
        data = selection_share(results, "index", 0, max_blocks=2)
        assert data.step == 2
        np.testing.assert_array_equal(data.share, [[[1, 0], [0.5, 1]]])
        np.testing.assert_array_equal(data.queries, [4, 2])
        figure, table = selection_heat_map(results, "index", 0, max_blocks=2)
        assert "max of 2 × 2" in figure.get_supxlabel()
        assert set(table["blocks_per_cell"]) == {2} and set(table["key_block"]) == {0, 2}


def direct_share(results, selector, layer, sequence):
    queries, sizes = results.queries(layer), results.sizes(layer)
    rows = np.nonzero(queries.sequence == sequence)[0]
    ids = results.ids(selector, layer)[:]
    blocks = queries.position[rows].max() // sizes.block_size + 1
    share = np.full((sizes.kv_heads, blocks, blocks), math.nan)
    for group in range(sizes.kv_heads):
        for block in range(blocks):
            inside = [ids[r, group] for r in rows
                      if queries.position[r] // sizes.block_size == block]
            for key in range(blocks):
                if inside:
                    share[group, block, key] = np.mean([key in row for row in inside])
    return share


@pytest.mark.parametrize("sequence", [0, 1])
def test_streamed_heat_map_equals_the_direct_one(sampled, sequence):
    for selector in sampled.selectors:
        streamed = selection_share(sampled, selector, 0, sequence).share
        np.testing.assert_array_equal(streamed, direct_share(sampled, selector, 0, sequence))


def test_heat_map_takes_the_sequence_with_most_queries(sampled):
    longest = selection_share(sampled, "oracle", 0).share
    assert longest.shape == (4, 12, 12)
    with pytest.raises(ResultsError, match="no queries of sequence 2"):
        selection_share(sampled, "oracle", 0, 2)


@pytest.mark.parametrize("heads, groups, rows", [(1, 1, 1), (6, 3, 1), (16, 8, 4)])
def test_any_number_of_groups(tmp_path, heads, groups, rows):
    path = tmp_path / "r.h5"
    make_results(path, Case(lengths=(40,), layers=(0,), query_heads=heads, kv_heads=groups,
                            top_k=2))
    with Results(path) as results:
        figure, _ = selection_heat_map(results, "oracle", 0)
        panels = [axes for axes in figure.axes if axes.get_title()]
        assert [panel.get_title() for panel in panels] == [f"group {group}" for group in range(groups)]
        assert len({panel.get_subplotspec().rowspan.start for panel in panels}) == rows


def test_heat_map_colours_are_fixed_from_0_to_1(results):
    figure, _ = selection_heat_map(results, "random", 3)
    limits = {axes.images[0].get_clim() for axes in figure.axes if axes.images}
    assert limits == {(0, 1)}


def test_sink_bars_show_the_metrics(results):
    figure, table = sink_bars(results, "window")
    assert len(figure.axes) == 2
    for axes, layer in zip(figure.axes, (3, 6)):
        heights = [bar.get_height() for bar in axes.patches]
        of_layer = table.where(layer=layer)
        np.testing.assert_array_equal(heights, [*of_layer["dense"], *of_layer["sparse"]])
        np.testing.assert_array_equal(of_layer["dense"],
                                      results.metric("dense", layer, "sink_mass"))
        np.testing.assert_array_equal(of_layer["sparse"],
                                      results.metric("window", layer, "sink_mass_sparse"))
        np.testing.assert_array_equal(of_layer["group"], [0, 0, 1, 1, 2, 2, 3, 3])


def test_mass_kept_curve_shows_the_curves_and_the_chosen_k(results):
    figure, table = mass_kept_curve(results, [6])
    lines = {line.get_label(): line for line in figure.axes[0].lines}
    for selector in ("oracle", "random", "window"):
        k, mass = results.curve(selector, 6)
        np.testing.assert_array_equal(lines[selector].get_xydata(), np.stack([k, mass], 1))
        np.testing.assert_array_equal(table.where(selector=selector)["mass_kept"], mass)
        assert (mass <= results.curve("oracle", 6)[1] + 1e-12).all()
    assert "k = 4" in {text.get_text() for text in figure.axes[0].texts}
    assert np.isnan(table["mass_kept_low"]).all(), "no summary.json lies beside"


def test_recall_by_k_is_that_of_the_curves(results):
    figure, table = recall_by_k(results, 6)
    assert {line.get_label() for line in figure.axes[0].lines} >= {"random", "window"}
    for axes, name in zip(figure.axes, ("block_recall", "score_recall")):
        lines = {line.get_label(): line for line in axes.lines}
        for selector in ("random", "window"):
            k, recall = results.curve(selector, 6, name)
            np.testing.assert_array_equal(lines[selector].get_xydata(), np.stack([k, recall], 1))
            np.testing.assert_array_equal(table.where(selector=selector)[name], recall)
            assert recall[k == 4] == pytest.approx(results.average(selector, 6, name)) and recall[-1] == 1
    lowest = min(table["block_recall"].min(), table["score_recall"].min())
    assert 0 <= lowest - figure.axes[0].get_ylim()[0] < 0.1, "the scale starts where the lowest line needs it"


def test_mass_kept_curve_shows_the_intervals_of_the_summary_beside(results_path, tmp_path):
    rows = [{"layer": layer, "selector": selector, "mass_kept": {"value": 0.3, "low": low, "high": high}}
            for layer, selector, low, high in ((6, "window", 0.25, 0.375), (3, "window", 0.0, 1.0),
                                               (6, "random", None, None))]
    shutil.copy(results_path, tmp_path / "results.h5")
    (tmp_path / "summary.json").write_text(json.dumps(report("msa-analyze", {"selectors": (2, rows)})))
    with Results(tmp_path / "results.h5") as results:
        _, table = mass_kept_curve(results, [6])
    sure = ~np.isnan(table["mass_kept_low"])
    assert table["selector"][sure].tolist() == ["window"]
    assert table["k"][sure].tolist() == [4]
    assert (table["mass_kept_low"][sure], table["mass_kept_high"][sure]) == (0.25, 0.375)


def test_power_of_two_bins():
    np.testing.assert_array_equal(power_of_two_bins(np.array([0, 0, 1, 2, 3, 4, 7, 8]), 6),
                                  [2, 1, 2, 2, 1, 0])


def test_histogram_counts_every_block_once(results):
    figure, table = queries_per_block(results, 3)
    for axes, selector in zip(figure.axes, results.selectors):
        blocks = table.where(selector=selector)["blocks"]
        assert blocks.sum() == results.popularity(selector, 3).queries_per_block.size
        np.testing.assert_array_equal([bar.get_height() for bar in axes.patches
                                       if hasattr(bar, "get_height")], blocks)


def test_summary_has_a_row_per_layer_and_selector(results):
    table = summary_table(results)
    assert len(table) == 6
    row = table.where(layer=6, selector="window")
    assert row["mass_kept"] == pytest.approx(results.metric("window", 6, "mass_kept").mean())
    assert row["sink_mass_dense"] == results.metric("dense", 6, "sink_mass").mean()
    assert row["rows_counted"] + row["rows_trivial"] == 384


def test_saved_csv_holds_the_numbers_of_the_figure(results, tmp_path):
    figure, table = mass_kept_curve(results)
    paths = save(figure, table, tmp_path / "new", "curve")
    assert [path.name for path in paths] == ["curve.png", "curve.svg", "curve.csv"]
    assert all(path.stat().st_size > 0 for path in paths)
    with open(paths[2], newline="") as file:
        read = list(csv.DictReader(file))
    assert list(read[0]) == list(table.columns)
    np.testing.assert_array_equal([float(row["mass_kept"]) for row in read], table["mass_kept"])
    np.testing.assert_array_equal([int(row["k"]) for row in read], table["k"])


def test_saving_twice_gives_the_same_bytes(results, tmp_path):
    first, second = (save(*sink_bars(results, "random"), tmp_path / name, "sink")
                     for name in ("a", "b"))
    assert all(x.read_bytes() == y.read_bytes() for x, y in zip(first, second))


def test_labels_can_be_read_on_white():
    assert style.contrast("white") == pytest.approx(1)
    assert style.contrast("#777777") == pytest.approx(4.48, abs=0.01)
    for place in range(style.COLOURS):
        colour = style.series_style(place)["color"]
        assert style.contrast(style.legible(colour)) >= 4.5
        assert style.contrast(style.on_dark(colour), style.PAPER_DARK) >= 4.5


# Of Machado, Oliveira and Fernandes (2009), on linear RGB: what readers without one kind of cone see.
SEEN_BY = {"all": np.eye(3),
           "without red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
           "without green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
           "without blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, seen):
    """CIELAB of a colour as a reader sees it."""
    parts = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    shares = TO_XYZ @ np.clip(np.array(seen) @ linear, 0, 1) / (0.9505, 1, 1.089)
    x, y, z = np.where(shares > 0.008856, np.cbrt(shares), 7.787 * shares + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("of_mode, least", [(lambda colour: colour, 16), (style.on_dark, 9.5)])
def test_colour_blind_readers_tell_all_colours_apart(of_mode, least):
    """Matplotlib's own colours have a distance of 4.6 without red and 7.3 without green."""
    colours = [of_mode(style.series_style(place)["color"]) for place in range(style.COLOURS)] + [of_mode("#000000")]
    for who, seen in SEEN_BY.items():
        for one, other in combinations(colours, 2):
            assert np.linalg.norm(lab(one, seen) - lab(other, seen)) >= least, (who, one, other)


def test_table_refuses_columns_of_different_length():
    with pytest.raises(ValueError, match="differ in length"):
        Table(a=[1, 2], b=[1])


@pytest.mark.parametrize("draw", [
    mass_by_layer, mass_kept_curve, lambda results: recall_by_k(results, 3), lambda results: sink_by_layer(results, "window"),
    lambda results: sink_bars(results, "window"), lambda results: overlap_map(results, "window"),
    lambda results: needle_depth_map(results, "window", 3)])
def test_pictures_say_that_no_query_had_a_choice(results, results_path, tmp_path, draw):
    def words(opened):
        return {text.get_text() for axes in draw(opened)[0].axes for text in axes.texts}

    path = shutil.copy(results_path, tmp_path)
    keep_everything(path)
    with Results(path) as without:
        assert words(without) - {"k = 24"} == {"no query sees more than k blocks"}
    assert "no query sees more than k blocks" not in words(results)


def test_the_markers_of_equal_entropies_are_below_the_top(results_path, tmp_path):
    path = shutil.copy(results_path, tmp_path)
    with h5py.File(path, "r+") as file:
        for of in file["metrics"].values():
            for layer in of.values():
                for name in ("entropy", "entropy_sparse"):
                    if name in layer:
                        layer[name][:] = 3.0
    with Results(path) as results:
        low, high = entropy_per_layer(results)[0].axes[0].get_ylim()
        assert 2.9 < low < 3 < high < 3.1
