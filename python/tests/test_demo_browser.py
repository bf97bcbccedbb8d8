# SPDX-License-Identifier: MIT
"""The demo's finding from its report alone, in headless Chromium: each stripe of layer 10 is one word. The clicks are
counted, and docs/report.md says how many."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from webdriver import ABSENT, Browser

from msalab.plots import Results, gallery, report
from msalab.plots.__main__ import main as plot

ROOT = Path(__file__).parents[2]
BIN = Path(os.environ.get("MSALAB_BIN", ROOT / "build/release/bin"))
READY = "document.getElementById('microscope')?.dataset.ready"
LAYER, GROUP, BLOCK, NUMBERS = 10, 0, 32, ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# The token that is lit most in the key block's text.
LIT = """const alpha = one => +(one.style.background.match(/[\\d.]+(?=\\))/) ?? [0])[0];
    return [...document.querySelectorAll('.ms-part-block .ms-context span')].sort((a, b) => alpha(b) - alpha(a))[0].textContent"""

pytestmark = [pytest.mark.skipif(ABSENT is not None, reason=ABSENT or ""),
              pytest.mark.skipif(not (BIN / "msa-analyze").exists(), reason=f"no msa-analyze in {BIN}: ./msalab build")]


@pytest.fixture(scope="module")
def results_path(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    subprocess.run([BIN / "msa-analyze", ROOT / "data/sample.h5", "--out", out, "--block-size", str(BLOCK), "--top-k", "8",
                    "--selectors", "oracle,mean-key", "--backend", "cpu"], check=True, capture_output=True)
    return out / "results.h5"


def stripes(path) -> list[int]:
    """Blocks that most queries chose from far away."""
    with Results(path) as results:
        ids, position = results.ids("oracle", LAYER)[:][:, GROUP], results.queries(LAYER).position
        shares = {block: (ids[position // BLOCK > block + 1] == block).any(1).mean() for block in range(40)}
    return [block for block, share in shares.items() if share > 0.5]


def test_each_stripe_of_the_demo_is_one_word(results_path, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "SECTIONS", [one for one in gallery.SECTIONS if one.key == "selection"])
    assert plot([str(results_path), "--activations", str(ROOT / "data/sample.h5"), "--out", str(tmp_path)]) == 0
    page, clicks = tmp_path / "report.html", 0
    assert page.stat().st_size < 8e6
    with Browser(tmp_path / "profile") as browser:
        browser.open(page.as_uri(), READY)
        assert 0.01 < browser.busy() < 2
        assert browser.run("return document.getElementById('microscope').dataset.layer") == "20"
        browser.click(f"[data-measure=mass_kept][data-layer='{LAYER}'][data-group='{GROUP}']")
        clicks += 1
        browser.wait(f"document.getElementById('microscope').dataset.layer === '{LAYER}'")
        assert browser.text(".ms-part-text .ms-list").startswith("Words that draw most attention here:\nthe 24")
        found = {}
        with Results(results_path) as results:
            blocks = results.sizes(LAYER).blocks
        width = browser.run("return document.querySelector('[data-map=oracle] canvas').clientWidth")
        for block in stripes(results_path):
            browser.click("[data-map=oracle] canvas", (60 + (block + 0.5) / blocks * (width - 66)) / width, 0.88)
            clicks += 1
            browser.wait(f"document.querySelector('.ms-part-block p').textContent.startsWith('Block {block},')")
            found[block] = browser.run(LIT)
            assert "most of it: “the”" in browser.text(".ms-strongest")
    assert list(found) == [0, 4, 7, 8, 21, 25, 32] and set(found.values()) == {" the"}
    said = (ROOT / "docs/report.md").read_text(encoding="utf-8")
    assert f"Two clicks say why. {NUMBERS[clicks].capitalize()} show it of all {NUMBERS[len(found)]} stripes." in " ".join(
        re.sub(r"\s+", " ", said).split())
