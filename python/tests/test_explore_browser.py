# SPDX-License-Identifier: MIT
"""The block microscope in headless Chromium: what a user clicks, and what then stands on the page."""

import base64
import re
import time
import zlib

import h5py
import numpy as np
import pytest
from make_explore import made_up, make_explore, words_of
from make_results import Case, make_results
from matplotlib import image
from webdriver import ABSENT, Browser

from msalab.explore import Activations, data, make_microscope, write_page
from msalab.plots import Results, gallery, report
from msalab.plots.__main__ import main as plot

pytestmark = pytest.mark.skipif(ABSENT is not None, reason=ABSENT or "")

READY = "document.getElementById('microscope')?.dataset.ready"
TOKENS, BLOCK, CLICK = 384, 16, 0.05  # seconds that a click may take
SHARES = """return [...document.querySelectorAll('tr[data-block]')].map(row =>
    [row.dataset.verdict, parseFloat(row.cells[1].textContent)])"""
TABLE = """return [...document.querySelectorAll('tr[data-block]')].map(row =>
    [+row.dataset.block, row.dataset.verdict, row.querySelector('td:last-child .ms-words').textContent])"""
# Colour of a map in the middle of a query's cell and a block's; the image of the demo's 24 blocks is drawn whole.
COLOUR = """const [kind, query, block] = arguments, canvas = document.querySelector(`[data-map="${kind}"] canvas`);
    const scale = canvas.width / canvas.clientWidth, left = 60, top = 14, right = 6, bottom = 34;
    const x = left + (block + 0.5) / 24 * (canvas.clientWidth - left - right);
    const y = top + (query + 0.5) / 384 * (canvas.clientHeight - top - bottom);
    const pen = canvas.getContext('2d');
    return [...pen.getImageData(Math.round(x * scale), Math.round(y * scale), 1, 1).data].slice(0, 3)"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_explore(tmp_path_factory.mktemp("explore"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def page_of(files, folder):
    with Results(files[0]) as results, Activations([files[1]], results) as activations:
        return write_page(make_microscope(results, activations=activations), folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def page(files, tmp_path_factory):
    return page_of(files, tmp_path_factory.mktemp("page"))


def text_of(block):
    return " ".join("".join(words_of(TOKENS)[block * BLOCK:(block + 1) * BLOCK]).split())


def check_query(browser, files, query, group, selector="window", layer=3):
    """The blocks of the pinned query are those of the results, with their own words."""
    with Results(files[0]) as results:
        chosen, best = ({int(block) for block in results.ids(name, layer)[query][group] if block >= 0}
                        for name in (selector, "oracle"))
    verdicts = {block: "both" if block in chosen & best else "wasted" if block in chosen else "missed"
                for block in chosen | best}
    found = browser.run(TABLE)
    assert {block: verdict for block, verdict, _ in found} == verdicts
    for block, _, words in found:
        assert words == text_of(block)
    assert f"{selector} chose {len(chosen)} blocks" in browser.text(".ms-sentence")
    shares = browser.run(SHARES)
    order = [share for _, share in shares]
    assert order == sorted(order, reverse=True)
    said = [float(part) for part in re.findall(r"with ([\d.]+)", browser.text(".ms-sentence"))]
    of = [("both", "wasted"), ("both", "missed"), ("missed",), ("wasted",)]  # in the sentence's order; rounded to 0.5 %
    sums = [sum(share for verdict, share in shares if verdict in verdicts) for verdicts in of]
    np.testing.assert_allclose(said, sums, atol=0.5 + 0.5 * len(shares))
    assert sums[0] + sums[1] > 20


def test_a_click_pins_a_query(browser, page, files):
    browser.resize(1280)
    browser.open(page, READY)
    browser.click("[data-measure=sink][data-layer='3'][data-group='1']")
    browser.wait("document.getElementById('microscope').dataset.layer === '3'")
    browser.run("const choice = document.querySelectorAll('.ms-part-bar select')[2];"
                "choice.value = 'window'; choice.dispatchEvent(new Event('change'))")
    browser.click("[data-map=oracle] canvas", 0.4, 0.8)
    browser.wait("location.hash.includes('query')")
    query = int(browser.run("return new URLSearchParams(location.hash.slice(1)).get('query')"))
    assert abs(query - 340) <= 2
    assert browser.text(".ms-part-query .ms-query") in words_of(TOKENS)[query]
    check_query(browser, files, query, 1)


def test_ids_that_are_shifted_by_a_block_are_seen(browser, files, tmp_path, monkeypatch):
    right = data._bits
    monkeypatch.setattr(data, "_bits", lambda ids, blocks: right(np.where(ids > 0, ids - 1, ids), blocks))
    browser.open(page_of(files, tmp_path) + "#layer=3&group=1&query=300&selector=window", READY)
    with pytest.raises(AssertionError):
        check_query(browser, files, 300, 1)


def test_an_address_shows_what_it_says(browser, page, files):
    browser.open(page + "#layer=6&group=2&query=200&selector=random&block=3&find=the", READY)
    check_query(browser, files, 200, 2, "random", 6)
    assert browser.text(".ms-part-block p") == "Block 3, tokens 48–63."
    with Results(files[0]) as results:
        looks = int((results.ids("random", 6)[:][:, 2] == 3).any(1).sum())
    assert f"random {looks}" in browser.text(".ms-lookers")
    of_later = browser.run("return [...document.querySelectorAll('.ms-from button')].map(one => parseInt(one.innerText))")
    assert len(of_later) == 12 and min(of_later) >= 64, "its own queries always choose it"
    words = "".join(words_of(TOKENS)[48:64])
    assert browser.run("return document.querySelector('.ms-part-block .ms-context').textContent") == words
    where = {i // BLOCK for i, word in enumerate(words_of(TOKENS)) if word.startswith("the")}
    assert f"stands in {len(where)} blocks" in browser.text(".ms-found")
    browser.run("location.hash = '#layer=3&group=0&query=77&selector=window'")
    browser.wait("document.querySelector('.ms-part-query p').textContent.startsWith('Token 77,')")
    check_query(browser, files, 77, 0)


def test_colours_say_which_blocks_are_chosen(browser, page, files):
    with Results(files[0]) as results:
        ids = results.ids("oracle", 3)[:][:, 1]
    query = 340
    chosen = [block for block in ids[query] if block >= 0]
    other = next(block for block in range(query // BLOCK) if not (ids[query - 2:query + 3] == block).any())
    for dark in (False, True):
        browser.resize(1280, dark=dark)
        browser.open(page + "#layer=3&group=1&selector=window", READY)
        drawn = {block: browser.run(COLOUR, "oracle", query, int(block)) for block in (chosen[0], other, 23)}
        none = [29, 32, 40] if dark else [255, 255, 255]
        assert drawn[other] == none and drawn[chosen[0]] != none and drawn[23] not in (none, drawn[chosen[0]])
        ink = browser.run("return getComputedStyle(document.body).color")
        assert ink == ("rgb(232, 234, 240)" if dark else "rgb(28, 30, 38)")


VIEW = "return new URLSearchParams(location.hash.slice(1)).get('view')"
PAINTED = """return [...document.querySelectorAll('[data-map] canvas')].map(canvas =>
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.reduce((a, b) => (31 * a + b) | 0, 7))"""


def test_a_typed_position_pins_a_query(browser, page, files):
    browser.open(page + "#layer=3&group=1&selector=window", READY)
    browser.run("document.querySelector('.ms-part-bar input[type=number]').focus()")
    browser.type("317\ue007")
    browser.wait("location.hash.includes('query=317')")
    check_query(browser, files, 317, 1)


# Tokens of the text that have a colour, and those that have the strongest one.
COLOURED = """const alpha = one => +(one.style.background.match(/[\\d.]+(?=\\))/) ?? [0])[0];
    const spans = [...document.querySelectorAll('.ms-text span')], most = Math.max(...spans.map(alpha));
    return [0, most - 1e-9].map(least => spans.filter(one => alpha(one) > least).map(one => +one.dataset.token))"""


def test_the_text_is_coloured_as_is_asked(browser, page, files):
    with Results(files[0]) as results:
        ids, position = results.ids("window", 3)[:][:, 1], results.queries(3).position
    chosen = {token for block in ids[300] if block >= 0 for token in range(block * BLOCK, (block + 1) * BLOCK)}
    browser.open(page + "#layer=3&group=1&query=300&selector=window&colour=query", READY)
    assert set(browser.run(COLOURED)[0]) == chosen & set(range(TOKENS))
    browser.run("const choice = document.querySelector('[aria-label=\"colour of the text\"]');"
                "choice.value = 'blocks'; choice.dispatchEvent(new Event('change'))")
    browser.wait("location.hash.includes('colour=blocks')")
    often = [(ids[position // BLOCK >= block] == block).any(1).mean() for block in range(TOKENS // BLOCK)]
    most = [block for block, share in enumerate(often) if share == max(often)]
    assert set(browser.run(COLOURED)[1]) == {token for block in most for token in range(block * BLOCK, (block + 1) * BLOCK)}


def test_a_pointer_zooms_all_maps_together(browser, page):
    browser.resize(1280)
    browser.open(page + "#layer=3&maps=oracle+window+difference", READY)
    whole = browser.run(PAINTED)
    assert len(whole) == 3
    browser.drag("[data-map=window] canvas", (0.3, 0.4), (0.6, 0.8))
    browser.wait("location.hash.includes('view')")
    first, last, low, high = map(int, browser.run(VIEW).split("-"))
    assert 150 < first < 170 and 325 < last < 345 and 2 < low < 7 and 11 < high < 16
    assert not set(whole) & set(browser.run(PAINTED)), "one that did not move"
    browser.click("[data-map=window] canvas", times=2)
    browser.wait("!location.hash.includes('view')")
    browser.wheel("[data-map=oracle] canvas", -100)  # the map that has the focus is another
    time.sleep(0.2)
    assert browser.run(VIEW) is None, "the page scrolls until the map was clicked"
    browser.wheel("[data-map=window] canvas", -100)
    browser.wait("location.hash.includes('view')")


def test_fingers_pin_and_zoom(browser, page):
    browser.resize(390, 844)
    browser.open(page + "#layer=3", READY)
    left, top = browser.run("const map = document.querySelector('[data-map=oracle] canvas');"
                            "map.scrollIntoView({ block: 'center' }); const box = map.getBoundingClientRect();"
                            "return [box.left, box.top]")
    browser.touch([(left + 100, top + 200)], [])
    browser.wait("location.hash.includes('query')")
    assert browser.text(".ms-part-query p").startswith("Token ")
    fingers = [(left + 150 - 20 * apart, top + 150 + 10 * apart) for apart in (1, 2, 3, 4)]
    browser.touch(*([one, (left + 200, top + 150)] for one in fingers), [])
    browser.wait("location.hash.includes('view')")
    assert browser.run("return document.documentElement.scrollWidth") == 390


def test_screen_readers_have_a_name_for_all_that_can_be_used(browser, page):
    browser.resize(1280)
    browser.open(page + "#layer=3&group=1&query=300&selector=window&block=2&find=the", READY)
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "checkbox", "combobox", "spinbutton", "searchbox", "application", "region", "image", "link"}
    used = [(node["role"]["value"], node.get("name", {}).get("value", "").strip()) for node in nodes
            if not node["ignored"] and node["role"]["value"] in roles]
    assert {role for role, _ in used} >= {"button", "checkbox", "combobox", "spinbutton", "searchbox", "application"}
    assert not [role for role, name in used if not name]
    assert ("button", "layer 3, group 1: sink " + browser.run(
        "return document.querySelector('[data-measure=sink][data-group=\"1\"]').title.split('sink ')[1]")) in used
    assert "Query 300" in browser.text("[aria-live=polite]")


def test_keys_move_and_zoom(browser, page):
    browser.resize(1280)
    browser.open(page + "#layer=3&query=100&block=2", READY)
    browser.run("document.querySelector('[data-map=oracle] canvas').focus()")
    browser.type("\ue015\ue015\ue014+")  # down, down, right
    browser.wait("location.hash.includes('view')")
    fields = browser.run("return Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")
    assert (fields["query"], fields["block"]) == ("102", "3") and fields["view"] == "96-288-6-18"
    browser.type("0")
    browser.wait("!location.hash.includes('view')")
    browser.run("document.querySelector('[data-measure=mass_kept][aria-pressed=true]').focus()")
    browser.type("\ue014\ue015\ue007")  # right, down, enter
    browser.wait("document.getElementById('microscope').dataset.layer === '6'")
    browser.wait("location.hash.includes('group=1')")


def fills(pdf):
    """Colours of the text and the shapes, 0 to 255."""
    pieces = re.findall(rb"stream\r?\n(.*?)endstream", pdf, re.DOTALL)
    pages = [zlib.decompress(piece) for piece in pieces if piece[:1] == b"x"]
    return {tuple(round(255 * float(part)) for part in found.split())
            for page in pages for found in re.findall(rb"([\d.]+ [\d.]+ [\d.]+) rg", page)}


def test_paper_is_white_in_dark_mode(browser, page):
    browser.resize(1280, dark=True)
    browser.open(page + "#layer=3&group=1&query=300&selector=window&block=2", READY)
    printed = fills(base64.b64decode(browser.command("Page.printToPDF", printBackground=True)["data"]))
    dark = {(29, 32, 40), (226, 243, 255), (232, 234, 240)}
    assert (28, 30, 38) in printed and not dark & printed
    browser.wait("getComputedStyle(document.body).color === 'rgb(232, 234, 240)'")


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_all_of_it(browser, page, dark):
    browser.resize(390, 844, dark)
    browser.open(page + "#layer=3&group=1&query=300&selector=window&block=2&find=the", READY)
    assert browser.run("return document.documentElement.scrollWidth") == 390
    widths = browser.run("return [...document.querySelectorAll('canvas')].map(one => one.clientWidth)")
    assert len(widths) == 5 and min(widths) > 300


def test_a_text_runs_nothing(browser, page):
    browser.resize(1280)
    browser.open(page + "#layer=3&query=300&block=1&find=%3Cscript%3E", READY)
    assert browser.run("return document.title").startswith("Block microscope")
    assert browser.run("return document.querySelectorAll('#microscope script, #microscope b b').length") == 0
    assert "<script>document.title = 'run'</script>" in browser.run(
        "return document.querySelector('.ms-text').textContent")


def test_the_report_begins_with_the_microscope(browser, files, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "SECTIONS", [one for one in gallery.SECTIONS if one.key in ("entropy", "mass-kept")])
    assert plot([str(files[0]), "--activations", str(files[1]), "--out", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").as_uri()
    browser.resize(1280)
    browser.open(page + "#layer=6&group=2&query=200&selector=random", READY)
    check_query(browser, files, 200, 2, "random", 6)
    chosen = "return [...document.querySelectorAll('.controls input:checked')].map(input => input.value)"
    assert browser.run(chosen) == ["6", "random"]
    assert browser.run("return document.querySelector('#entropy details').open") is False
    browser.open(page + "#entropy", READY)
    assert browser.run("return document.querySelector('#entropy details').open") is True
    browser.resize(390, 844)
    browser.open(page, READY)
    assert browser.run("return document.documentElement.scrollWidth") == 390


def test_the_contents_stay_and_lead_to_each_section(browser, files, tmp_path, monkeypatch):
    kept = ("entropy", "mass-kept", "selection", "sink")
    monkeypatch.setattr(report, "SECTIONS", [one for one in gallery.SECTIONS if one.key in kept])
    assert plot([str(files[0]), "--layers", "3", "--out", str(tmp_path)]) == 0
    browser.resize(1280)
    browser.open((tmp_path / "report.html").as_uri(), READY)
    links = browser.run("return [...document.querySelectorAll('.contents a')].map(one => one.hash.slice(1))")
    assert links == ["summary", "blocks", "selection", "sink", "mass-kept", "entropy", "glossary", "run"]
    assert browser.run("return [...document.querySelectorAll('.folded')].map(one => one.open)") == [False, False]
    for name in links:
        browser.click(".contents summary")
        browser.click(f".contents a[href='#{name}']")
        top, contents = browser.run("return [document.getElementById(arguments[0]), document.querySelector('.contents')]"
                                    ".map(one => one.getBoundingClientRect().top)", name)
        assert browser.run("return location.hash") == f"#{name}"
        assert 90 <= top < 1000 and (contents == 0 or name in ("summary", "run")), name
    browser.resize(1700)
    browser.run("scrollTo(0, 2000)")
    assert 0 <= browser.run("return document.querySelector('.contents ol').getBoundingClientRect().top") < 100


def test_many_layers_leave_the_microscope_on_the_second_screen(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "SECTIONS", [one for one in gallery.SECTIONS if one.key == "entropy"])
    path = tmp_path / "results.h5"
    make_results(path, Case(layers=tuple(range(30)), lengths=(96,), top_k=2))
    assert plot([str(path), "--out", str(tmp_path)]) == 0
    browser.resize(1280)
    browser.open((tmp_path / "report.html").as_uri(), READY)
    rows, top = browser.run("return [document.querySelector('#summary tbody').rows.length,"
                            "document.getElementById('blocks').getBoundingClientRect().top]")
    assert rows == 90 and top < 1500
    grids = browser.run("const grids = document.querySelector('.ms-part-grids');"
                        "return grids.scrollWidth - grids.clientWidth")
    assert grids == 0, "all 30 layers are seen"


TOOK = "return +document.getElementById('microscope').dataset.took"


def test_a_click_takes_less_than_50_milliseconds(browser, page):
    """The least of several: others may use this machine."""
    browser.open(page, READY)
    times = []
    for n in range(12):
        browser.click("[data-map=oracle] canvas", 0.4 + 0.01 * n, 0.85)
        times.append(browser.run(TOOK))
    assert min(times) < 1000 * CLICK


# The colours [x, y] of a map, and the columns and rows of its picture, which has one pixel for each.
PIXELS = """const canvas = document.querySelector(`[data-map="${arguments[0]}"] canvas`), scale = canvas.width /
    canvas.clientWidth, width = canvas.clientWidth - 66, height = canvas.clientHeight - 48;
    const pen = canvas.getContext('2d'), places = arguments[1];
    return [width, height, places.map(([x, y]) => [...pen.getImageData((60 + Math.floor(x * width)) * scale,
        (14 + Math.floor(y * height)) * scale, 1, 1).data].slice(0, 3))]"""
RAMP = np.array([[255, 255, 255], [158, 208, 238], [42, 142, 201], [0, 92, 148], [0, 38, 70]])


def test_128k_tokens_are_zoomed_in_50_milliseconds(browser, tmp_path):
    """Of a cell that covers several queries and blocks: the mean over the queries, the most over the blocks."""
    microscope, chosen, positions = made_up(131072, 128, 2048, ("oracle", "index"))
    browser.resize(1280)
    page = write_page(microscope, tmp_path / "page.html").as_uri() + "#layer=0&selector=index"
    browser.open(page, READY)
    assert 0.01 < browser.busy() < 2
    said = browser.text(".ms-part-sampled").replace("\u202f", " ")
    assert "All 2 048 analysed queries are here, of 131 072 tokens" in said
    places = [(0.1, 0.2), (0.01, 0.9), (0.5, 0.8), (0.3, 0.31), (0.62, 0.97), (0.9, 0.5)]
    for name in ("oracle", "index"):
        width, height, colours = browser.run(PIXELS, name, places)
        for (x, y), colour in zip(places, colours):
            column, row = int(x * width), int(y * height)
            first, last = (at * 2048 // height for at in (row, row + 1))
            begin, end = (at * 1024 // width for at in (column, column + 1))
            share = round(255 * chosen[name][begin:end, first:last].mean(1).max()) / 255
            expected = [np.interp(4 * share, range(5), part) for part in RAMP.T]
            if begin > positions[last - 1] // 128:
                expected = [233, 235, 240]
            assert np.abs(np.array(colour) - expected).max() <= 1, (name, x, y)
    assert (tmp_path / "page.html").stat().st_size < 8e6
    browser.run("document.querySelector('[data-map=oracle] canvas').focus()")
    times = {"+": [], "0": []}
    for _ in range(8):
        for key, took in times.items():
            before = browser.busy("ScriptDuration")
            browser.type(key)
            took.append(browser.busy("ScriptDuration") - before)
    assert 0.001 < max(map(min, times.values())) < CLICK, times


def test_a_second_run_stands_beside_the_first(browser, files, tmp_path):
    other = tmp_path / "b.h5"
    other.write_bytes(files[0].read_bytes())
    with h5py.File(other, "r+") as file:
        file["select/random/3/ids"][:] = file["select/window/3/ids"][:]
    with Results(files[0]) as results, Results(other) as beside:
        page = write_page(make_microscope(results, beside=beside), tmp_path / "page.html").as_uri()
        chosen, new = ({int(block) for block in results.ids(name, 3)[300][1] if block >= 0} for name in ("random", "window"))
    browser.resize(1280)
    browser.open(page + "#layer=3&group=1&query=300&selector=random+(B)", READY)
    assert f"Selectors with (B) are of {other}" in browser.text(".ms-part-sampled")
    verdicts = {block: "both" if block in chosen & new else "random alone" if block in chosen else "random (B) alone"
                for block in chosen | new}
    assert {block: verdict for block, verdict, _ in browser.run(TABLE)} == verdicts
    assert browser.text("[data-map=difference] b") == "random (B) minus random"
    browser.run("const choice = document.querySelectorAll('.ms-part-bar select')[3];"
                "choice.value = 'window'; choice.dispatchEvent(new Event('change'))")
    assert browser.text("[data-map=difference] b") == "random (B) minus window"
    assert browser.run(COLOUR, "difference", 300, sorted(new)[0]) == [148, 153, 166]  # both chose it


def test_pictures_are_dark_in_dark_mode(browser, files, tmp_path):
    assert plot([str(files[0]), "--only", "entropy,selection", "--layers", "3", "--out", str(tmp_path)]) == 0
    for dark, colour in ((True, [29, 32, 40]), (False, [255, 255, 255])):
        browser.resize(390, dark=dark)
        for name in ("entropy", "selection_window_layer3"):
            browser.open((tmp_path / f"{name}.svg").as_uri())
            browser.picture(tmp_path / "seen.png")
            assert [round(255 * part) for part in image.imread(tmp_path / "seen.png")[3, 3, :3]] == colour
