# SPDX-License-Identifier: MIT
"""Every relative link of the project's Markdown pages leads to a file, and data/README.md names every
record of a benchmark."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("core", "gpu", "analysis", "experiments", "notebooks", "data", "tests", "python",
           "docs", "examples", "bench", "studies")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS
                                      for page in (ROOT / folder).rglob("*.md"))])


def relative_links(text: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target.split("#")[0] for target in targets if not re.match(r"#|\w+:", target)]


def test_links_are_found():
    text = "[a](x/y.md#z) ![b\nc](d.png) [e](https://f.g) [h](#i)\n```\n[j](k)\n```\n"
    assert relative_links(text) == ["x/y.md", "d.png"]
    assert ROOT / "README.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    missing = [link for link in relative_links(page.read_text(encoding="utf-8"))
               if not (page.parent / link).exists()]
    assert not missing


def test_every_record_has_a_row_and_every_row_a_record():
    page = (ROOT / "data/README.md").read_text(encoding="utf-8").split("\n## bench\n")[1]
    rows = [re.sub(r"<\w+>", "*", row) for row in re.findall(r"^\| `(\S+\.json)` \|", page, re.MULTILINE)]
    records = [path.name for path in (ROOT / "data/bench").iterdir()]
    assert [name for name in records if not any(fnmatch(name, row) for row in rows)] == []
    assert [row for row in rows if not any(fnmatch(name, row) for name in records)] == []


def test_every_page_and_notebook_has_a_place_in_the_site():
    placed = set(re.findall(r"^ *- (?:[^:\n]*: )?(\S+\.(?:md|ipynb))$",
                            (ROOT / "docs/site/mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    left_out = {"docs/api.md", "docs/joss/paper.md"}  # the main page of the headers' reference; a paper of its own
    notebooks = (ROOT / "notebooks").glob("*.ipynb")
    pages = {str(page.relative_to(ROOT)) for page in [*PAGES, *notebooks]}
    assert {page for page in placed if not page.startswith("api/")} == pages - left_out
