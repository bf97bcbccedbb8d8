# SPDX-License-Identifier: MIT
"""The report in headless Chromium, as wide as a phone and as a laptop."""

import html
import json
import re
import shutil
import subprocess

import pytest

WIDTHS = (390, 1280)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)

PROBE = """<script>
const errors = [];
addEventListener("error", event => errors.push(event.message ?? "a picture failed"), true);
addEventListener("securitypolicyviolation", event => errors.push(event.violatedDirective));
addEventListener("load", () => {
  const root = document.documentElement, overflow = [];
  const look = () => overflow.push(root.scrollWidth - root.clientWidth);
  document.querySelectorAll("details").forEach(details => { details.open = true; });
  look();
  document.querySelectorAll(".controls input").forEach(input => { input.click(); look(); });
  const figures = [...document.querySelectorAll("figure")].filter(figure => !figure.hidden);
  const tables = [...document.querySelectorAll("table")].filter(table => !table.closest(".microscope")).map(table => {
    const head = [...table.tHead.rows[0].cells].at(-1);
    const values = row => +row.cells[head.cellIndex].dataset.value;
    const column = () => [...table.tBodies[0].rows].map(values);
    head.click();
    const down = column();
    head.click();
    return [down, column()];
  });
  look();
  parent.postMessage({ width: innerWidth, overflow: Math.max(...overflow), errors, tables,
                       figures: figures.length }, "*");
});
</script>"""

FRAMES = """<!DOCTYPE html><pre></pre><script>
const found = [];
addEventListener("message", event => {
  found.push(event.data);
  document.querySelector("pre").textContent = JSON.stringify(found);
});
</script>""" + "".join(f'<iframe src="probed.html" width="{width}" height="800" frameborder="0">'
                       "</iframe>" for width in WIDTHS)


def look_at(page: str, folder) -> dict[int, dict]:
    """What the probe finds in the page, by width. Frames, since a window has a least width."""
    assert page.count("<head>") == 1
    (folder / "probed.html").write_text(page.replace("<head>", "<head>" + PROBE), encoding="utf-8")
    (folder / "frames.html").write_text(FRAMES, encoding="utf-8")
    dom = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         f"--user-data-dir={folder / 'profile'}", "--window-size=1400,900",
         "--virtual-time-budget=20000", "--dump-dom", (folder / "frames.html").as_uri()],
        capture_output=True, text=True, timeout=60, check=True).stdout
    found = json.loads(html.unescape(re.search("<pre>(.*?)</pre>", dom, re.DOTALL)[1]))
    return {one["width"]: one for one in found}


@pytest.mark.skipif(BROWSER is None, reason=f"no browser here: none of {', '.join(NAMES)}")
def test_report_in_a_browser(full_report, tmp_path):
    page = (full_report / "report.html").read_text(encoding="utf-8")
    seen = look_at(page, tmp_path)
    assert set(seen) == set(WIDTHS)
    for found in seen.values():
        assert not found["errors"]
        assert found["overflow"] == 0
        assert found["figures"] > 0
        assert len(found["tables"]) == page.count("<table>") > 3
        of_numbers = [both for both in found["tables"] if None not in both[0]]
        assert len(of_numbers) >= 3  # summary, comparison, predicted over measured
        for down, up in of_numbers:
            assert len(down) > 1 and down == sorted(down, reverse=True) and up == sorted(down)


@pytest.mark.skipif(BROWSER is None, reason=f"no browser here: none of {', '.join(NAMES)}")
def test_what_is_too_wide_or_fails_is_seen(tmp_path):
    seen = look_at("<!DOCTYPE html><html><head></head><body><div class=controls></div>"
                   "<div style='width: 600px'>wide</div><script>missing();</script></body></html>",
                   tmp_path)
    assert seen[390]["overflow"] > 0 and seen[1280]["overflow"] == 0
    assert "missing is not defined" in seen[390]["errors"][0]
