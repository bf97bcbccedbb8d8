# SPDX-License-Identifier: MIT
import json
import math
import re
from pathlib import Path

import make_cost
import numpy as np
import pytest
from matplotlib.figure import Figure

from msalab.plots import (ResultsError, Table, bytes_by_context, efficiency_triple, loop_orders, mass_kept_versus_budget,
                      mass_kept_versus_cost, predicted_over_measured, predicted_over_measured_bars,
                      read_bench, read_comparison, read_cost, read_speedups, roofline, union_blocks)
from msalab.plots.__main__ import main
from msalab.plots.comparison import pareto_front
from msalab.plots.style import OTHERS, label_ends, save


@pytest.fixture
def files(tmp_path):
    return make_cost.write_all(tmp_path)


def lines(axes):
    return {line.get_label(): line.get_xydata() for line in axes.lines}


def test_efficiency_triple_without_records_shows_the_roofline_alone(files):
    figure, table = efficiency_triple(read_cost(files["cost"]))
    assert set(table["source"]) == {"sizes", "roofline"}
    np.testing.assert_array_equal(figure.axes[0].lines[0].get_xydata(),
                                  [(32768, 6.4), (131072, 25.6)])
    np.testing.assert_array_equal(lines(figure.axes[1])["roofline, unions of 20 blocks"],
                                  [(32768, 2), (131072, 8)])


def test_measured_speedups_stand_beside_the_roofline(files):
    cost, bench = read_cost(files["cost"]), read_bench(files["bench"])
    compared = predicted_over_measured(cost, bench)
    assert list(zip(compared["pipeline"], compared["tokens"])) == [
        (name, tokens) for tokens in make_cost.TOKENS for name in ("dense", "kv_outer", "automatic")]
    np.testing.assert_allclose(compared["predicted_over_measured"][[0, 1, 3, 4]], [1 / 2, 1 / 3] * 2)
    Path(files["cost"]).write_text(json.dumps(make_cost.cost(union_blocks=None)))
    by_chance = read_cost(files["cost"])
    chance = predicted_over_measured(by_chance, bench)  # beside random selections
    assert list(zip(chance["pipeline"], chance["tokens"])) == [
        ("dense", 32768), ("automatic", 32768), ("dense", 131072)]
    figure, table = efficiency_triple(cost, read_speedups(files["bench"]))
    measured = table.where(quantity="prefill", source="measured")
    np.testing.assert_allclose(measured["ratio"], [5, 5])
    drawn = lines(figure.axes[1])["measured, structured blocks"]
    np.testing.assert_array_equal(drawn[:, 1], measured["ratio"])
    assert not len(table.where(quantity="decode", source="measured"))


def test_a_speed_up_is_over_the_fastest_baseline_of_its_card_and_record(files, tmp_path):
    """Another record's baseline counts where the own one has none, and never that of another card."""
    def record(name, device, started, measured, baselines=()):
        (tmp_path / name).write_text(json.dumps(make_cost.record(measured, device, started, baselines)),
                                     encoding="utf-8")
        return tmp_path / name

    def layer(tokens, seconds, selection="structured"):
        return make_cost.measurement("square", "layer", tokens, seconds, selection=selection)

    dense = make_cost.measurement("square", "dense_attention", 64, 9, answered_by="cuDNN 9.19.0")
    paths = [record("a.json", "card", "2026-01-01", [dense, layer(64, 2), layer(128, 1, "random")],
                    [("FlashAttention 4", 64, 6), ("slow", 64, 7)]),
             record("b.json", "card", "2026-01-02", [layer(256, 1)], [("FlashAttention 4", 128, 8)]),
             record("c.json", "other card", "2026-01-03", [], [("slow", 64, 1), ("slow", 256, 1)])]
    for order in (paths, paths[::-1]):
        found = read_speedups(*order)
        assert list(zip(found["tokens"], found["selection"], found["baseline"], found["ratio"])) == [
            (64, "structured", "FlashAttention 4", 3), (128, "random", "FlashAttention 4", 8)]
    cost = read_cost(files["cost"])
    figure, table = efficiency_triple(cost, found)
    assert figure.axes[1].get_title(loc="left").split() == ("prefill speed-up over the fastest dense: "
                                                            "FlashAttention 4").split()
    assert table.where(source="measured")["tokens"].tolist() == [64]
    Path(files["cost"]).write_text(json.dumps(make_cost.cost(union_blocks=None)))
    by_chance = read_cost(files["cost"])
    assert efficiency_triple(by_chance, found)[1].where(source="measured")["tokens"].tolist() == [128]


