# SPDX-License-Identifier: MIT
import base64
import json
import re
import shutil
import warnings
from html.parser import HTMLParser
from pathlib import Path

import h5py
import make_cost
import pytest
from make_results import Case, keep_everything, make_results

from msalab.plots import Results, selection_heat_map, summary_table
from msalab.plots.__main__ import main
from msalab.plots.gallery import SECTIONS, expected, selections_section
from msalab.plots.glossary import GLOSSARY, definitions
from msalab.plots.report import best_practical, number

PER_LAYER = ("mass_kept", "recall", "queries_per_block", "lorenz")
PER_LAYER_AND_SELECTOR = ("selection", "sink", "needle")
PER_SELECTOR = ("overlap", "sink_by_layer")


@pytest.fixture(scope="module")
def out(results_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    assert main([str(results_path), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def page(out):
    return (out / "report.html").read_text(encoding="utf-8")


class Elements(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_writes_every_picture(out):
    stems = {f"{stem}_layer{layer}" for stem in PER_LAYER for layer in (3, 6)}
    stems |= {f"{stem}_{selector}_layer{layer}" for stem in PER_LAYER_AND_SELECTOR
              for selector in ("oracle", "random", "window") for layer in (3, 6)}
    stems -= {f"needle_oracle_layer{layer}" for layer in (3, 6)}  # it finds all it wants
    stems |= {f"{stem}_{selector}" for stem in PER_SELECTOR
              for selector in ("oracle", "random", "window")} | {"entropy", "mass_by_layer"}
    expected = {f"{stem}.{ending}" for stem in stems for ending in ("png", "svg", "csv")}
    assert {path.name for path in out.iterdir()} == expected | {"report.html", "summary.csv"}


def test_how_many_pictures_are_to_come_is_known(out, results_path):
    """Of what is drawn for each layer and selector; a line of progress says what is left."""
    with Results(results_path) as results:
        known = {section.key: expected(section, results, [3, 6]) for section in SECTIONS if hasattr(section.draw, "count")}
    assert known["selection"] == 6 and known["needle"] == 4
    files = [path.stem for path in out.glob("*.svg")]
    assert sum(known.values()) == len(files) - 2  # entropy and mass_by_layer


def test_is_self_contained(page):
    for tag, attributes in Elements(page).found:
        assert tag not in ("link", "iframe", "object", "embed")
        assert "srcset" not in attributes
        for name in ("src", "href"):
            assert attributes.get(name, "#").startswith(("#", "data:"))
    assert not re.search(r"url\(|@import|fetch\(|https?:", page)
    assert "default-src 'none'" in page


def test_pictures_in_the_page_are_those_in_the_folder(out, page):
    images = [attributes for tag, attributes in Elements(page).found if tag == "img"]
    embedded = {base64.b64decode(image["src"].split(",", 1)[1]) for image in images}
    assert embedded == {path.read_bytes() for path in out.glob("*.svg")}
    assert all(image["alt"] for image in images)
    for picture in embedded:  # nor do the pictures fetch anything
        references = re.findall(rb'(?:xlink:)?href="([^"]*)"', picture)
        assert all(reference.startswith((b"#", b"data:")) for reference in references)


def test_shows_every_number_of_the_summary_with_its_definition(results, page):
    table = summary_table(results)
    elements = Elements(page).found
    values = [float(attributes["data-value"]) for tag, attributes in elements
              if tag == "td" and "data-value" in attributes]
    expected = [value for row in table.rows() for value in row if not isinstance(value, str)]
    assert values == expected
    assert all(attributes.get("title") for tag, attributes in elements if tag == "td")
    titles = [attributes["title"] for tag, attributes in elements if tag == "th"]
    assert len(titles) == len(table.columns) and not set(titles) & {*table.columns}
    assert "sum of P_b over the selected blocks, of all mass" in titles  # as the run recorded it


def test_says_what_each_selector_does(page):
    # Its chip, the glossary, and its row of each of the two layers.
    assert page.count("uniformly random visible blocks") == 4


def test_every_column_has_a_definition(results):
    known = definitions(results)
    assert set(summary_table(results).columns) <= set(known)
    assert not set(GLOSSARY) & {"mass_kept", "output_error"}  # those the programs record


def test_names_where_the_numbers_come_from(page):
    for text in ("make_results &#39;a file.h5&#39; --top-k 4",
                 "laptop", "numpy", "0" * 40, "synthetic.h5", "0" * 64):
        assert text in page


def test_headline_names_the_best_selector_besides_the_oracle(results):
    summary = summary_table(results)
    name, kept = best_practical(summary)
    assert name == "window"
    assert kept == pytest.approx(summary.where(selector="window")["mass_kept"].mean())
    assert best_practical(summary.where(selector="oracle")) is None


def test_costs_and_comparisons_come_as_sections(full_report):
    page = (full_report / "report.html").read_text(encoding="utf-8")
    sections = [attributes["id"] for tag, attributes in Elements(page).found if tag == "section"]
    assert sections[:9] == ["summary", "blocks", "selection", "sink", "mass-kept", "recall", "traffic", "loop-orders",
                            "efficiency"]
    assert sections[-5:] == ["comparison", "advice", "cache", "reuse", "precision"]
    links = [attributes["href"] for tag, attributes in Elements(page).found if tag == "a" and "href" in attributes]
    assert [link[1:] for link in links if link[1:] in sections] == sections
    folded = re.findall(r'<section id="([\w-]+)">\s*<details class="folded">', page)
    assert folded == sections[9:]
    for name in ("efficiency", "traffic", "roofline", "predicted_over_measured", "comparison",
                 "advice", "advice_layers", "cache", "cache_layers", "reuse_distance", "reuse_patterns",
                 "reuse_all_patterns", "precision", "precision_all", "budget_layer3", "pareto_flops_layer3",
                 "pareto_bytes_layer3", "loop_orders_layer3", "unions_layer3"):
        assert (full_report / f"{name}.csv").is_file()
    assert "Solid lines were measured (bench.json)" in page
    rows = (full_report / "predicted_over_measured.csv").read_text().splitlines()
    assert rows[0].endswith(",predicted_over_measured") and len(rows) == 7
    headers = [attributes["title"] for tag, attributes in Elements(page).found if tag == "th"]
    assert GLOSSARY["predicted_over_measured"] in headers and "what index_flops means, in MFLOP" in headers
    assert "Averages over 40 queries in the prefill phase" in page


def captures(model="tiny", tokens=384, sequences=1, name="a.h5"):
    return [{"input": name, "model": model, "first_sequence": 0, "sequences": sequences, "first_token": 0,
             "tokens": tokens}]


def with_captures(path, to, of=None, windows=()):
    shutil.copy(path, to)
    with h5py.File(to, "r+") as file:
        file["run"].attrs["captures"] = json.dumps(of or captures())
        for layer, window in windows:
            file[f"layers/{layer}"].attrs["window"] = window
    return to


@pytest.mark.parametrize("of, is_other", [
    (captures(name="indexer.h5"), False), (captures(model="planted"), True), (captures(tokens=1024), True),
    (None, False)])
def test_a_section_of_other_data_says_so(results_path, tmp_path, undrawn, of, is_other):
    """Of the same data under another name it does not, nor where a file does not say what it is of."""
    results = with_captures(results_path, tmp_path / "results.h5")
    made, given = make_cost.write_all(tmp_path), []
    for name in ("reuse", "advise"):
        summary = json.loads(Path(made[name]).read_text(encoding="utf-8"))
        summary["run"].update({"captures": of} if of else {})
        (tmp_path / f"{name}.json").write_text(json.dumps(summary), encoding="utf-8")
        given += [f"--{name}", str(tmp_path / f"{name}.json")]
    assert main([str(results), "--out", str(tmp_path / "out"), *given, "--layers", "3"]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    said = (f"Other data than the rest of this page: a.h5 ({of[0]['model']}, {of[0]['tokens']} tokens), "
            "not a.h5 (tiny, 384 tokens)." if is_other else "Other data")
    assert page.count(said) == 2 * is_other
    if is_other:
        section = page[page.index('<section id="reuse">'):]
        assert said in section[:section.index("<figure")]


def test_the_context_is_that_of_a_sequence(tmp_path, undrawn):
    path = tmp_path / "two.h5"
    make_results(path, Case(lengths=(192, 192), layers=(3,), kv_heads=1, query_heads=2, stride=4))
    assert main([str(path), "--out", str(tmp_path / "out")]) == 0
    words = " ".join((tmp_path / "out" / "report.html").read_text(encoding="utf-8").split())
    assert "<dd>192<small>tokens, the longest of 2 sequences; of 384 tokens in all 96 analysed" in words
    assert "in 1 GQA group of 2<" in words


def test_layers_with_a_window_are_marked_and_in_no_mean(results_path, tmp_path, undrawn):
    path = with_captures(results_path, tmp_path / "windowed.h5", windows=[(3, 64)])
    assert main([str(path), "--out", str(tmp_path / "out")]) == 0
    words = " ".join((tmp_path / "out" / "report.html").read_text(encoding="utf-8").split())
    assert "Means over layer 6. The others attend to a sliding window of 64 tokens" in words
    with Results(path) as results:
        summary = summary_table(results)
        assert summary["window"][summary["layer"] == 3].tolist() == [64] * 3
        full = summary.where(layer=6)
        kept = best_practical(full)
        assert f"<b>{kept[0]}</b> keeps most: <b>{100 * kept[1]:.1f}&nbsp;%</b>" in words
        oracle = float(full["oracle_mass"].mean())
        assert f"can keep {100 * oracle:.1f}&nbsp;% of the attention" in words
        assert set(summary.columns) <= set(definitions(results))


def test_what_is_named_is_named_in_the_page(full_report):
    """Pictures in an <img> show no names: those that have some are elements of the page."""
    page = (full_report / "report.html").read_text(encoding="utf-8")
    titles = re.findall("<g><title>(.*?)</title>", page)
    assert {"random", "oracle", "quest", "layer 1 with ids of layer 0",
            "int8, scale per token"} <= set(titles)
    images = [base64.b64decode(attributes["src"].split(",", 1)[1])
              for tag, attributes in Elements(page).found if tag == "img"]
    assert images and not any(b"<title>" in image for image in images)
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]*)', page)) <= set(ids)
    assert not re.search(r"url\((?!#)|@import|https?:", page)


def test_a_named_line_has_room_for_a_pointer(full_report):
    svg = (full_report / "budget_layer3.svg").read_text(encoding="utf-8")
    for name in ("oracle", "quest"):
        broad, line = re.search(rf'<title>{name}</title>\s*(<path .*?/>)\s*(<path .*?/>)', svg,
                                re.DOTALL).groups()
        assert "stroke: transparent; stroke-width: 8" in broad and "transparent" not in line
        assert broad.split('"')[1] == line.split('"')[1]  # the same way


def test_a_word_with_two_definitions_has_both(full_report):
    """As output_error, which is of heads in msa-analyze and of groups in msa-compare."""
    page = (full_report / "report.html").read_text(encoding="utf-8")
    glossary = page[page.index('id="glossary"'):]
    assert "<dt>mass kept</dt><dd>sum of P_b over the selected blocks, of all mass</dd>" in glossary
    assert "<dt>mass kept (comparison)</dt><dd>what mass_kept means</dd>" in glossary
    assert page.count('title="what mass_kept means"') > 1  # the comparison's column and cells


def test_heat_maps_may_come_from_more_of_the_queries(sampled, tmp_path, full_report):
    make_results(tmp_path / "whole.h5", Case(lengths=(75, 190), layers=(0,)))
    with Results(tmp_path / "whole.h5") as whole:
        section = selections_section(whole, sampled)
        drawn = list(section.draw(sampled, [0]))
        _, of_whole = selection_heat_map(whole, "oracle", 0)
        _, of_sampled = selection_heat_map(sampled, "oracle", 0)
    assert section.reading[-1] == ("These maps show 265 queries; the numbers of this page are of "
                                   "53 of them.")
    assert [picture.name for picture in drawn] == [
        f"selection_{name}_layer0" for name in ("oracle", "random", "window")]
    assert list(drawn[0].table.rows()) == list(of_whole.rows()) != list(of_sampled.rows())
    page = (full_report / "report.html").read_text(encoding="utf-8")
    assert page.count("These maps show 384 queries") == page.count('<section id="selection">') == 1


def test_a_file_of_another_kind_is_an_error(results_path, tmp_path, capsys):
    files = make_cost.write_all(tmp_path)
    assert main([str(results_path), "--out", str(tmp_path), "--cost", files["bench"]]) == 2
    assert 'program is msa-bench, must be msa-cost' \
        in capsys.readouterr().err


def test_the_page_says_what_it_is_about(results_path, tmp_path, undrawn):
    path = with_captures(results_path, tmp_path / "r.h5", captures("a <model>"))
    with h5py.File(path, "r+") as file:  # a sink in layer 6 alone
        file["metrics/dense/3"].attrs["sink_mass"] = 0.01
        file["metrics/dense/6"].attrs["sink_mass"] = 0.3
    assert main([str(path), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "<title>a &lt;model&gt;, 384 tokens: 4 of 24 blocks of 16</title>" in page
    assert "Model <b>a &lt;model&gt;</b>" in page and "analysed on 2000-01-01" in page
    assert "<dd><code>a.h5: a &lt;model&gt;, 1 sequence, 384 tokens</code></dd>" in page
    checked = [attributes["value"] for tag, attributes in Elements(page).found
               if tag == "input" and "checked" in attributes and attributes["name"] == "layer"]
    assert checked == ["6"] and '"first":6' in page


def test_one_picture_alone(results_path, tmp_path, capsys):
    arguments = [str(results_path), "--out", str(tmp_path / "out"), "--layers", "6", "--only"]
    assert main([*arguments, "mass-kept,layers"]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{stem}.{ending}" for stem in ("mass_kept_layer6", "mass_by_layer") for ending in ("png", "svg", "csv")}
    assert capsys.readouterr().out.split() == [str(tmp_path / "out" / f"{stem}.png")
                                               for stem in ("mass_kept_layer6", "mass_by_layer")]
    assert main([*arguments, "heat"]) == 2
    assert "--only: no section heat; there are: selection, sink" in capsys.readouterr().err
    assert main([str(results_path), "--out", str(tmp_path / "out"), "--layers", "4", "--only", "sink"]) == 2
    assert "no layer 4; it has [3, 6]" in capsys.readouterr().err


def test_one_layer_alone(results_path, tmp_path, undrawn):
    assert main([str(results_path), "--out", str(tmp_path), "--layers", "6"]) == 0
    assert not list(tmp_path.glob("*layer3*"))
    rows = (tmp_path / "summary.csv").read_text().splitlines()[1:]
    assert [row.split(",")[0] for row in rows] == ["6", "6", "6"]


@pytest.mark.parametrize("value, text", [
    (12345, "12\u202f345"), (0.0, "0.000"), (0.94512, "0.945"), (5.31e-5, "5.3e-5"),
    (float("nan"), "–")])
def test_numbers(value, text):
    assert number(value) == text


def test_a_run_without_anything_to_choose_says_so(results_path, tmp_path):
    path = shutil.copy(results_path, tmp_path)
    keep_everything(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert main([str(path), "--out", str(tmp_path), "--layers", "3"]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Every query keeps all the blocks it sees" in page
    assert "nan%" not in page and "nan&nbsp;%" not in page


@pytest.mark.parametrize("selectors", [("random", "window"), ("window",), ("oracle",)])
def test_without_an_oracle_and_others_there_is_nothing_to_find_needles_by(tmp_path, undrawn, selectors):
    make_results(tmp_path / "results.h5", Case(layers=(3,), selectors=selectors))
    assert main([str(tmp_path / "results.h5"), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert 'id="entropy"' in page and 'id="needle"' not in page
    assert not list((tmp_path / "out").glob("needle*"))


@pytest.mark.parametrize("layers, words", [("3,6,3", "'3,6,3', it names one twice"),
                                           ("x", "'x', must be integers with commas between them")])
def test_layers_are_different_numbers(results_path, tmp_path, capsys, layers, words):
    with pytest.raises(SystemExit) as ended:
        main([str(results_path), "--out", str(tmp_path / "out"), "--layers", layers])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"argument --layers: {words}\n")