def test_the_report_and_the_page_say_one_speed_up():
    root = Path(__file__).resolve().parents[2]
    found = read_speedups(*(root / "data" / "bench").glob("cuda-h100*.json"))
    rows = re.findall(r"\| a layer's prefill, (\w+) \| (\d+)([KM]) \| .* \| (.*) [\d.]+ m?s: ([\d.]+)× \|",
                      (root / "gpu/README.md").read_text(encoding="utf-8"))
    assert len(rows) >= 6
    for selection, count, unit, baseline, ratio in rows:
        ours = found.where(phase="prefill", selection=selection,
                           tokens=int(count) * {"K": 1 << 10, "M": 1 << 20}[unit])
        assert (ours["baseline"].tolist(), [f"{of:.1f}" for of in ours["ratio"]]) == ([baseline], [ratio])


def test_what_records_hold(tmp_path):
    record = tmp_path / "bench.json"
    structured = {"selection": "structured"}
    record.write_text(json.dumps(make_cost.record([
        make_cost.measurement("square", "index_select", 64, 1, **structured),
        make_cost.measurement("square", "sparse_attention", 64, 2, order="q_outer", **structured),
        make_cost.measurement("square", "sparse_attention", 64, 3, order="union", **structured),
        make_cost.measurement("square", "sparse_attention", 64, 9, order="automatic", **structured),
        make_cost.measurement("square", "index_select", 128, 9, **structured),  # without the other
        make_cost.measurement("square", "index_select", 256, 1, **structured),
        make_cost.measurement("square", "sparse_attention", 256, None, order="q_outer", **structured),
        make_cost.measurement("decode", "layer", 64, 3, index_form="bf16", selection="random"),
        make_cost.measurement("decode", "layer", 64, 9, index_form="e4m3", selection="random"),
        make_cost.measurement("decode", "dense_attention", 64, 4)])), encoding="utf-8")
    assert read_bench(record) == pytest.approx(
        {"prefill/q_outer/64/structured": 3, "prefill/union/64/structured": 4,
         "decode/automatic/64/random": 3, "decode/dense/64": 4})
    record.write_text(json.dumps({"format": "msalab-bench", "cases": {}}), encoding="utf-8")
    with pytest.raises(ResultsError, match='format is "msalab-bench", must be "msa-report"'):
        read_bench(record)


@pytest.mark.parametrize("older, newer", [
    ("2026-11-21T21:12:35Z", "2026-11-27T03:23:30.483Z"),
    ("2026-11-27T03:23:30Z", "2026-11-27T03:23:30.483Z")])
def test_of_several_records_the_last_one_started_counts(tmp_path, older, newer):
    paths = []
    for name, started, seconds in (("old", older, 2), ("new", newer, 1)):
        measured = [make_cost.measurement("square", "dense_attention", 64, seconds)]
        if name == "old":  # alone
            measured.append(make_cost.measurement("square", "dense_attention", 128, seconds))
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps(make_cost.record(measured, started=started)))
    for order in (paths, paths[::-1]):
        assert read_bench(*order) == {"prefill/dense/64": 1, "prefill/dense/128": 2}


def test_every_measured_context_has_a_tick(files):
    found = Table.from_rows(("phase", "tokens", "selection", "baseline", "ratio"),
                            [("prefill", 8192, "structured", "cuDNN", 2.0)])
    figure, _ = efficiency_triple(read_cost(files["cost"]), found)
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert labels == ["8K", "32K", "128K"]


def test_records_that_would_show_nothing_are_refused(files, results_path, tmp_path, capsys):
    chunks = tmp_path / "chunks.json"
    chunks.write_text(json.dumps(make_cost.record([make_cost.measurement("chunk", "layer", 32768, 1)])),
                      encoding="utf-8")
    assert read_bench(chunks, files["bench"]) == read_bench(files["bench"])
    report = [str(results_path), "--out", str(tmp_path / "out")]
    for arguments, words in (
            (["--bench", files["bench"]], f"{files['bench']}: --bench needs --cost from sizes"),
            (["--bench", files["bench"], "--cost", files["orders"]], "--bench needs --cost"),
            (["--bench", str(chunks), "--cost", files["cost"]],
             f"{chunks}: no square prefill and no decode of one token")):
        assert main([*report, *arguments]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_record_no_comparison(files):
    assert len(predicted_over_measured(read_cost(files["cost"]), {})) == 0


def test_roofline_stands_the_parts_under_the_roof(files):
    figure, table = roofline(read_cost(files["cost"]))
    by_name = {row[0]: row[1:] for row in table.rows()}
    assert by_name["q_outer"][3] == 16  # FLOP/byte
    assert by_name["kv_outer"][3] == pytest.approx(80)  # with the schedule and the combine
    assert by_name["kv_outer"][2] == pytest.approx(0.016 + 0.01 + 1e-5)
    for flops, moved, seconds, intensity, rate in by_name.values():
        assert rate <= min(1e15, intensity * 1e13) * (1 + 1e-12)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "kv_outer, 80 FLOP/byte" in labels


def test_loop_orders_show_every_selector_the_oracle_first(files):
    figure, table = loop_orders(read_cost(files["orders"]), 3, 1792)
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    np.testing.assert_allclose(widths, [3, 9, 1, 3, 2, 6, 1, 3])  # microseconds; order, then selector
    read = [bar.get_width() for bar in figure.axes[1].patches]
    np.testing.assert_allclose(read, table["cache_bytes"] / 1e6)
    assert figure.axes[0].get_title(loc="left") == "layer 3, context of 1\u202f792 tokens"
    assert list(table["selector"][:2]) == ["oracle", "random"]
    with pytest.raises(ResultsError, match="no costs of layer 4"):
        loop_orders(read_cost(files["orders"]), 4)


def test_bytes_of_the_orders_leave_out_what_both_do_alike(files):
    figure, table = bytes_by_context(read_cost(files["cost"]))
    expected = [(tokens, order, moved * tokens / 32768) for order, moved in (("q_outer", 1.4e11), ("kv_outer", 3e10))
                for tokens in (32768, 131072)]
    assert list(table.rows()) == expected
    np.testing.assert_allclose([bar.get_width() for bar in figure.axes[0].patches], table["bytes"] / 1e9)
    assert {"140 GB", "30 GB", "560 GB", "120 GB"} <= {text.get_text() for text in figure.axes[0].texts}


def test_union_sizes(files):
    figure, table = union_blocks(read_cost(files["orders"]), 3)
    np.testing.assert_array_equal(lines(figure.axes[0])["random"], [(1, 4), (8, 12)])
    assert list(table.where(selector="oracle")["union_blocks"]) == [4, 4]


def test_mass_against_budget_and_cost(files):
    table = read_comparison(files["compare"])
    assert math.isnan(table["mass_kept"][0])
    figure, drawn = mass_kept_versus_budget(table, 3)
    names = [text.get_text() for text in figure.axes[0].texts]
    # At the ends of their lines, from below; the baseline does not set the axis.
    assert names == ["random: 0.43 to 0.43", "quest", "oracle"]
    assert 0.6 < figure.axes[0].get_ylim()[0] < 0.6 + 0.064
    np.testing.assert_allclose(lines(figure.axes[0])["quest"],
                               [(96, 0.6 + 0.064), (192, 0.6 + 0.128)])
    assert len(drawn) == 6
    np.testing.assert_allclose(drawn["mass_kept_high"] - drawn["mass_kept"],
                               [math.nan] + 5 * [0.02])
    shade = figure.axes[0].collections[1].get_paths()[0].vertices  # quest's, around its line
    for point in [(96, 0.654), (96, 0.684), (192, 0.718), (192, 0.748)]:
        assert np.isclose(shade, point).all(axis=1).any()
    figure, drawn = mass_kept_versus_cost(table, 3, "bytes")
    np.testing.assert_allclose(lines(figure.axes[0])["quest"][:, 0], [31.28, 32.56])  # kB
    np.testing.assert_array_equal(drawn["bytes"], table["index_bytes"] + table["attention_bytes"])
    assert list(drawn["selector"][drawn["on_front"]]) == ["random", "oracle", "oracle", "quest",
                                                          "quest"]


def test_many_selectors_are_grey_but_for_a_handful(files, tmp_path):
    """The best one is named, known or not; another one that keeps less at a higher cost is grey."""
    table = read_comparison(files["compare"])
    columns = {**table.columns, "selector": np.where(table["selector"] == "quest", "moba",
                                                     table["selector"])}
    of_moba = columns["selector"] == "moba"
    columns = {name: np.concatenate([column, column[of_moba]]) for name, column in columns.items()}
    columns["selector"][-of_moba.sum():] = "infllm"
    columns["mass_kept"][-of_moba.sum():] -= 0.1
    columns["index_flops"][-of_moba.sum():] *= 2
    figure, drawn = mass_kept_versus_budget(Table(**columns), 3)
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.texts] == ["random: 0.43 to 0.43", "moba", "oracle"]
    assert [line.get_color() for line in axes.lines if line.get_label() == "others"] == [OTHERS]
    assert axes.get_title("left") == "grey: 1 other selector"
    assert "infllm" in drawn["selector"]  # the numbers stay
    _, svg, _ = save(figure, drawn, tmp_path, "budget")
    assert "<title>infllm</title>" in svg.read_text()  # shown on hover


def test_what_keeps_no_more_than_the_baseline_does_not_set_the_axis(files):
    table = read_comparison(files["compare"])
    worse = Table(**{**table.columns, "mass_kept": np.where(table["selector"] == "quest", 0.4,
                                                            table["mass_kept"])})
    axes = mass_kept_versus_budget(worse, 3)[0].axes[0]
    assert [text.get_text() for text in axes.texts] == ["quest, random: 0.40 to 0.43", "oracle"]
    assert axes.get_ylim()[0] > 0.43
    words, = [text for text in axes.texts if text.get_text().startswith("quest, random")]
    assert words.get_bbox_patch().get_facecolor() == (1, 1, 1, 1)
    cut = [line.get_zorder() for line in axes.lines if line.get_label() in ("quest", "random")]
    assert max(cut) < words.get_zorder()  # no line runs through the words


def test_a_choice_that_reads_more_than_its_budget_is_hollow(files, tmp_path):
    path = tmp_path / "over.json"
    path.write_text(json.dumps(make_cost.comparison(over="quest")))
    table = read_comparison(path)
    figure, drawn = mass_kept_versus_budget(table, 3)
    axes = figure.axes[0]
    np.testing.assert_allclose(lines(axes)["quest"][:, 0], [512, 1024])  # where it really reads
    hollow = [line for line in axes.lines if line.get_label() == "quest, over its budget"]
    assert [line.get_markerfacecolor() for line in hollow] == ["white"]
    np.testing.assert_allclose(hollow[0].get_xydata(), lines(axes)["quest"])
    assert "hollow: reads more than its budget" in axes.get_title("left")
    assert drawn["over_budget"].tolist() == [name == "quest" for name in drawn["selector"]]


def test_names_at_the_ends_are_apart():
    axes = Figure().subplots()
    axes.set_ylim(0, 1)
    ends = {name: (0.5, y) for name, y in zip("abcd", (0.98, 0.97, 0.5, 0.99))}
    label_ends(axes, ends, dict.fromkeys(ends, "black"))
    heights = [text.get_position()[1] for text in axes.texts]
    assert [text.get_text() for text in axes.texts] == list("cbad")
    assert min(np.diff(heights)) > 0.06 and 0 <= heights[0] and heights[-1] < 0.97  # whole letters


def test_bars_of_predicted_over_measured_start_at_one(files):
    cost, bench = read_cost(files["cost"]), read_bench(files["bench"])
    figure, table = predicted_over_measured_bars(cost, bench)
    bars = figure.axes[0].patches
    np.testing.assert_array_equal([bar.get_x() for bar in bars], 1)
    np.testing.assert_allclose([bar.get_x() + bar.get_width() for bar in bars],
                               table["predicted_over_measured"])
    figure, table = predicted_over_measured_bars(cost, {})
    assert not len(figure.axes[0].patches) and not len(table)


def test_pareto_front():
    cost = np.array([3.0, 1, 2, 2, 4, 5, 1])
    kept = np.array([0.7, 0.5, 0.6, 0.4, 0.7, math.nan, 0.3])
    assert list(pareto_front(cost, kept)) == [1, 2, 0]


def test_reads_only_its_own_formats(files, tmp_path):
    with pytest.raises(ResultsError, match="program is msa-cost, must be msa-compare"):
        read_comparison(files["cost"])
    with pytest.raises(ResultsError, match="not a readable JSON file"):
        read_cost(tmp_path / "none.json")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(ResultsError, match='format is "None"'):
        read_cost(tmp_path / "list.json")


def test_other_answers_are_refused(tmp_path):
    path = tmp_path / "cost.json"
    for content, words in ((make_cost.sharing(), "program is msa-reuse, must be msa-cost"),
                           (make_cost.report("msa-cost", {"ranks": (3, [])}), "neither costs from sizes"),
                           ({"format": "msa-cost", "format_version": 3},
                            'format is "msa-cost", must be "msa-report"')):
        path.write_text(json.dumps(content))
        with pytest.raises(ResultsError, match=words):
            read_cost(path)
